#!/usr/bin/env bash
# Checks histories of several clients of `braid serve`, which is killed again and again, with
# porcupine: GET, SET, a comparison and SET by WATCH and MULTI, and transactions over all registers
# are strictly serializable, and nothing that was answered is lost.
#
#     scripts/histories.sh [ROUNDS]
#
# Needs Go and its module proxy, and otherwise says so and ends well. BRAID names a program that is built
# already.
set -euo pipefail
cd "$(dirname "$0")/.."

go_redis=v9.23.0
porcupine=v1.3.1
rounds=${1:-5}

work=$PWD/target/histories
mkdir -p "$work"
cp scripts/server-clients/histories.go "$work/main.go"
command -v go >/dev/null || { printf 'SKIPPED: no go\n'; exit 0; }
[[ -n ${BRAID:-} ]] || cargo build --quiet -p braid-cli
braid=$(realpath "${BRAID:-target/debug/braid}")
cd "$work"
rm -rf go.mod go.sum db
if ! { go mod init histories && go get "github.com/redis/go-redis/v9@$go_redis" \
    "github.com/anishathalye/porcupine@$porcupine" && go mod tidy; } >/dev/null 2>&1; then
    printf 'SKIPPED: the module proxy cannot be reached\n'
    exit 0
fi
go run . "$braid" "$work/db" "$rounds"
"$braid" verify "$work/db" >/dev/null
