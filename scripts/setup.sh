#!/usr/bin/env bash
# Installs what building Forebay needs and is not there yet; says what it installs; does nothing when all is there.
# Every make target runs it by itself.
#
#   scripts/setup.sh          system packages, and libtorch in .torch/
#   scripts/setup.sh tests    also .venv/ with pyarrow and TensorBoard's reader, which tests compare with, pytest and mypy,
#                             what torch needs to be imported from .torch/, the frameworks that the Python package is
#                             tested with; and etcd
#   scripts/setup.sh clients  also .clients/ with clients of S3, which tests point at a node; s3cmd and rclone
#   scripts/setup.sh nginx    also nginx, which a benchmark measures
#   scripts/setup.sh wheel    also maturin and zig in .venv/, which pack the Python wheel
#   scripts/setup.sh check    also the rustup components clippy and rustfmt
#   scripts/setup.sh nccl     also .nccl/ with the CUDA headers that the NCCL plugin is compiled with
set -euo pipefail
cd "$(dirname "$0")/.."

rust_minimum=1.95
torch=2.11.0 # What tch =0.24.0 is made for. Other versions do not compile, or die when loaded.
torch_wheels=("torch==$torch" nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85)
# From pyelftools on: for torch, imported from .torch/.
# deltalake (52 MB) writes the Delta tables that tests read.
test_wheels=(pyarrow==26.0.1 deltalake==1.6.6 arro3-core==0.9.1 deprecated==1.3.1 xxhash==4.1.0 pytest==9.2.0 pytest-xdist==3.8.0 execnet==2.1.2 mypy==2.4.1 pyelftools==0.33 typing_extensions==4.16.0 sympy==1.14.0)
# Frameworks that the Python package is tested with (30 MB), and what they import; torch comes from .torch/.
framework_wheels=(torchdata==0.11.0 lightning==2.6.6 lightning-utilities==0.15.3 torchmetrics==1.9.0 accelerate==1.15.0
    transformers==5.23.0 huggingface-hub==2.4.0 tokenizers==0.23.3 safetensors==0.8.0 regex==2026.11.15 psutil==7.2.2
    fsspec==2026.9.0 filelock==4.2.11 pyyaml==6.0.3 tqdm==4.70.1 jinja2==3.1.6 markupsafe==3.0.4 networkx==3.6.1
    httpx2==2.16.2 httpcore2==2.16.2 h11==0.16.0 anyio==4.16.0 idna==3.20 truststore==0.10.5 click==8.5.1)
# Readers of Arrow, and loops that have interfaces for loaders (42 MB), with what they import.
consumer_wheels=(pandas==3.1.1 python-dateutil==4.0.0 six==1.17.0 duckdb==2.0.0 torchtitan==0.3.0 tyro==1.0.17
    docstring-parser==0.18.0 grain==0.2.18 array-record==0.8.6 etils==1.15.0 cloudpickle==3.1.2 portpicker==1.6.0)
# More of both: Polars, dask, matplotlib and Ray (170 MB), with what they import.
reader_wheels=(polars==2.1.0 polars-runtime-32==2.1.0 matplotlib==3.11.2 contourpy==1.3.3 cycler==0.12.1 fonttools==4.68.0
    kiwisolver==1.5.1 pillow==13.0.0 pyparsing==3.3.3
    dask==2026.8.0 importlib_metadata==10.2.0 lazy-importer==0.1.0 locket==1.0.0 partd==1.4.2 toolz==1.2.0 zipp==4.1.2
    ray==2.60.0 jsonschema==4.26.0 jsonschema-specifications==2025.9.1 msgpack==1.2.4 referencing==0.37.0 requests==2.34.2
    rpds-py==2026.9.1 attrs==26.1.0 certifi==2026.10.18 charset-normalizer==3.5.2 urllib3==2.8.0 tensorboardX==2.6.5
    pydantic==2.14.3 pydantic_core==2.50.4 typing-inspection==0.4.5 annotated-types==0.8.0)
# Clients of S3, and what the tests of ceph/s3-tests import. Each names all that it needs, so that pip chooses nothing.
client_wheels=(boto3==1.43.117 botocore==1.43.117 s3transfer==0.19.3 awscli==1.46.3 s3fs==2026.9.0 aiobotocore==3.10.0
    aiohappyeyeballs==2.7.1 aiohttp==3.14.5 aioitertools==0.13.0 aiosignal==1.4.0 attrs==26.1.0 braceexpand==0.1.7
    certifi==2026.10.18 charset-normalizer==3.5.2 colorama==0.4.6 docutils==0.19 duckdb==1.4.4 duckdb-ext==0.1.2
    duckdb-ext-httpfs==1.4.4.20260205 s3torchconnector==1.5.0 s3torchconnectorclient==1.5.0 frozenlist==1.8.0
    fsspec==2026.9.0 idna==3.20 iniconfig==2.3.1 isodate==0.7.2 jmespath==1.1.0 lxml==6.1.3 multidict==7.2.1
    munch==4.0.0 numpy==2.4.6 packaging==26.3 pluggy==1.7.0 polars==2.1.0 polars-runtime-32==2.1.0 propcache==0.5.4
    pyarrow==26.0.1 pyasn1==0.6.5 Pygments==2.21.0 pytest==9.2.0 python-dateutil==2.9.0.post0 pytz==2026.6
    PyYAML==6.0.3 requests==2.34.2 rsa==4.7.2 safetensors==0.8.0 six==1.17.0 typing_extensions==4.16.0
    urllib3==2.8.0 webdataset==1.0.2 wrapt==2.5.2 yarl==1.25.1)
wheel_wheels=(maturin==1.16.0 cargo-zigbuild==0.24.0 ziglang==0.17.1) # zig links for an old glibc.
nccl_wheels=(nvidia-cuda-crt==13.0.88 nvidia-cuda-cccl==13.0.85) # Headers alone; the rest came with libtorch's.
# Enough of TensorBoard to read event files (90 MB); its server's dependencies are left out.
event_wheels=(tensorboard==2.20.0 protobuf==7.36.2 numpy==2.4.6 absl-py==2.5.1 packaging==26.3)

say() { echo "setup: $*" >&2; }
die() { say "$*"; exit 1; }

# --- Rust -----------------------------------------------------------------------------------------------------------
need_rust() {
    local version
    version=$(cargo --version 2>/dev/null | cut -d' ' -f2) ||
        die "cargo is missing: install Rust $rust_minimum or newer, by rustup or your system's packages"
    printf '%s\n%s\n' "$rust_minimum" "$version" | sort -CV ||
        die "Rust $version is too old, $rust_minimum or newer is needed: run 'rustup update stable'"
}

need_components() {
    local missing=()
    cargo clippy --version >/dev/null 2>&1 || missing+=(clippy)
    cargo fmt --version >/dev/null 2>&1 || missing+=(rustfmt)
    [ ${#missing[@]} -eq 0 ] && return
    command -v rustup >/dev/null ||
        die "cargo lacks ${missing[*]}, and there is no rustup: install them with your system's packages"
    say "rustup component add ${missing[*]}"
    rustup component add "${missing[@]}" || die "cannot install ${missing[*]}: run 'rustup component add ${missing[*]}'"
}

# --- system packages ------------------------------------------------------------------------------------------------
need_packages() {
    local missing=()
    command -v g++ >/dev/null || missing+=(g++)
    command -v make >/dev/null || missing+=(make)
    command -v cmake >/dev/null || missing+=(cmake)
    command -v pkg-config >/dev/null || missing+=(pkg-config)
    command -v protoc >/dev/null || missing+=(protobuf-compiler)
    [ -e /usr/include/google/protobuf/descriptor.proto ] || missing+=(libprotobuf-dev)
    # The S3 client does not start without a CA bundle, not even for http.
    [ -e /etc/ssl/certs/ca-certificates.crt ] || missing+=(ca-certificates)
    if ! command -v python3 >/dev/null; then
        missing+=(python3 python3-venv)
    elif ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
        missing+=(python3-venv)
    fi
    case " $* " in *" clients "*)
        command -v s3cmd >/dev/null || missing+=(s3cmd)
        command -v rclone >/dev/null || missing+=(rclone)
        ;;
    esac
    case " $* " in *" nginx "*) command -v nginx >/dev/null || [ -x /usr/sbin/nginx ] || missing+=(nginx) ;; esac
    case " $* " in *" tests "*)
        command -v etcd >/dev/null || missing+=(etcd-server)
        # Networks that are cut, disks that are full or refuse, names that cannot be resolved.
        command -v ip >/dev/null || missing+=(iproute2)
        command -v iptables >/dev/null || missing+=(iptables)
        command -v chattr >/dev/null || missing+=(e2fsprogs)
        { command -v mount && command -v unshare; } >/dev/null || missing+=(mount util-linux)
        # TLS from other hands.
        command -v curl >/dev/null || missing+=(curl)
        command -v openssl >/dev/null || missing+=(openssl)
        # The sabotages of make mutate are patches.
        command -v patch >/dev/null || missing+=(patch)
        ;;
    esac
    [ ${#missing[@]} -eq 0 ] && return
    command -v apt-get >/dev/null || die "please install what these Debian packages hold: ${missing[*]}"
    local root=()
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null || die "please run as root: apt-get install ${missing[*]}"
        root=(sudo)
    fi
    say "apt-get install ${missing[*]}"
    "${root[@]}" apt-get -qq update </dev/null
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get -qq install -y --no-install-recommends "${missing[@]}" </dev/null >/dev/null
}

# --- Python ---------------------------------------------------------------------------------------------------------
venv() {
    if ! [ -x .venv/bin/pip ] || ! .venv/bin/python -c '' 2>/dev/null; then
        say "making .venv"
        rm -rf .venv
        python3 -m venv .venv
    fi
}

pip_install() { .venv/bin/pip install --quiet --disable-pip-version-check --no-input "$@" </dev/null; }

need_torch() {
    local found=none
    [ -f .torch/torch/version.py ] && found=$(sed -n "s/^__version__ = '\(.*\)'/\1/p" .torch/torch/version.py)
    case $found in
    "$torch" | "$torch"+*)
        [ -e .torch/torch/lib/libtorch_cpu.so ] && [ -e .torch/nvidia/cu13/lib/libcudart.so.13 ] && return
        ;;
    esac
    [ "$(uname -sm)" = "Linux x86_64" ] || die "libtorch is installed for Linux x86_64 only, this is $(uname -sm)"
    say "installing libtorch $torch into .torch (found: $found): three wheels, 0.5 GB to download, 1.2 GB on disk"
    venv
    rm -rf .torch.partial
    # Only the libraries and headers are used, so the wheels for any Python do; --no-deps leaves 3 GB of CUDA out.
    local glibc platforms=(--platform manylinux2014_x86_64)
    for glibc in {17..34}; do platforms+=(--platform "manylinux_2_${glibc}_x86_64"); done
    pip_install --no-deps --no-compile --only-binary=:all: --target .torch.partial \
        --python-version 3.11 --implementation cp --abi cp311 --abi none "${platforms[@]}" "${torch_wheels[@]}"
    rm -rf .torch
    mv .torch.partial .torch
}

need_test_wheels() {
    local stamp=.venv/forebay-tests
    local wheels="${test_wheels[*]} ${event_wheels[*]} ${framework_wheels[*]} ${consumer_wheels[*]} ${reader_wheels[*]}"
    if [ -x .venv/bin/python ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wheels; torch $torch" ]; then return; fi
    venv
    say "installing $wheels into .venv"
    pip_install --only-binary=:all: "${test_wheels[@]}"
    pip_install --only-binary=:all: --no-deps "${event_wheels[@]}" "${framework_wheels[@]}" "${consumer_wheels[@]}" \
        "${reader_wheels[@]}"
    .venv/bin/python scripts/torch_stand_ins.py .torch .venv/torch-stand-ins
    echo "$wheels; torch $torch" >"$stamp"
}

need_clients() {
    local stamp=.clients/forebay-clients
    [ "$(cat "$stamp" 2>/dev/null)" = "${client_wheels[*]}" ] && return
    say "installing ${client_wheels[*]} into .clients"
    rm -rf .clients
    python3 -m venv .clients
    .clients/bin/pip install --quiet --disable-pip-version-check --no-input --no-deps "${client_wheels[@]}" </dev/null
    echo "${client_wheels[*]}" >"$stamp"
}

need_wheel_maker() {
    local stamp=.venv/forebay-wheel
    [ "$(cat "$stamp" 2>/dev/null)" = "${wheel_wheels[*]}" ] && return
    venv
    say "installing ${wheel_wheels[*]} into .venv: 110 MB to download"
    pip_install --only-binary=:all: "${wheel_wheels[@]}"
    echo "${wheel_wheels[*]}" >"$stamp"
}

need_cuda_headers() {
    local stamp=.nccl/forebay-nccl
    [ "$(cat "$stamp" 2>/dev/null)" = "${nccl_wheels[*]}" ] && return
    venv
    say "installing ${nccl_wheels[*]} into .nccl: 3 MB to download, 15 MB on disk"
    rm -rf .nccl.partial .nccl
    pip_install --no-deps --no-compile --only-binary=:all: --target .nccl.partial "${nccl_wheels[@]}"
    echo "${nccl_wheels[*]}" >.nccl.partial/forebay-nccl
    mv .nccl.partial .nccl
}

need_packages "$@"
need_rust
need_torch
for extra in "$@"; do
    case $extra in
    tests) need_test_wheels ;;
    check) need_components ;;
    nccl) need_cuda_headers ;;
    clients) need_clients ;;
    nginx) ;;
    wheel) need_wheel_maker ;;
    *) die "unknown argument '$extra': tests, check, clients, nginx, nccl, wheel or nothing" ;;
    esac
done
