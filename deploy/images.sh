#!/usr/bin/env bash
# Builds the images of docker-compose.yml. What they are built on: FOREBAY_BASE if it is set; else debian:bookworm-slim if the
# engine has it; else what base.sh makes of Debian packages, so that no image registry is needed.
set -euo pipefail
cd "$(dirname "$0")"

if [ -z "${FOREBAY_BASE:-}" ]; then
    if docker image inspect debian:bookworm-slim >/dev/null 2>&1; then
        FOREBAY_BASE=debian:bookworm-slim
    else
        FOREBAY_BASE=$(./base.sh)
    fi
fi
export FOREBAY_BASE
./stage.sh
# Prometheus reads it as another user.
chmod a+r prometheus.yml
log=$(mktemp)
trap 'rm -f "$log"' EXIT
echo "images: building on $FOREBAY_BASE" >&2
./compose.sh build >"$log" 2>&1 </dev/null || {
    tail -n 40 "$log" >&2
    exit 1
}
docker image ls --format '{{.Repository}}:{{.Tag}} {{.Size}}' | grep "^forebay/" | sort >&2
