#!/usr/bin/env bash
# Tests the Python package against servers of this workspace, with the extension as cargo builds it. Arguments go to
# pytest. scripts/setup.sh tests installs what this needs.
set -euo pipefail
cd "$(dirname "$0")/.."

# As in `make test`, so that nothing is compiled twice.
cargo build --quiet --workspace --bins --lib --examples
target=$(realpath "${CARGO_TARGET_DIR:-target}")/debug
ln -sfn "$target/lib_forebay.so" python/forebay/_forebay.so

# torch as setup.sh unpacked it for the trainer, with stand-ins for the CUDA libraries that were left out.
export PYTHONPATH=$PWD/python:$PWD/.torch LD_LIBRARY_PATH=$PWD/.venv/torch-stand-ins
export FOREBAY_BIN=$target PYTHONDONTWRITEBYTECODE=1
unset FOREBAY_ENDPOINT

cd python
python=../.venv/bin/python
# Types are checked beside the tests, with what processor time these leave.
said=$(mktemp)
trap 'rm -f "$said"' EXIT
(
    nice -n 19 "$python" -m mypy --no-incremental --cache-dir=/dev/null forebay examples tests
    nice -n 19 "$python" -m mypy.stubtest forebay._forebay
) >"$said" 2>&1 &
types=$!
failed=0
"$python" -m pytest -p no:cacheprovider "$@" || failed=$?
wait "$types" || failed=$?
cat "$said"
exit "$failed"
