# The only commands; CI calls the same ones. Each sets up what it needs by itself.
.DEFAULT_GOAL := help
.PHONY: help setup build demo demo-debug test test-clients test-readers check attack bench-cold bench-content bench-epoch bench-order bench-peers bench-python bench-raw bench-real bench-store bench-train bench-warm mutants mutate nccl gpu-kit parity bench-cluster dist wheel wheel-check images compose-demo clean bench-tls

# Wherever cargo is set to build elsewhere: the scripts look for what was built here.
export CARGO_TARGET_DIR := $(CURDIR)/target

DEMO_ARGS ?=
BENCH_ARGS ?=
MUTANTS_ARGS ?=
MUTATE_ARGS ?=

# The programs that are shipped, and those that the demo needs. Built by name, but with the whole workspace selected: cargo
# then gives each dependency the same features as in every other build, and compiles none twice.
SHIPPED := --bin forebay-server --bin forebay --bin forebay-train
DEMO := $(SHIPPED) --bin forebay-demo

# The programs that tests run. There are no examples, but with --examples cargo gives each dependency the same features as
# in `cargo test`, where proptest asks for more. Else arrow and every crate that uses it would be compiled twice.
TESTED := --workspace --features forebay-tests/gpu --bins --lib --examples

help: ## Say what there is
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 22

setup: ## Install what building needs: system packages, libtorch in .torch/
	@scripts/setup.sh

build: setup ## Build everything, optimised, into target/release
	cargo build --release --workspace --bins --features forebay-tests/gpu

demo: setup ## MNIST from S3 through the cache into a training run of two ranks (DEMO_ARGS=--short for CI)
	cargo build --profile quick --workspace --no-default-features $(DEMO)
	target/quick/forebay-demo $(DEMO_ARGS)

demo-debug: setup ## The demo with the programs that the tests run, which are slower and need no second build
	cargo build $(TESTED)
	target/debug/forebay-demo $(DEMO_ARGS)

test: ## Build and run all tests, those of the Python package last
	@scripts/setup.sh tests
	cargo build $(TESTED)
	cargo test --workspace --features forebay-tests/gpu --no-fail-fast
	@scripts/test-python.sh

test-clients: ## Run clients of S3 against a node's endpoint (installs them in .clients); FOREBAY_S3_TESTS=FOLDER: also ceph/s3-tests there
	@scripts/setup.sh tests clients
	@tests/clients/run.sh

test-readers: ## Run those tests of the Python package that need Polars, dask, matplotlib or Ray, with 50 kills of a training process for the 4 of make test
	@scripts/setup.sh tests
	@FOREBAY_TEST_KILLS=50 scripts/test-python.sh tests/test_readers.py tests/test_ray.py tests/test_fs.py tests/test_plot.py tests/test_process.py

check: ## Formatting, lints, and the rules in tests/tests/tidy with their figures
	@scripts/setup.sh check
	cargo fmt --all --check
	cargo fmt --check --manifest-path trainer/c10d-nccl/Cargo.toml
	cargo clippy --workspace --all-targets --features forebay-tests/gpu -- -D warnings
	cargo clippy --workspace --no-default-features $(DEMO) -- -D warnings
	cargo test -q --workspace --features forebay-tests/gpu --test tidy -- --nocapture

attack: build ## Attack a node as strangers would (silence, floods, bombs) beside a good reader: target/bench/attack.json
	target/release/forebay-attack $(BENCH_ARGS)

bench-cold: build ## Measure cold epochs beside reading S3 directly, with 1 to 32 requests at once (BENCH_ARGS=--check: against stored figures)
	target/release/forebay-bench-store --only cold,narrow $(BENCH_ARGS)

bench-content: build ## Read one dataset in every way, under every fault, and compare content digests with pyarrow's
	@scripts/setup.sh tests
	target/release/forebay-bench-content $(BENCH_ARGS)

bench-epoch: build ## Time epochs through the cache, cold and warm, beside reading S3 directly
	target/release/forebay-bench-epoch $(BENCH_ARGS)

bench-order: build ## Measure the order: speed, quality of the shuffle, resuming, 200 kills
	target/release/forebay-bench-order $(BENCH_ARGS)

bench-peers: build ## Measure warm epochs beside pyarrow, torch's DataLoader, HF datasets, LitData, Mosaic, DuckDB, nginx (installs each by itself in .peers)
	@tests/peers/setup.sh
	cargo build --release --workspace --bins --lib --features forebay-tests/gpu
	target/release/forebay-bench-peers $(BENCH_ARGS)

bench-python: setup ## Measure the Python loader beside the Rust loader: speed, hand-over of a batch, memory, 50 kills
	@scripts/setup.sh tests
	cargo build --release --workspace --bins --lib
	target/release/forebay-bench-python $(BENCH_ARGS)

bench-raw: build ## Measure the S3 endpoint beside nginx's slice cache, raw TCP, bare hyper and direct reads (installs nginx)
	@scripts/setup.sh nginx
	target/release/forebay-bench-raw $(BENCH_ARGS)

bench-real: build ## Read tables of real writers beside pyarrow and deltalake; what growth and filters cost (installs the writers in .real)
	@scripts/setup.sh tests
	@tests/real/setup.sh
	@tests/before.sh 8f7afaf forebay
	target/release/forebay-bench-real $(addprefix --before ,$(wildcard target/before/8f7afaf/release/forebay)) $(BENCH_ARGS)

bench-store: build ## Measure the disk cache: hits, amplification, restarts; 200 kills, 1,000 damaged files, failing disks and S3
	target/release/forebay-bench-store $(BENCH_ARGS)

bench-tls: build ## Measure what TLS costs: warm epochs with and without it, processor time, handshakes
	@tests/before.sh d3b0a20 forebay forebay-server
	target/release/forebay-bench-tls $(addprefix --before ,$(wildcard target/before/d3b0a20/release)) $(BENCH_ARGS)

bench-train: build ## Measure the trainer: accelerator utilisation, lost ranks, resumes, 100 crashes while writing checkpoints
	target/release/forebay-ddp-figures target/bench
	target/release/forebay-bench-train $(BENCH_ARGS)

bench-warm: build ## Measure warm epochs beside raw TCP, memcpy and reads of a file (BENCH_ARGS=--check: against stored figures)
	target/release/forebay-bench-warm $(BENCH_ARGS)

nccl: setup ## Build the plugin for GPUs (no GPU needed): target/nccl/release, where the programs find it
	@scripts/setup.sh nccl
	cargo build --release --manifest-path trainer/c10d-nccl/Cargo.toml --target-dir target/nccl

gpu-kit: build nccl ## Gather in target/gpu-kit what a machine with a GPU and torch 2.11 needs: copy it there, start run.sh
	cargo build --release --workspace --bins --lib --features forebay-tests/gpu
	@scripts/gpu-kit.sh

mutants: setup ## Change the modules that decide on rows, places and checkpoints, a little each time; say what no unit test notices (MUTANTS_ARGS="CRATE..")
	@scripts/mutants.py $(MUTANTS_ARGS)

mutate: setup ## Sabotage a copy of the code, patch by patch, and say which test noticed (MUTATE_ARGS="NAME.." or --list)
	@scripts/setup.sh tests
	@scripts/mutate.py $(MUTATE_ARGS)

parity: build ## Train in Rust and in Python alike, compare bit for bit (installs all of torch, 4.6 GB, in .parity)
	@tests/parity/run.sh

bench-cluster: build ## Kill, silence, cut off, drain, restart and add nodes, stop etcd, heat data: what reading jobs notice
	@scripts/setup.sh tests
	target/release/forebay-bench-cluster $(BENCH_ARGS)

dist: setup ## Make tarballs in target/dist: the programs, licences, a systemd unit, completions; debug information apart
	cargo build --profile shipped --workspace $(SHIPPED)
	@scripts/dist.sh

wheel: setup ## Pack the Python package, with the programs, into target/wheels (a build of its own: 44 minutes of processor time)
	@scripts/setup.sh wheel
	@scripts/wheel.sh

wheel-check: wheel ## Install the wheel into a clean environment, read an epoch and run the examples with it
	@scripts/wheel.sh check

images: dist ## Build the images of deploy/docker-compose.yml (FOREBAY_BASE=IMAGE to build on; without one, no registry is needed)
	@deploy/images.sh

compose-demo: setup ## A cluster with etcd, S3 and two ranks in containers; a node is killed while they train
	cargo build --release --workspace $(SHIPPED)
	@scripts/dist.sh target/release
	@deploy/images.sh
	@deploy/demo.sh

clean: ## Remove what was built (not .torch, .venv, .clients and .peers)
	cargo clean
