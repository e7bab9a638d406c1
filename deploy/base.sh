#!/usr/bin/env bash
# Makes the base image forebay/base:SUITE out of Debian packages, for machines that reach a Debian mirror but no image
# registry. Does nothing if it is there (--force makes it again). Prints its name. Needs root, or sudo, and one to three minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
# An image's files are for all users to read.
umask 022

say() { echo "base: $*" >&2; }
die() { say "$*"; exit 1; }

# The machine's own Debian, so that what was built on it runs there.
suite=$(. /etc/os-release && [ "$ID" = debian ] && echo "${VERSION_CODENAME:-}") || suite=bookworm
image=forebay/base:$suite
if [ "${1:-}" != --force ] && docker image inspect "$image" >/dev/null 2>&1; then
    echo "$image"
    exit
fi

root=()
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || die "please run as root: debootstrap needs it"
    root=(sudo)
fi
if ! command -v debootstrap >/dev/null && ! [ -x /usr/sbin/debootstrap ]; then
    command -v apt-get >/dev/null ||
        die "debootstrap is missing; or set FOREBAY_BASE to an image from a registry, such as debian:bookworm-slim"
    say "apt-get install debootstrap"
    "${root[@]}" apt-get -qq update </dev/null
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get -qq install -y --no-install-recommends debootstrap </dev/null >/dev/null
fi

# The mirror that this machine itself uses.
mirror=$(apt-cache policy debootstrap 2>/dev/null | sed -n 's/^ *[0-9]* \(https\{0,1\}:[^ ]*\) .*/\1/p' | sort | uniq -c |
    sort -rn | sed -n '1s/^ *[0-9]* //p') || true

mkdir -p target
folder=$(mktemp -d -p "$PWD/target")
trap '"${root[@]}" rm -rf "$folder"' EXIT
say "$image: debootstrap $suite${mirror:+ from $mirror}"
"${root[@]}" "$(command -v debootstrap || echo /usr/sbin/debootstrap)" --variant=minbase --include=ca-certificates \
    "$suite" "$folder/root" ${mirror:+"$mirror"} >"$folder/log" 2>&1 </dev/null || { tail -n 20 "$folder/log" >&2; die "failed"; }
# Packages that are installed while an image is built start no services.
printf '#!/bin/sh\nexit 101\n' | "${root[@]}" tee "$folder/root/usr/sbin/policy-rc.d" >/dev/null
"${root[@]}" chmod 755 "$folder/root/usr/sbin/policy-rc.d"
# Nor do they leave their archives behind.
echo 'DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb /var/cache/apt/*.bin || true"; };' |
    "${root[@]}" tee "$folder/root/etc/apt/apt.conf.d/90forebay-clean" >/dev/null
"${root[@]}" chroot "$folder/root" sh -c 'apt-get clean; cd /usr/share && rm -rf /var/lib/apt/lists/* /var/cache/debconf/*-old \
    doc/* man/* locale/* info/*'
"${root[@]}" tar -C "$folder/root" --numeric-owner -c . |
    docker import --change 'CMD ["/bin/bash"]' --message "debootstrap $suite" - "$image" >/dev/null
say "$image is made"
echo "$image"
