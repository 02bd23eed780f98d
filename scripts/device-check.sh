#!/bin/sh
# Checks and measures the Vulkan device of a machine, from a folder that holds the programs `lavalane` and
# `kernel-tests` (`make device-check-pack` makes it). Needs a POSIX shell, `timeout` and a Vulkan driver: no network,
# no model, no source.
#
#   device-check.sh FOLDER
#
# LAVALANE_DEVICE          the device, by index or a part of its name; the best otherwise
# LAVALANE_CHECK_SECONDS   how long everything may take together (480)
# LAVALANE_CHECK_REPEATS   repeats of each rate, of which the median counts (1)
# LAVALANE_CHECK_SHAPES    models, separated by spaces, each as
#                          NAME:LAYERS:HIDDEN:HEADS:KV_HEADS:HEAD_DIM:FEED_FORWARD:VOCABULARY:CONTEXT
#                          (1B and 8B on a GPU, and a tiny one on a software device)
# TMPDIR                   where models are written, one at a time: up to 9 GB (/tmp)
#
# Exits with 1 where a check or a measurement failed, and with 2 where it has no such device. What no time, or no memory,
# is left for is skipped, and a line says so.
set -eu

if [ $# -ne 1 ] || [ ! -x "$1/lavalane" ] || [ ! -x "$1/kernel-tests" ]; then
    echo "usage: $0 FOLDER, which holds the programs lavalane and kernel-tests" >&2
    exit 2
fi
folder=$(cd "$1" && pwd)
limit=${LAVALANE_CHECK_SECONDS:-480}
repeats=${LAVALANE_CHECK_REPEATS:-1}
# The shapes of Llama 3.2 1B and Llama 3.1 8B, with a shorter context.
large='1B:16:2048:32:8:64:8192:128256:8192 8B:32:4096:32:8:128:14336:128256:8192'
tiny='tiny:2:256:4:2:64:512:1024:4096'
case $limit in
    '' | *[!0-9]*) echo "LAVALANE_CHECK_SECONDS is '$limit', expected a number of seconds" >&2 && exit 2 ;;
esac

start=$(date +%s)
work=$(mktemp -d "${TMPDIR:-/tmp}/lavalane-device-check.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
failed=

left() { echo $((limit - $(date +%s) + start)); }
step() { printf '\n== %s (after %s s)\n' "$1" "$(($(date +%s) - start))"; }
fail() {
    echo "FAILED: $1"
    failed="$failed
  $1"
}
# Runs a command for as long as there is time, at most. 124 where the time is over, before or meanwhile; 137 is that of
# a program that was killed, for memory perhaps, while time was left. Errors also go to a file.
within() {
    seconds=$(left)
    [ "$seconds" -gt 0 ] || return 124
    code=0
    timeout -k 5 "$seconds" "$@" 2>"$work/errors" || code=$?
    cat "$work/errors" >&2
    [ "$code" -ne 137 ] || [ "$(left)" -gt 0 ] || code=124
    return "$code"
}
# What the last command said was wrong, after a colon, if it said anything.
reason() { sed -n 's/^error: /: /p' "$work/errors" | tail -n 1; }
# What an exit status other than 0 says, by the program's own codes.
told() {
    case $2 in
        124) echo "skipped: $1: no time is left of $limit s" ;;
        137) fail "$1: killed with $(left) s left, as a system out of memory does" ;;
        5) echo "skipped: $1: too little memory$(reason)" ;;
        *) fail "$1: exit status $2$(reason)" ;;
    esac
}

step 'devices'
status=0
within "$folder/lavalane" devices || status=$?
case $status in
    0) ;;
    4)
        # No driver, or no device of that name: there is nothing to check.
        echo "stopped$(reason)" >&2
        exit 2
        ;;
    *) told 'lavalane devices' "$status" ;;
esac

step "kernels against their scalar twins, and the same bits across row counts, on ${LAVALANE_DEVICE:-the best device}"
status=0
within "$folder/kernel-tests" vulkan --show-output >"$work/tests" 2>&1 || status=$?
# What a pack was tested on, what was skipped and why, and the summary.
grep -E '^(tested|skipped): ' "$work/tests" | sort -u || true
grep -E '^test result: ' "$work/tests" || true
if [ "$status" -ne 0 ]; then
    cat "$work/tests"
    case $status in
        124) fail "kernel tests: not done within $limit s" ;;
        *) told 'kernel tests' "$status" ;;
    esac
elif ! grep -q '^tested: ' "$work/tests"; then
    fail 'kernel tests: none ran on a device'
fi

shapes=${LAVALANE_CHECK_SHAPES:-$large}
if [ -z "${LAVALANE_CHECK_SHAPES:-}" ] && grep -q '^tested: .* (Cpu)$' "$work/tests"; then
    echo 'a software device: it measures a tiny model in place of 1B and 8B'
    shapes=$tiny
fi

# The packs that are measured: the device's own, whole; and then, where there are two ways to multiply matrices, the
# rates of the other.
other=
if grep -q '^tested: the coopmat pack .*(Cpu)$' "$work/tests"; then
    other=coopmat
elif grep -q '^tested: the coopmat pack ' "$work/tests"; then
    other=subgroup
fi

# Measures parts of a model with a pack; the device's own where its name is empty.
bench() {
    within "$folder/lavalane" bench --model "$model" ${2:+--pack "$2"} --parts "$1" --lanes 1,8,32 \
        --prefill 512,4096 --far 0 --repeats "$repeats"
}

# Writes a random model of a shape, measures it, and removes it.
measure() {
    name=$1 tensor_type=$2
    shape=$3
    old_ifs=$IFS
    IFS=:
    # shellcheck disable=SC2086 # The words are wanted.
    set -- $shape
    IFS=$old_ifs
    model=$work/$name-$tensor_type.gguf
    status=0
    within "$folder/lavalane" synth --architecture llama --type "$tensor_type" --layers "$2" --hidden "$3" \
        --heads "$4" --kv-heads "$5" --head-dim "$6" --feed-forward "$7" --vocabulary "$8" --context "$9" "$model" ||
        status=$?
    if [ "$status" -eq 0 ]; then
        bench rates,kernels '' || status=$?
    fi
    if [ "$status" -eq 0 ] && [ -n "$other" ]; then
        bench rates "$other" || status=$?
    fi
    rm -f "$model" "$model.partial"
    [ "$status" -eq 0 ] || told "$name $tensor_type" "$status"
}

for shape in $shapes; do
    case $shape in
        *:*:*:*:*:*:*:*:*) ;;
        *) fail "the shape '$shape': expected nine words between colons" && continue ;;
    esac
    for tensor_type in q4_k q8_0; do
        name=${shape%%:*}
        step "$name $tensor_type"
        measure "$name" "$tensor_type" "$shape"
    done
done

step 'done'
if [ -n "$failed" ]; then
    echo "FAILED:$failed"
    exit 1
fi
echo 'no check failed'
