#!/usr/bin/env bash
# Compose on this folder's file, whichever generation of it there is: `docker compose` or `docker-compose`.
set -euo pipefail
cd "$(dirname "$0")"

# The builder that the engine itself has will do; newer clients would look for a plugin.
export DOCKER_BUILDKIT=${DOCKER_BUILDKIT:-0} COMPOSE_DOCKER_CLI_BUILD=${COMPOSE_DOCKER_CLI_BUILD:-0}
if docker compose version >/dev/null 2>&1; then
    exec docker compose "$@"
elif command -v docker-compose >/dev/null; then
    exec docker-compose "$@"
fi
echo "compose: neither 'docker compose' nor docker-compose is here (Debian: apt-get install docker-compose)" >&2
exit 1
