#!/usr/bin/env bash
# The compose file at work: brings the stack up, trains cold and warm, trains again with a cache node killed in the middle of
# an epoch and brought back later, and another one that hangs, prints what that cost, takes everything down. Exit status 0 only
# if every promise held.
# `make compose-demo` builds what it needs first.
#
#   deploy/demo.sh           leaves nothing but target/compose-demo
#   deploy/demo.sh --keep    leaves the stack running
set -euo pipefail
cd "$(dirname "$0")/.."

# A stack of its own, beside whatever a user has up from the same file, and with none of a user's settings.
export COMPOSE_PROJECT_NAME=forebay-demo PROMETHEUS_PORT=0
export S3_ENDPOINT=http://store:3900 S3_REGION=us-east-1 S3_BUCKET=forebay-demo
export S3_ACCESS_KEY_ID=forebay-demo S3_SECRET_ACCESS_KEY=forebay-demo-secret
export CACHE_ALLOW='["s3://forebay-demo/"]' CACHE_BYTES=1000000000 CACHE_MEMORY_BYTES=536870912 CACHE_REPLICAS=2 CACHE_LOG=info
export TRAIN_DATASET=s3://forebay-demo/mnist/train/ TRAIN_EPOCHS=6 TRAIN_BATCH=128 TRAIN_SEED=1
# So little is read ahead that a fault can be felt.
export TRAIN_FLAGS="--prefetch-bytes 256KiB --verify"
out=target/compose-demo
# The first node that the ranks ask, and one that owns much.
victim=cache-1
asked=cache-2
silent=cache-3

say() { printf '%s %s\n' "$(date +%T)" "$*"; }
compose() { deploy/compose.sh "$@"; }
container() { compose ps -q "$1" 2>/dev/null; }
now() { date +%s.%N; }

finish() {
    local status=$?
    trap - EXIT INT TERM
    if [ $status -ne 0 ]; then
        compose logs --no-color --tail 200 >"$out/containers.log" 2>&1 || true
        say "what the containers said is in $out/containers.log"
    fi
    if [ -n "$keep" ]; then
        say "the stack is up: COMPOSE_PROJECT_NAME=forebay-demo deploy/compose.sh ps"
    else
        say "taking everything down"
        compose down --volumes --remove-orphans --timeout 10 >/dev/null 2>&1 || status=1
    fi
    exit $status
}

# What each node has counted so far, as `forebay status` says it; a node that does not answer is left out.
counters() {
    local file=$1 node
    echo '{' >"$file"
    for node in cache-1 cache-2 cache-3; do
        compose exec -T $asked forebay status --json --endpoint "https://$node:7070" >"$out/node.json" 2>/dev/null </dev/null ||
            continue
        { printf '"%s": ' "$node" && cat "$out/node.json" && echo ','; } >>"$file"
    done
    echo '"time": '"$(now)"'}' >>"$file"
    rm -f "$out/node.json"
}

healthy() { # SERVICE...: waits until all of them are.
    local service deadline=$((SECONDS + 120))
    for service in "$@"; do
        until [ "$(docker inspect -f '{{.State.Health.Status}}' "$(container "$service")" 2>/dev/null)" = healthy ]; do
            [ $SECONDS -lt $deadline ] || { say "$service is not healthy after two minutes" && return 1; }
            sleep 0.5
        done
    done
}

copies_are_made() { # Waits until each segment is held by as many nodes as it should be.
    local deadline=$((SECONDS + 120))
    until compose exec -T $asked forebay status --json </dev/null | python3 -c '
import json, sys
sys.exit(any(copies["copies_held"] < copies["copies_wanted"] for copies in json.load(sys.stdin)["copies"]))'; do
        [ $SECONDS -lt $deadline ] || { say "not all copies are made after two minutes" && return 1; }
        sleep 0.5
    done
}

start_training() {
    compose up -d --no-deps --force-recreate trainer-0 trainer-1 >/dev/null 2>&1
    ranks=("$(container trainer-0)" "$(container trainer-1)")
    # A rank that fails must show.
    docker update --restart no "${ranks[@]}" >/dev/null
}

epoch_is_over() { # N: waits until rank 0 says so.
    local deadline=$((SECONDS + 300))
    until docker logs "${ranks[0]}" 2>&1 | grep -q "^epoch $1/.* from "; do
        [ $SECONDS -lt $deadline ] || { say "epoch $1 is not over after five minutes" && return 1; }
        sleep 0.1
    done
}

# Waits for both ranks, which must end well, and keeps what they said and reported as NAME.log, NAME.rank1.log, NAME.json.
end_training() {
    local name=$1 statuses
    statuses=$(timeout 600 docker wait "${ranks[@]}" | xargs) || { say "the training run hangs" && return 1; }
    docker logs --timestamps "${ranks[0]}" >"$out/$name.log" 2>&1
    docker logs --timestamps "${ranks[1]}" >"$out/$name.rank1.log" 2>&1
    if [ "$statuses" != "0 0" ]; then
        tail -n 5 "$out/$name.log" "$out/$name.rank1.log"
        say "FAIL: the ranks ended with $statuses" && return 1
    fi
    docker cp "${ranks[0]}:/runs/training.json" "$out/$name.json" >/dev/null
}

into_the_next_epoch() { # Sleeps for a third of a warm epoch.
    sleep "$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["epochs"][1]["seconds"] / 3)' "$out/undisturbed.json")"
}

prometheus_sees() { # N nodes, within half a minute; keeps its answer.
    local deadline=$((SECONDS + 30))
    until compose exec -T prometheus curl -fsS 'http://127.0.0.1:9090/api/v1/query?query=up' >"$out/up.json" </dev/null &&
        [ "$(grep -o '"1"\]' "$out/up.json" | wc -l)" -ge "$1" ]; do
        [ $SECONDS -lt $deadline ] || return 0
        sleep 1
    done
}

keep=
case "${1:-}" in
'') ;;
--keep) keep=yes ;;
*) echo "usage: deploy/demo.sh [--keep]" >&2 && exit 2 ;;
esac

rm -rf "$out"
mkdir -p "$out"
trap finish EXIT
trap 'exit 130' INT TERM

say "bringing up three cache nodes, etcd, garage and Prometheus"
compose down --volumes --remove-orphans --timeout 5 >/dev/null 2>&1 || true
compose up -d etcd store cache-1 cache-2 cache-3 prometheus >"$out/up.log" 2>&1 || { cat "$out/up.log" && exit 1; }
healthy etcd store cache-1 cache-2 cache-3
say "putting MNIST into the object store"
compose run --rm upload 2>"$out/upload.log" || { cat "$out/upload.log" && exit 1; }

say "training on two ranks, undisturbed: one cold epoch, five warm ones"
counters "$out/before.json"
start_training
end_training undisturbed
copies_are_made
counters "$out/between.json"
compose exec -T $asked forebay status </dev/null

say "training once more from the start, to kill $victim in the middle of an epoch, and later to freeze $silent"
start_training
doomed=$(container $victim) frozen=$(container $silent)
epoch_is_over 1
into_the_next_epoch
now >"$out/killed"
docker kill -s KILL "$doomed" >/dev/null
say "$victim is dead"
epoch_is_over 2
now >"$out/revived"
compose up -d --no-deps --no-recreate $victim >/dev/null 2>&1
say "$victim is started again, with the disk that it had"
epoch_is_over 3
into_the_next_epoch
now >"$out/frozen"
docker pause "$frozen" >/dev/null
say "$silent is frozen"
sleep 5
docker unpause "$frozen" >/dev/null
say "$silent goes on"
end_training disturbed
healthy $victim $silent
say "one reader alone reads the first epoch again, from all three"
compose exec -T $asked forebay epoch "$TRAIN_DATASET" --batch "$TRAIN_BATCH" --seed "$TRAIN_SEED" --verify --json >"$out/alone.json" </dev/null
counters "$out/after.json"
prometheus_sees 3

python3 deploy/judge.py "$out" $victim $silent
