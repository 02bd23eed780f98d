#!/usr/bin/env bash
# Run every test of the workspace; the test runner's own summary comes last. Arguments go to the runner.
set -euo pipefail
cd "$(dirname "$0")/.."

# Documentation tests first: nextest does not run them, and the runner's summary should be what is seen at the end.
if (($# == 0)); then
    cargo test --workspace --doc
fi
if command -v cargo-nextest >/dev/null; then
    exec cargo nextest run --workspace "$@"
fi

# Plain `cargo test` closes with the summary of its last binary alone: add them up.
output=$(mktemp)
trap 'rm -f "$output"' EXIT
status=0
cargo test --workspace --no-fail-fast --lib --bins --examples --tests "$@" 2>&1 | tee "$output" || status=$?
awk '/^test result:/ { passed += $4; failed += $6; skipped += $8 }
     END { printf "\n%d passed, %d failed, %d skipped\n", passed, failed, skipped }' "$output"
exit "$status"
