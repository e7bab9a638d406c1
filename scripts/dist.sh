#!/usr/bin/env bash
# Makes target/dist/forebay-VERSION-TARGET.tar.gz of the shipped programs: stripped, with licences, a systemd unit and
# completions; their debug information goes into a tarball of its own. `make dist` builds the programs first, and by that
# fetches all that this needs.
#
#   scripts/dist.sh [FOLDER]    of the programs in FOLDER instead of target/shipped
set -euo pipefail
cd "$(dirname "$0")/.."

programs=(forebay-server forebay forebay-train)
# What the server may have, stripped.
SERVER_BYTES=40000000
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
target=$(rustc -vV | sed -n 's/^host: //p')
built=${1:-target/shipped}
name=forebay-$version-$target
out=target/dist
stage=$out/$name
debug=$out/$name-debug

say() { echo "dist: $*" >&2; }
die() { say "$*"; exit 1; }

umask 022
rm -rf "$out"
mkdir -p "$stage"/{bin,systemd,completions} "$debug/bin"
for program in "${programs[@]}"; do
    [ -x "$built/$program" ] || die "$built/$program is missing: run 'make dist'"
    objcopy --only-keep-debug --compress-debug-sections "$built/$program" "$debug/bin/$program.debug"
    install -m 755 "$built/$program" "$stage/bin/"
    strip --strip-all "$stage/bin/$program"
    (cd "$debug/bin" && objcopy --add-gnu-debuglink="$program.debug" "../../$name/bin/$program")
done
chmod 644 "$debug"/bin/*.debug

install -m 644 LICENSE deploy/dist/README.md "$stage/"
install -m 644 deploy/dist/forebay-server.service "$stage/systemd/"
"$stage/bin/forebay" completions bash >"$stage/completions/forebay.bash"
"$stage/bin/forebay" completions zsh >"$stage/completions/_forebay"
"$stage/bin/forebay" completions fish >"$stage/completions/forebay.fish"
cargo metadata --locked --format-version 1 --filter-platform "$target" |
    python3 scripts/third_party.py forebay-server forebay-cli forebay-train >"$stage/THIRD-PARTY.txt"

for folder in "$name" "$name-debug"; do
    # Equal content makes equal tarballs.
    tar -C "$out" --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -c "$folder" | gzip -9n >"$out/$folder.tar.gz"
done
for program in "${programs[@]}"; do
    bytes=$(stat -c %s "$stage/bin/$program")
    judged=
    if [ "$program" = forebay-server ]; then
        judged=", $((SERVER_BYTES / 1000000)) at most wanted: $([ "$bytes" -le $SERVER_BYTES ] && echo PASS || echo FAIL)"
    fi
    say "$program: $((bytes / 100000 / 10)).$((bytes / 100000 % 10)) MB$judged"
done
say "$out/$name.tar.gz and $name-debug.tar.gz"
