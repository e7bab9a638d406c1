#!/usr/bin/env bash
# Makes the environment of the writers whose tables `make bench-real` reads, in .real/, from pinned versions (170 MB to
# download): pandas, Polars, DuckDB, Hugging Face datasets, deltalake. Nothing else uses it. Does nothing when it is there.
set -euo pipefail
cd "$(dirname "$0")/../.."

list=tests/real/writers.txt
cmp -s "$list" .real/installed.txt && exit
echo "real: installing $list into .real" >&2
rm -rf .real
python3 -m venv .real
.real/bin/pip install --quiet --disable-pip-version-check --no-input --no-deps --only-binary=:all: -r "$list" </dev/null
cp "$list" .real/installed.txt
