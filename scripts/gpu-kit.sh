#!/usr/bin/env bash
# Gathers in target/gpu-kit what tests/gpu/run.sh needs on a machine with a GPU, where there is no Rust: the programs, the
# plugin, the Python package and MNIST. `make gpu-kit` builds them first.
set -euo pipefail
cd "$(dirname "$0")/.."

kit=target/gpu-kit
rm -rf "$kit"
mkdir -p "$kit"
cp target/release/forebay-train target/release/forebay-gpu-check "$kit/"
cp target/nccl/release/libforebay_c10d_nccl.so "$kit/"
cp tests/gpu/run.sh tests/gpu/loader.py "$kit/"
cp -r tests/data/mnist "$kit/"
mkdir -p "$kit/python"
cp -r python/forebay "$kit/python/"
rm -rf "$kit"/python/forebay/{_forebay.so,__pycache__}
cp target/release/lib_forebay.so "$kit/python/forebay/_forebay.so"
cp target/release/forebay-server "$kit/"
strip --strip-debug "$kit"/{forebay-train,forebay-gpu-check,forebay-server,python/forebay/_forebay.so}
echo "gpu-kit: $kit, $(du -sh "$kit" | cut -f1): copy it to the machine and run run.sh there" >&2
