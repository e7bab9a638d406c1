#!/usr/bin/env bash
# Makes the environments of the peers that `make bench-peers` measures, in .peers/, from pinned versions. Nothing else uses
# them. Does nothing when all is there.
#
#   .peers/NAME       the environment of the script NAME.py: what NAME.txt lists, and nothing that only another peer needs
#   .peers/stand-ins  libraries in CUDA's place: torch in .torch is imported on the processor alone, 4 GB of CUDA stay away
#
# No list names torch: all environments share the one that scripts/setup.sh has unpacked in .torch. What several lists name
# is downloaded once, as pip keeps it.
#
# A peer that cannot be installed is told as such by the benchmark; the others are measured all the same.
set -euo pipefail
cd "$(dirname "$0")/../.."

say() { echo "peers: $*" >&2; }

need_nginx() {
    command -v nginx >/dev/null || [ -x /usr/sbin/nginx ] && return
    local root=()
    [ "$(id -u)" -eq 0 ] || root=(sudo)
    say "apt-get install nginx"
    "${root[@]}" apt-get -qq update </dev/null &&
        "${root[@]}" env DEBIAN_FRONTEND=noninteractive \
            apt-get -qq install -y --no-install-recommends nginx </dev/null >/dev/null ||
        say "nginx cannot be installed: its row will say so"
}

# The lists name every package that is needed, so pip has nothing to choose and does not look for torch.
need_environment() {
    local folder=.peers/$1 list=tests/peers/$1.txt
    cmp -s "$list" "$folder/installed.txt" && return
    say "installing $list into $folder"
    rm -rf "$folder"
    python3 -m venv "$folder"
    "$folder/bin/pip" install --quiet --disable-pip-version-check --no-input --no-deps -r "$list" </dev/null ||
        { say "$folder cannot be installed: its rows will say so"; return; }
    # Torch is the one of setup.sh, made for Python 3.11.
    echo "$PWD/.torch" >"$("$folder/bin/python" -c 'import site; print(site.getsitepackages()[0])')/torch.pth"
    cp "$list" "$folder/installed.txt"
}

# Environments whose lists are gone take up to a gigabyte each.
remove_old_environments() {
    local stamp name
    for stamp in .peers/*/installed.txt; do
        name=$(basename "$(dirname "$stamp")")
        [ -e "$stamp" ] && [ ! -e "tests/peers/$name.txt" ] || continue
        say "removing .peers/$name, which has no list"
        rm -rf ".peers/$name"
    done
}

need_stand_ins() {
    [ -e .peers/stand-ins/libnccl.so.2 ] && return
    say "writing stand-ins for CUDA's libraries"
    .peers/torch_dataloader/bin/python scripts/torch_stand_ins.py .torch .peers/stand-ins ||
        say "there are no stand-ins: rows of peers that need torch will say so"
}

mkdir -p .peers
need_nginx
remove_old_environments
for list in tests/peers/*.txt; do need_environment "$(basename "$list" .txt)"; done
need_stand_ins
