#!/usr/bin/env bash
# Makes the Python wheel in target/wheels: the package with its extension, and the programs forebay and
# forebay-server, all linked for an old glibc by zig, so that the wheel runs on any Linux of the last years.
# `wheel.sh check` looks at what it needs, installs it into a clean environment and reads an epoch with it.
# WHEEL_PROFILE=dev builds without optimisation, to try the packing.
set -euo pipefail
cd "$(dirname "$0")/.."

profile=${WHEEL_PROFILE:-shipped}
machine=$(uname -m)
target=${CARGO_TARGET_DIR:-target}/$machine-unknown-linux-gnu
wheels=target/wheels
glibc=2.28

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

check() {
    local said read
    clean=$(mktemp -d)
    trap 'rm -rf "$clean"' EXIT
    check_glibc "$clean/unpacked"
    python3 -m venv "$clean/venv"
    "$clean/venv/bin/pip" install --quiet --disable-pip-version-check --no-index --no-deps "$wheels"/forebay-*.whl
    cd "$clean"
    export PATH=$clean/venv/bin:$PATH
    unset FOREBAY_ENDPOINT PYTHONPATH
    forebay --version
    forebay-server --version
    said=$(forebay epoch "$1" --direct --json --batch 500 --seed 1 --ending drop)
    said=$(python -c 'import json, sys; print(json.load(sys.stdin)["epochs"][0]["order_digest"])' <<<"$said")
    read=$(python "$2" "$1")
    [ "$said" = "$read" ] || { echo "wheel-check: forebay says order digest $said, the loader $read" >&2; exit 1; }
    echo "wheel-check: an epoch has the order digest $read"
    python - <<'EOF'
from importlib.metadata import entry_points
(point,) = entry_points(group="fsspec.specs", name="forebay")
assert point.value == "forebay.fs:ForebayFileSystem", point
EOF
    echo "wheel-check: fsspec finds the filesystem"
    # A node of its own, by the server that came with the wheel.
    export FOREBAY_RUNTIME_DIR=$clean/run FOREBAY_CACHE_DIR=$clean/cache
    said=$(PATH=/usr/bin:/bin "$clean/venv/bin/python" - "$1" <<'EOF'
import sys, forebay
node = forebay.local_node()
print(forebay.dataset(sys.argv[1]).num_rows)
node.stop()
EOF
    )
    [ "$said" = 10000 ] || { echo "wheel-check: a node of its own serves '$said' rows" >&2; exit 1; }
    echo "wheel-check: a node of its own serves $said rows"
}

case ${1:-build} in
build) build ;;
check) check "file://$PWD/tests/data/mnist/test" "$PWD/python/examples/epoch.py" ;;
*) echo "unknown argument '$1': check or nothing" >&2; exit 1 ;;
esac
