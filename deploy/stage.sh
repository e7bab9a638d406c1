#!/usr/bin/env bash
# Gathers in deploy/*/stage what the images are made of: the programs from target/dist, the part of libtorch that they
# need, MNIST, and garage, which it builds first where it is not in .garage/ yet (10 minutes on two cores, once).
#
#   deploy/stage.sh                  all of it
#   deploy/stage.sh cache trainer    for these images alone
set -euo pipefail
cd "$(dirname "$0")/.."

garage=2.5.0

say() { echo "stage: $*" >&2; }
die() { say "$*"; exit 1; }

# Programs of ours into an image's folder, as `make dist` stripped them.
programs() {
    local image=$1 program dist
    rm -rf "deploy/$image/stage"
    mkdir -p "deploy/$image/stage"
    for program in "${@:2}"; do
        dist=(target/dist/forebay-*/bin/"$program")
        [ -x "${dist[0]}" ] || die "target/dist has no $program: run 'make dist'"
        install -m 755 "${dist[0]}" "deploy/$image/stage/"
    done
}

# What libtorch_cpu.so needs, in the folders where it looks for it.
libtorch() {
    local to=deploy/trainer/stage/torch cuda=nvidia/cu13/lib
    mkdir -p "$to/torch/lib" "$to/$cuda"
    cp .torch/torch/lib/{libtorch_cpu,libtorch,libc10}.so .torch/torch/lib/libgomp*.so* "$to/torch/lib/"
    cp ".torch/$cuda"/{libcudart,libcupti}.so.13 "$to/$cuda/"
}

store() {
    rm -rf deploy/store/stage
    mkdir -p deploy/store/stage
    cp -r tests/data/mnist deploy/store/stage/
    # The folder's name says the version, so another one is built beside it.
    local root=$PWD/.garage/$garage
    if ! [ -x "$root/bin/garage" ]; then
        say "building garage $garage into .garage: 10 minutes on two cores, once"
        CARGO_TARGET_DIR=$root/build CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
            cargo install garage --version "$garage" --locked --no-default-features --features bundled-libs,lmdb \
            --root "$root" --no-track --quiet </dev/null
        rm -rf "$root/build"
    fi
    install -m 755 "$root/bin/garage" deploy/store/stage/
    strip --strip-debug deploy/store/stage/garage
}

for image in "${@:-cache trainer store}"; do
    # The default is one word of three.
    for name in $image; do
        case $name in
        cache) programs cache forebay-server forebay ;;
        trainer)
            programs trainer forebay-train
            libtorch
            ;;
        store) store ;;
        *) die "unknown image '$name': cache, trainer or store" ;;
        esac
    done
done
# Whatever the umask was: in a container another user reads them.
chmod -R a+rX deploy/*/stage
say "$(du -shc deploy/*/stage | tail -n 1 | cut -f1) in deploy/*/stage"
