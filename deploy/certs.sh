#!/bin/sh
# Makes what the stack's programs know each other by, unless it is there: an authority, certificates of nodes, etcd and
# clients, and the policy that says which of them may do what (the trainer's `metrics` is for what it says of S3). For the container `certs`, which has `forebay`.
#
#   deploy/certs.sh FOLDER           CACHE_ALLOW is the list of what may be read, as nodes have it
set -eu
folder=$1

[ -f "$folder/ca.pem" ] || forebay cert init --dir "$folder" --name "Forebay stack"

node() {
    [ -f "$folder/$1.pem" ] || forebay cert node --dir "$folder" --host localhost --host 127.0.0.1 "$@"
}

client() {
    [ -f "$folder/$1.pem" ] || forebay cert client --dir "$folder" "$1" --spiffe "spiffe://forebay/$1"
}

for number in ${CACHE_NODES:-1 2 3}; do
    node "cache-$number"
done
node etcd --host etcd-2 --host etcd-3
for name in trainer operator prometheus; do
    client "$name"
done

# Nodes notice when it changes.
cat >"$folder/policy.new" <<END
[[principal]]
name = "nodes"
roles = ["peer"]
prefixes = []
cert = ["cache-*"]

[[principal]]
name = "trainer"
roles = ["reader", "loader", "metrics"]
prefixes = $CACHE_ALLOW
cert = ["spiffe://forebay/trainer"]

[[principal]]
name = "operator"
roles = ["operator", "reader", "loader", "metrics"]
prefixes = $CACHE_ALLOW
cert = ["spiffe://forebay/operator"]

[[principal]]
name = "prometheus"
roles = ["metrics"]
prefixes = []
cert = ["spiffe://forebay/prometheus"]
END
mv "$folder/policy.new" "$folder/policy.toml"
