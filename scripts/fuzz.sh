#!/usr/bin/env bash
# Run each fuzz target for FUZZ_SECONDS, with the stable compiler: the coverage that libFuzzer needs takes no unstable
# flag, and what is looked for are panics, which need no sanitizer. Arguments name targets; without any, all run.
set -euo pipefail
cd "$(dirname "$0")/../fuzz"

host=$(rustc -vV | awk '/^host:/ { print $2 }')
flags=(--cfg fuzzing -C passes=sancov-module -C codegen-units=1 -C debug-assertions=yes -C overflow-checks=yes)
for argument in level=4 inline-8bit-counters pc-table trace-compares; do
    flags+=(-C "llvm-args=-sanitizer-coverage-$argument")
done
# A target triple of its own keeps these flags away from build scripts and macros.
RUSTFLAGS="${flags[*]}" cargo build --release --target "$host" --locked

targets=("$@")
if ((${#targets[@]} == 0)); then
    targets=(fuzz_targets/*.rs)
fi
for target in "${targets[@]}"; do
    name=$(basename "$target" .rs)
    mkdir -p "corpus/$name" "artifacts/$name"
    echo "== $name, ${FUZZ_SECONDS:=600} s"
    "target/$host/release/$name" "corpus/$name" -artifact_prefix="artifacts/$name/" \
        -max_total_time="$FUZZ_SECONDS" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1
done
