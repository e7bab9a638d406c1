#!/usr/bin/env bash
# What only a machine with a GPU can show. It needs torch 2.11 for Python (its libraries are used, Python itself only to
# find them) and what `make gpu-kit` has put beside this file; no Rust, no compiler, no network.
#
#   make gpu-kit                    where Forebay is built: fills target/gpu-kit
#   target/gpu-kit/run.sh           there, or wherever the folder was copied to
#
# Prints a line for each check, PASS, FAIL or SKIP, and exits with 1 if one failed. SKIP says what the machine lacks: no
# GPU at all, or no second one. Each check is a process of its own, with a time limit: a GPU fault can hang one.
# PYTHON names the Python that has torch [python3]; TIMEOUT_S the limit of a check [300]; AU_FLOOR the accelerator
# utilisation that a warm epoch must have [0.95].
set -uo pipefail

kit=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
limit=${TIMEOUT_S:-300}
floor=${AU_FLOOR:-0.95}
failed=0

pass() { echo "PASS $1: $2"; }
skip() { echo "SKIP $1: $2"; }
fail() {
    echo "FAIL $1: $2"
    failed=1
}
finish() {
    if [ "$failed" -eq 0 ]; then echo "gpu: no check failed"; else echo "gpu: some checks FAILED"; fi
    exit "$failed"
}

# --- the machine ----------------------------------------------------------------------------------------------------
for file in forebay-gpu-check forebay-train libforebay_c10d_nccl.so; do
    [ -s "$kit/$file" ] || fail kit "$kit/$file is missing: run 'make gpu-kit' where Forebay is built"
done
[ "$failed" -eq 0 ] || finish

# LIBTORCH names a libtorch without Python.
if [ -n "${LIBTORCH:-}" ]; then
    torch=$LIBTORCH
else
    torch=$("$python" -c 'import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0])' 2>/dev/null)
fi
if [ -z "$torch" ] || [ ! -e "$torch/lib/libtorch_cpu.so" ]; then
    fail torch "$python has no torch: install torch 2.11, or name another Python in PYTHON, or its folder in LIBTORCH"
    finish
fi
version=$(sed -n "s/^__version__ = '\(.*\)'/\1/p" "$torch/version.py")
case $version in
2.11.0 | 2.11.0+*) pass torch "$version at $torch" ;;
*)
    fail torch "$torch is $version, the binaries want 2.11.0"
    finish
    ;;
esac
export LD_LIBRARY_PATH=$torch/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export FOREBAY_NCCL_PLUGIN=$kit/libforebay_c10d_nccl.so
export TORCH_CPP_LOG_LEVEL=${TORCH_CPP_LOG_LEVEL:-FATAL} GLOO_SOCKET_IFNAME=${GLOO_SOCKET_IFNAME:-lo}
if gpus=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null) && [ -n "$gpus" ]; then
    echo "gpu: $(echo "$gpus" | sort | uniq -c | sed 's/^ *//' | paste -sd';')"
else
    echo "gpu: nvidia-smi shows none"
fi
# How many the programs see, which is not what nvidia-smi shows: CUDA_VISIBLE_DEVICES limits them.
count=0

# --- the crate: tch on the GPU, bf16, pinned copies, trace, NCCL, DDP -------------------------------------------------
checks=$("$kit/forebay-gpu-check" list 2>&1) || {
    fail forebay-gpu-check "does not start: $(echo "$checks" | tail -n 1)"
    finish
}
for check in $checks; do
    output=$(timeout --kill-after=10 "$limit" "$kit/forebay-gpu-check" "$check" 2>&1)
    code=$?
    # Its own lines; then, if it ended without one, its last words.
    lines=$(echo "$output" | grep -E "^(PASS|FAIL|SKIP) ")
    [ -n "$lines" ] && echo "$lines"
    if [ "$check" = matmul ]; then
        count=$(echo "$lines" | sed -n 's/^PASS matmul: \([0-9]*\) GPUs.*/\1/p')
        count=${count:-0}
    fi
    if [ "$code" -eq 124 ] || [ "$code" -eq 137 ]; then
        fail "$check" "was not done within $limit s"
    elif [ "$code" -ne 0 ]; then
        failed=1
        echo "$lines" | grep -q "^FAIL" || fail "$check" "ended with $code: $(echo "$output" | tail -n 1)"
    elif [ -z "$lines" ]; then
        fail "$check" "said nothing"
    fi
done

# --- the trainer: a run on the GPU from files beside this one ---------------------------------------------------------
# train NAME RANKS ARGUMENT..: two epochs of MNIST; leaves the report in $report, empty if there is none.
train() {
    local name=$1 ranks=$2 output code
    shift 2
    report=$(mktemp)
    output=$(timeout --kill-after=10 "$limit" "$kit/forebay-train" --direct --device cuda --nproc "$ranks" \
        --train "file://$kit/mnist/train" --test "file://$kit/mnist/test" --epochs 2 --report "$report" "$@" 2>&1)
    code=$?
    if [ "$code" -eq 0 ]; then return 0; fi
    if [ "$code" -eq 124 ] || [ "$code" -eq 137 ]; then
        fail "$name" "was not done within $limit s"
    else
        fail "$name" "$(echo "$output" | grep -v '^ *$' | tail -n 1)"
    fi
    rm -f "$report"
    return 1
}

# value FIELD: a number of the report; nothing if it is not there. No Python needed: the report is one field a line.
value() { sed -n "s/.*\"$1\": *\([-0-9.eE+]*\).*/\1/p" "$report" | tail -n 1; }

above() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a + 0 >= b + 0) }'; }

accuracy() {
    local name=$1 got
    got=$(value test_accuracy)
    if above "${got:-0}" 0.97; then pass "$name" "test accuracy $got"; else fail "$name" "test accuracy ${got:-missing}"; fi
}

if [ "$count" -eq 0 ]; then
    for name in train train-bf16 train-2-ranks utilisation; do skip "$name" "no GPU"; done
elif [ ! -d "$kit/mnist/train" ]; then
    fail train "$kit/mnist is missing: run 'make gpu-kit' where Forebay is built"
else
    if train train 1; then
        accuracy train
        share=$(value accelerator_utilisation)
        if [ -n "$share" ]; then
            said="$share of the time computing, in the last epoch; promised $floor"
            if above "$share" "$floor"; then pass utilisation "$said"; else fail utilisation "$said"; fi
        else
            fail utilisation "the report has no accelerator_utilisation"
        fi
        rm -f "$report"
    fi
    if train train-bf16 1 --precision bf16; then
        accuracy train-bf16
        rm -f "$report"
    fi
    if [ "$count" -lt 2 ]; then
        skip train-2-ranks "one GPU, and NCCL refuses two ranks on one"
    elif train train-2-ranks 2; then
        accuracy train-2-ranks
        rm -f "$report"
    fi
fi

# --- the Python package: batches that arrive on the GPU -----------------------------------------------------------------
if [ "$count" -eq 0 ]; then
    skip python "no GPU"
elif ! "$python" -c 'import torch' 2>/dev/null; then
    skip python "$python has no torch"
else
    cache=$(mktemp -d)
    output=$(PYTHONPATH=$kit/python FOREBAY_SERVER=$kit/forebay-server FOREBAY_CACHE_DIR=$cache FOREBAY_IDLE_S=5 \
        timeout --kill-after=10 "$limit" "$python" "$kit/loader.py" "$kit/mnist" 2>&1)
    code=$?
    echo "$output" | grep -E "^(PASS|FAIL|SKIP|python)"
    if [ "$code" -eq 124 ] || [ "$code" -eq 137 ]; then
        fail python "was not done within $limit s"
    elif [ "$code" -ne 0 ]; then
        failed=1
        echo "$output" | grep -q "^FAIL" || fail python "ended with $code: $(echo "$output" | tail -n 1)"
    fi
    rm -rf "$cache"
fi
finish
