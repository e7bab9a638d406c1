#!/usr/bin/env bash
# Is training from Rust the training that Python does? The same network, parameters and batches, on two ranks over Gloo,
# once by forebay-c10d and once by PyTorch's DistributedDataParallel, started by the same torchrun: the parameters after
# 50 steps must be equal bit for bit, and the step must take no longer (the worse model's ratio is judged, PASS or FAIL).
# Then torchrun starts forebay-train itself.
#
# It needs the whole of torch for Python, 4.6 GB, which goes into .parity/ (git ignores it; delete it when done).
#   STEPS [50]   ROUNDS [3]: how often each half runs, in turn.   BIN [target/release]: where the programs are.
set -euo pipefail
cd "$(dirname "$0")/../.."

steps=${STEPS:-50}
rounds=${ROUNDS:-3}
bin=${BIN:-target/release}
torch=torch==2.11.0
free_gb_needed=8

die() {
    echo "parity: $*" >&2
    exit 1
}

if [ "$(cat .parity/installed 2>/dev/null)" != "$torch" ]; then
    free_gb=$(df --output=avail -BG . | tail -n 1 | tr -dc 0-9)
    [ "$free_gb" -ge "$free_gb_needed" ] || die "$torch needs $free_gb_needed GB of disk, here are $free_gb GB"
    echo "parity: installing $torch for Python into .parity, 4.6 GB" >&2
    rm -rf .parity
    python3 -m venv .parity
    .parity/bin/pip install --quiet --disable-pip-version-check --no-input --no-cache-dir "$torch" </dev/null
    echo "$torch" >.parity/installed
fi
for program in forebay-parity forebay-train; do
    [ -x "$bin/$program" ] || die "no $bin/$program: run 'make build'"
done

# Python says at length that there is no numpy, which nothing here needs.
export PYTHONWARNINGS=ignore OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=lo TORCH_CPP_LOG_LEVEL=ERROR
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
torchrun() { .parity/bin/torchrun --standalone --nproc-per-node 2 "$@" </dev/null; }

for model in convnet resnet18; do
    "$bin/forebay-parity" "$folder" "$model" "$steps"
    for round in $(seq "$rounds"); do
        torchrun --no-python "$bin/forebay-parity" "$folder" "$model" "$steps"
        torchrun tests/parity/train.py "$folder" "$model" "$steps"
        for half in rust python; do
            mv "$folder/$model.$half.steps" "$folder/$model.$half.steps.$round"
            sha256sum <"$folder/$model.$half.parameters" | cut -c1-16 >>"$folder/$model.$half.hashes"
        done
        cmp "$folder/$model.rust.parameters" "$folder/$model.python.parameters" ||
            die "$model: the parameters differ after $steps steps"
    done
    echo "parity: $model: parameters after $steps steps are equal bit for bit: $(sort -u "$folder/$model".*.hashes)"
done

mnist=$PWD/tests/data/mnist
torchrun --no-python "$bin/forebay-train" --direct --train "file://$mnist/train" --test "file://$mnist/test" \
    --epochs 1 --report "$folder/train.json"
accuracy=$(sed -n 's/.*"test_accuracy": *\([0-9.]*\).*/\1/p' "$folder/train.json" | tail -n 1)
[ -n "$accuracy" ] || die "torchrun --no-python forebay-train left no accuracy"
echo "parity: torchrun --no-python forebay-train: test accuracy $accuracy"

mkdir -p target/bench
.parity/bin/python tests/parity/report.py "$folder" "$steps" "$rounds" >target/bench/train-parity.json
echo "parity: target/bench/train-parity.json"
ratio=$(sed -n '/"parity_step_time_ratio"/,/}/s/.*"value": *\([0-9.e+-]*\).*/\1/p' target/bench/train-parity.json)
if [ -n "$ratio" ] && awk -v ratio="$ratio" 'BEGIN { exit !(ratio <= 1.0) }'; then
    echo "PASS parity: equal bit for bit, step time Rust / Python $ratio, promised at most 1.0"
else
    echo "FAIL parity: step time Rust / Python ${ratio:-missing}, promised at most 1.0"
    exit 1
fi
