#!/usr/bin/env bash
# Runs clients of S3 against a node's endpoint, and the tests of ceph/s3-tests that read, where FOREBAY_S3_TESTS names its
# folder. Arguments go to pytest. `scripts/setup.sh clients` installs what this needs into .clients/.
set -euo pipefail
cd "$(dirname "$0")/../.."

cargo build --quiet --workspace --features forebay-tests/gpu --bins --lib --examples
export FOREBAY_BIN=${FOREBAY_BIN:-$(realpath "${CARGO_TARGET_DIR:-target}")/debug} PYTHONDONTWRITEBYTECODE=1
# torch as setup.sh unpacked it for the trainer, for the clients that import it.
export PYTHONPATH=$PWD/.torch LD_LIBRARY_PATH=$PWD/.venv/torch-stand-ins
unset FOREBAY_ENDPOINT

.clients/bin/python -m pytest -p no:cacheprovider -q -rs "$@" tests/clients
if [ -n "${FOREBAY_S3_TESTS:-}" ]; then
    .clients/bin/python tests/clients/s3_tests.py "$FOREBAY_S3_TESTS"
else
    echo "clients: ceph/s3-tests are left out: FOREBAY_S3_TESTS names no folder of them" >&2
fi
