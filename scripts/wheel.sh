#!/usr/bin/env bash
# Makes the Python wheel in target/wheels: the package with its extension, and the programs forebay and
# forebay-server, all linked for an old glibc by zig, so that the wheel runs on any Linux of the last years.
# `wheel.sh check` looks at what it needs, installs it into a clean environment, reads an epoch with it and
# runs the examples.
# WHEEL_PROFILE=dev builds without optimisation, to try the packing.
set -euo pipefail
cd "$(dirname "$0")/.."

profile=${WHEEL_PROFILE:-shipped}
machine=$(uname -m)
target=${CARGO_TARGET_DIR:-target}/$machine-unknown-linux-gnu
wheels=target/wheels
glibc=2.28
root=$PWD examples=$PWD/python/examples data=file://$PWD/tests/data/mnist/test

build() {
    export PATH=$PWD/.venv/bin:$PATH
    cargo-zigbuild zigbuild --profile "$profile" --target "$machine-unknown-linux-gnu.$glibc" --workspace --bin forebay --bin forebay-server
    # maturin puts what lies in a folder of this name where pip looks for programs.
    local scripts=python/forebay._forebay.data/scripts built=$target/$profile program
    [ "$profile" = dev ] && built=$target/debug
    mkdir -p "$scripts"
    for program in forebay forebay-server; do
        strip --strip-debug -o "$scripts/$program" "$built/$program"
    done
    rm -f "$wheels"/forebay-*.whl python/forebay/_forebay.so
    maturin build --manifest-path python/Cargo.toml --profile "$profile" --out "$wheels" \
        --zig --target "$machine-unknown-linux-gnu" --compatibility "manylinux_${glibc/./_}"
}

# Every program and library of the wheel asks for symbols of this glibc at most.
check_glibc() {
    local unpacked=$1 file newest
    python3 -m zipfile -e "$wheels"/forebay-*.whl "$unpacked"
    while read -r file; do
        newest=$(objdump -T "$file" | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -V | tail -n 1)
        printf '%s\n%s\n' "$newest" "$glibc" | sort -CV ||
            { echo "wheel-check: $file needs glibc $newest, the wheel promises $glibc" >&2; exit 1; }
        echo "wheel-check: ${file##*/} needs glibc $newest"
    done < <(find "$unpacked" -name '*.so' -o -path '*/scripts/*' -type f)
}

# The examples, a few steps of each, with the installed package and its server; torch and the frameworks are those
# of `setup.sh tests`. Only continue_run.py is left out: it needs a checkpoint of forebay-train, which no wheel has.
check_examples() {
    local way packages=$clean/venv/lib/python3.11/site-packages
    if [ ! -d "$packages" ] || [ ! -d "$root/.venv/torch-stand-ins" ]; then
        echo "wheel-check: no torch for this Python, so no examples (Python 3.11, scripts/setup.sh tests)"
        return
    fi
    # Python looks into the folders of a .pth last: the installed package wins.
    printf '%s\n' "$root/.torch" "$root/.venv/lib/python3.11/site-packages" >"$packages/torch.pth"
    export LD_LIBRARY_PATH=$root/.venv/torch-stand-ins OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TMPDIR=$clean
    python -c 'import sys, forebay.torch; assert forebay.__file__.startswith(sys.prefix), forebay.__file__'
    run_example 1 train.py "$data" train.ckpt 3
    run_example 1 data_parallel.py "$data" data_parallel.ckpt 3
    run_example 2 ddp.py "$data" ddp.ckpt 3
    run_example 2 mesh.py "$data" 2 mesh.ckpt 3
    run_example 2 context.py "$data" 2 context.ckpt 3
    run_example 2 pipeline.py "$data" pipeline.ckpt
    run_example 2 distributed_sampler.py "$data" distributed_sampler.ckpt 3
    for way in here workers sampler; do run_example 1 stateful_dataloader.py "$data" "$way.ckpt" "$way"; done
    run_example 1 torchdata_nodes.py "$data" torchdata_nodes.ckpt 3
    run_example 1 grain_pipeline.py "$data" grain_pipeline.ckpt 3
    run_example 1 lightning_resume.py "$data" lightning 10
    run_example 2 hf_trainer.py "$data" hf 3
    run_example 2 accelerate_loop.py "$data" accelerate 3
    python - <<'EOF'
import pathlib
import pyarrow as pa
import pyarrow.parquet as pq
pathlib.Path("tokens").mkdir()
tokens = pa.array([range(i, i + 17) for i in range(96)], pa.list_(pa.int32(), 17))
pq.write_table(pa.table({"tokens": tokens}), "tokens/0.parquet")
EOF
    run_example 2 torchtitan_tokens.py "file://$clean/tokens" torchtitan 3
    # Ray gives its workers the endpoint's name; its processes outlive the example a little, and so must their folder.
    export FOREBAY_ENDPOINT=local RAY_USAGE_STATS_ENABLED=0 TMPDIR=/tmp
    run_example 1 ray_train.py "$data" ray 3
    run_example 1 ray_data.py "$data"
    unset FOREBAY_ENDPOINT
}

# Runs an example in a number of processes, and shows what rank 0 says.
run_example() {
    local processes=$1 example=$2 said
    local start=(python)
    [ "$processes" = 1 ] || start=(python -m torch.distributed.run --standalone --nproc-per-node "$processes")
    said=$("${start[@]}" "$examples/$example" "${@:3}")
    [ -n "$said" ] || { echo "wheel-check: $example says nothing" >&2; exit 1; }
    echo "wheel-check: $example: $said"
}

check() {
    local said read
    clean=$(mktemp -d)
    trap 'rm -rf "$clean"' EXIT
    check_glibc "$clean/unpacked"
    python3 -m venv "$clean/venv"
    "$clean/venv/bin/pip" install --quiet --disable-pip-version-check --no-index --no-deps "$wheels"/forebay-*.whl
    cd "$clean"
    export PATH=$clean/venv/bin:$PATH
    unset FOREBAY_ENDPOINT FOREBAY_SERVER PYTHONPATH
    forebay --version
    forebay-server --version
    said=$(forebay epoch "$data" --direct --json --batch 500 --seed 1 --ending drop)
    said=$(python -c 'import json, sys; print(json.load(sys.stdin)["epochs"][0]["order_digest"])' <<<"$said")
    read=$(python "$examples/epoch.py" "$data")
    [ "$said" = "$read" ] || { echo "wheel-check: forebay says order digest $said, the loader $read" >&2; exit 1; }
    echo "wheel-check: an epoch has the order digest $read"
    python - <<'EOF'
from importlib.metadata import entry_points
(point,) = entry_points(group="fsspec.specs", name="forebay")
assert point.value == "forebay.fs:ForebayFileSystem", point
EOF
    echo "wheel-check: fsspec finds the filesystem"
    # A node of its own, by the server that came with the wheel.
    export FOREBAY_RUNTIME_DIR=$clean/run FOREBAY_CACHE_DIR=$clean/cache FOREBAY_IDLE_S=10
    said=$(PATH=/usr/bin:/bin "$clean/venv/bin/python" - "$data" <<'EOF'
import sys, forebay
node = forebay.local_node()
print(forebay.dataset(sys.argv[1]).num_rows)
node.stop()
EOF
    )
    [ "$said" = 10000 ] || { echo "wheel-check: a node of its own serves '$said' rows" >&2; exit 1; }
    echo "wheel-check: a node of its own serves $said rows"
    check_examples
    python -c 'import forebay; forebay.local_node().stop()'
}

case ${1:-build} in
build) build ;;
check) check ;;
*) echo "unknown argument '$1': check or nothing" >&2; exit 1 ;;
esac
