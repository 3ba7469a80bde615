#!/usr/bin/env bash
# Runs programs with clients of other projects against `braid serve`: strings, hashes, sorted sets,
# MULTI and WATCH, messages, pops that wait, streams with groups.
#
#     scripts/server-clients.sh [node] [go] [java] [rust]
#
# BRAID names a program that is built already. Each needs the tools of its language and its package
# registry; the script names what is missing, and continues with the next.
set -euo pipefail
cd "$(dirname "$0")/.."

node_redis=6.3.1
go_redis=v9.23.0

sources=$PWD/scripts/server-clients
work=$PWD/target/server-clients
clients=("$@")
((${#clients[@]})) || clients=(node go java rust)
mkdir -p "$work"

source scripts/start-server.sh
host=${address%:*} port=${address##*:}

# Prints why a client is left out.
skip() {
    printf 'SKIPPED: %s: %s\n' "$client" "$1"
}

missing() {
    for tool in "$@"; do
        command -v "$tool" >/dev/null || { skip "no $tool"; return 0; }
    done
    return 1
}

try_node() {
    missing node npm && return
    mkdir -p "$work/node" && cp "$sources/client.mjs" "$work/node/"
    cd "$work/node"
    npm install --silent --no-audit --no-fund --prefix . "redis@$node_redis" >/dev/null 2>&1 ||
        { skip 'the package registry cannot be reached'; return; }
    node client.mjs "$host" "$port"
    printf 'node-redis %s: passed\n' "$node_redis"
}

try_go() {
    missing go && return
    mkdir -p "$work/go" && cp "$sources/client.go" "$work/go/main.go"
    cd "$work/go"
    rm -f go.mod go.sum
    { go mod init client && go get "github.com/redis/go-redis/v9@$go_redis" && go mod tidy; } >/dev/null 2>&1 ||
        { skip 'the module proxy cannot be reached'; return; }
    go run . "$address"
    printf 'go-redis %s: passed\n' "$go_redis"
}

try_java() {
    missing java mvn && return
    rm -rf "$work/java" && cp -r "$sources/java" "$work/java"
    cd "$work/java"
    mvn -q -B dependency:go-offline >/dev/null 2>&1 ||
        { skip 'the repository of Maven cannot be reached'; return; }
    mvn -q -B compile exec:java -Dexec.mainClass=Client "-Dexec.args=$host $port"
    printf 'Jedis: passed\n'
}

try_rust() {
    missing cargo && return
    rm -rf "$work/rust" && cp -r "$sources/rust" "$work/rust"
    cd "$work/rust"
    cargo fetch --quiet 2>/dev/null || { skip 'the registry of crates cannot be reached'; return; }
    cargo run --quiet --target-dir ../rust-target -- "$address"
    printf 'redis-rs: passed\n'
}

failed=0
for client in "${clients[@]}"; do
    # A program of its own, so that an error ends it in spite of the test.
    (set -e; "try_$client") &
    wait $! || { printf '%s: failed\n' "$client"; failed=1; }
done
exit $failed
