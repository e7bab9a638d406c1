#!/usr/bin/env bash
# Builds `forebay` of the commit before schemas could grow, with which `make bench-real` compares the time of freezing. It is
# built once, into target/before (10 minutes); where there is no such commit, as in a shallow clone, the row is left out.
set -euo pipefail
cd "$(dirname "$0")/../.."

commit=8f7afaf
program=target/before/release/forebay
[ -x "$program" ] && exit
git cat-file -e "$commit^{commit}" 2>/dev/null || { echo "real: there is no commit $commit: nothing to compare freezing with" >&2; exit; }
echo "real: building forebay of $commit into target/before" >&2
rm -rf target/before/tree
mkdir -p target/before/tree
git archive "$commit" | tar -x -C target/before/tree
cargo build --release --manifest-path target/before/tree/Cargo.toml --target-dir target/before --workspace --bin forebay
