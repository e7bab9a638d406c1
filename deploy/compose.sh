#!/usr/bin/env bash
# Compose on this folder's file, whichever generation of it there is: `docker compose` or `docker-compose`.
set -euo pipefail
cd "$(dirname "$0")"

# Without BuildKit's plugin the builder that the engine itself has will do.
docker buildx version >/dev/null 2>&1 || export DOCKER_BUILDKIT=0
if docker compose version >/dev/null 2>&1; then
    exec docker compose "$@"
elif command -v docker-compose >/dev/null; then
    exec docker-compose "$@"
fi
echo "compose: neither 'docker compose' nor docker-compose is here (Debian: apt-get install docker-compose)" >&2
exit 1
