#!/usr/bin/env bash
# Build and strip what `device-check.sh` runs, and put it with that script into target/device-check: a folder to carry
# to a machine with a GPU, of at most 64 MiB in all.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly FOLDER=target/device-check
readonly BYTES_MAX=$((64 << 20))

cargo build --release --quiet --package lavalane-api --bin lavalane
tests=$(cargo test --release --quiet --package lavalane-runtime --lib --no-run --message-format json |
    python3 -c '
import json, sys
messages = [json.loads(line) for line in sys.stdin if line.startswith("{")]
programs = [message["executable"] for message in messages if message.get("executable")]
print(*programs, sep="\n")')
[[ -x "$tests" ]] || { echo "expected one test program of lavalane-runtime, found: '$tests'" >&2 && exit 1; }

rm -rf "$FOLDER"
mkdir -p "$FOLDER"
strip -o "$FOLDER/lavalane" target/release/lavalane
strip -o "$FOLDER/kernel-tests" "$tests"
cp scripts/device-check.sh "$FOLDER/"

bytes=$(cat "$FOLDER"/* | wc -c)
printf '%s: %d.%d MiB\n' "$FOLDER" $((bytes >> 20)) $(((bytes & 0xfffff) * 10 >> 20))
if ((bytes > BYTES_MAX)); then
    echo "the folder is larger than $((BYTES_MAX >> 20)) MiB" >&2
    exit 1
fi
