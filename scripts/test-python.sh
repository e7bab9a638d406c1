#!/usr/bin/env bash
# Tests the Python package against servers of this workspace, with the extension as cargo builds it. Arguments go to
# pytest; without any, all tests run in two processes, each with nodes and folders of its own. scripts/setup.sh tests
# installs what this needs.
set -euo pipefail
cd "$(dirname "$0")/.."

# As in `make test`, so that nothing is compiled twice.
cargo build --quiet --workspace --features forebay-tests/gpu --bins --lib --examples
target=$(realpath "${CARGO_TARGET_DIR:-target}")/debug
ln -sfn "$target/lib_forebay.so" python/forebay/_forebay.so

# torch as setup.sh unpacked it for the trainer, with stand-ins for the CUDA libraries that were left out.
export PYTHONPATH=$PWD/python:$PWD/.torch LD_LIBRARY_PATH=$PWD/.venv/torch-stand-ins
# Bytecode is kept, but not beside the sources: to compile torch takes longer than to import it, and a hundred processes do.
export FOREBAY_BIN=$target PYTHONPYCACHEPREFIX=$target/pycache
unset FOREBAY_ENDPOINT PYTHONDONTWRITEBYTECODE

[ $# -gt 0 ] || set -- -n 2 --dist worksteal

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
