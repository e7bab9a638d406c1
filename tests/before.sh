#!/usr/bin/env bash
# Builds programs of an older commit, with which a benchmark compares those of today:
#
#     tests/before.sh COMMIT PROGRAM...
#
# They are built once, into target/before/COMMIT/release (20 minutes on two busy cores). Where there is no such commit, as in a shallow clone,
# nothing is built, and the benchmark leaves its rows out.
set -euo pipefail
cd "$(dirname "$0")/.."

commit=$1
shift
folder=target/before/$commit
programs=("${@/#/$folder/release/}")
[ "$(ls "${programs[@]}" 2>/dev/null | wc -l)" = $# ] && exit
git cat-file -e "$commit^{commit}" 2>/dev/null || { echo "before: there is no commit $commit: nothing to compare with" >&2; exit; }
echo "before: building $* of $commit into $folder" >&2
rm -rf "$folder/tree"
mkdir -p "$folder/tree"
git archive "$commit" | tar -x -C "$folder/tree"
cargo build --release --manifest-path "$folder/tree/Cargo.toml" --target-dir "$folder" --workspace "${@/#/--bin=}"
