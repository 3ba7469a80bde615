#!/usr/bin/env bash
# Measures `braid serve` next to Redis, every write durable in both (`appendfsync always`), and prints
# tables as in docs/server.md:
#
#     scripts/server-figures.sh [PART...]
#
# The parts are set, pipeline, multi, get, cold, ceiling and connections; all by default. Both servers run during
# the whole part and are measured in turn, REPEAT times (3), for about SECONDS_EACH (4) each; a figure is the
# median. Their files are in directories of DIR (target/server-figures), which must be on the disk to
# measure. BRAID names the program, built with `--profile fat`, and BRAID_THREADS its threads (one per
# processor). CLIENT_THREADS is the number of threads of the client (1).
#
# The client is server-load.c, except for GET, which redis-benchmark measures: one thread of that makes no
# more than 120,000 requests per second, and takes more of the machine than the servers.
#
# Needs redis-server and redis-benchmark 7.0 or later and a C compiler, and says so otherwise.
set -euo pipefail
cd "$(dirname "$0")/.."

repeat=${REPEAT:-3} seconds=${SECONDS_EACH:-4}
dir=$PWD/${DIR:-target/server-figures}
[[ ${DIR:-} == /* ]] && dir=$DIR
braid=${BRAID:-target/fat/braid} braid_threads=${BRAID_THREADS:-$(nproc)}
client_threads=()
[[ ${CLIENT_THREADS:-1} == 1 ]] || client_threads=(--threads "$CLIENT_THREADS")
parts=("$@")
[ $# -gt 0 ] || parts=(set pipeline multi get cold ceiling connections)

for program in redis-server redis-benchmark redis-cli cc "$braid"; do
    command -v "$program" >/dev/null || { printf 'SKIPPED: no %s\n' "$program"; exit 0; }
done
rm -rf "$dir"
mkdir -p "$dir"

pids=()
program=$(mktemp)
trap 'kill "${pids[@]}" 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$dir" "$program"' EXIT
cc -O2 -pthread -o "$program" scripts/server-load.c

# Waits until a server answers on its socket.
await() {
    until redis-cli -s "$1" PING 2>/dev/null | grep -q PONG; do
        kill -0 "$2" 2>/dev/null || { printf 'a server did not start: %s\n' "$1" >&2; exit 1; }
        read -r -t 0.05 _ <> <(:) || true
    done
}

# Starts a Redis whose socket and directory have a name, with more options.
start_redis() {
    local name=$1
    shift
    mkdir -p "$dir/$name-data"
    redis-server --port 0 --unixsocket "$dir/$name" --dir "$dir/$name-data" --save '' --appendonly yes \
        --appendfsync always --maxclients 12000 "$@" >"$dir/$name.log" 2>&1 &
    declare -g "pid_$name=$!"
    pids+=($!)
    await "$dir/$name" $!
}

# Starts a Braid, with more options.
start_braid() {
    "$braid" serve "$dir/braid-data" --port 0 --unixsocket "$dir/braid" --maxclients 12000 \
        --threads "$braid_threads" "$@" >"$dir/braid.log" 2>&1 &
    pid_braid=$!
    pids+=($!)
    await "$dir/braid" $!
}

stop() {
    kill "${pids[@]}" 2>/dev/null || true
    wait "${pids[@]}" 2>/dev/null || true
    pids=()
    rm -rf "$dir"/*
}

# Prints the median of the numbers on standard input.
median() {
    sort -g | awk '{ v[NR] = $1 } END { print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'
}

# Prints requests per second and the p99 in milliseconds of redis-benchmark with these arguments.
measure() {
    local socket=$1
    shift
    redis-benchmark -s "$socket" "${client_threads[@]}" --csv --precision 3 "$@" 2>/dev/null |
        awk -F, 'END { gsub(/"/, ""); print $2, $7 }'
}

# Prints the processor time that a server has taken, in microseconds.
processor_time() {
    local pid="pid_$1"
    awk -v hertz="$(getconf CLK_TCK)" '{ sub(/.*\) /, ""); print ($12 + $13) * 1e6 / hertz }' "/proc/${!pid}/stat"
}

# Prints the processor time that all servers and their child processes have taken, in ticks.
ticks() {
    local pid stats=()
    for pid in "${pids[@]}" $(printf '%s\n' "${pids[@]}" | xargs -I{} pgrep -P {}); do
        stats+=("/proc/$pid/stat")
    done
    cat "${stats[@]}" 2>/dev/null | awk '{ sub(/.*\) /, ""); sum += $12 + $13 } END { print sum + 0 }'
}

# Waits, for ten seconds at most, until the servers have nothing left to do: what one does in the
# background after its turn, as Redis when it rewrites its file, is not to slow the other down.
settle() {
    local before round
    for ((round = 0; round < 50; round++)); do
        before=$(ticks)
        read -r -t 0.2 _ <> <(:) || true
        (($(ticks) > before + 1)) || return 0
    done
}

# Measures a server with server-load: requests per second, p99 in milliseconds, and the processor time
# of the server and of the client for a request in microseconds.
load() {
    local name=$1 connections=$2 pipeline=$3 first=() before rate p99 own
    [[ $name == buffered ]] && name=braid first=('BRAID.DURABILITY buffered 100')
    settle
    before=$(processor_time "$name")
    read -r rate _ p99 own < <("$program" "$dir/$name" "$seconds" "$connections" "${CLIENT_THREADS:-1}" "$pipeline" \
        100 "${first[@]}")
    awk -v rate="$rate" -v p99="$p99" -v s="$seconds" -v before="$before" -v after="$(processor_time "$name")" \
        -v own="$own" 'BEGIN { print rate, p99, (after - before) / (rate * s), own }'
}

# Measures both servers in turn with a number of connections and of requests that each sends at once, or
# `multi`, and prints a row of the table.
row() {
    local what=$1 connections=$2 pipeline=$3 name round rate p99 time
    for name in braid redis; do
        rm -f "$dir/rate-$name" "$dir/p99-$name" "$dir/time-$name"
        # Warms the server up.
        load "$name" "$connections" "$pipeline" >/dev/null
    done
    for ((round = 0; round < repeat; round++)); do
        for name in braid redis; do
            read -r rate p99 time _ < <(load "$name" "$connections" "$pipeline")
            printf '%s\n' "$rate" >>"$dir/rate-$name"
            printf '%s\n' "$p99" >>"$dir/p99-$name"
            printf '%s\n' "$time" >>"$dir/time-$name"
        done
    done
    print_row "$what"
}

# Measures both servers in turn with redis-benchmark and prints a row of the table.
benchmark_row() {
    local what=$1 name round n rate p99 before
    shift
    declare -A count
    for name in braid redis; do
        # Two runs say how many requests take the wanted time, and warm the server up. The first is too
        # short to be exact: with threads, redis-benchmark ends only at whole quarters of a second.
        n=20000
        for ((round = 0; round < 2; round++)); do
            n=$(measure "$dir/$name" -n "$n" "$@" | awk -v s="$seconds" '{ printf "%d", $1 * s }')
        done
        count[$name]=$n
        rm -f "$dir/rate-$name" "$dir/p99-$name" "$dir/time-$name"
    done
    for ((round = 0; round < repeat; round++)); do
        for name in braid redis; do
            settle
            before=$(processor_time "$name")
            read -r rate p99 < <(measure "$dir/$name" -n "${count[$name]}" "$@")
            printf '%s\n' "$rate" >>"$dir/rate-$name"
            printf '%s\n' "$p99" >>"$dir/p99-$name"
            awk -v n="${count[$name]}" -v before="$before" -v after="$(processor_time "$name")" \
                'BEGIN { print (after - before) / n }' >>"$dir/time-$name"
        done
    done
    print_row "$what"
}

print_row() {
    local rates=() p99s=() times=() name
    for name in braid redis; do
        rates+=("$(median <"$dir/rate-$name")")
        p99s+=("$(median <"$dir/p99-$name")")
        times+=("$(median <"$dir/time-$name")")
    done
    awk -v what="$1" -v a="${rates[0]}" -v b="${rates[1]}" -v p="${p99s[0]}" -v q="${p99s[1]}" \
        -v t="${times[0]}" -v u="${times[1]}" \
        'BEGIN { printf "| %s | %d | %d | %.2f | %.2f / %.2f | %.1f / %.1f |\n", what, a, b, a / b, p, q, t, u }'
}

head_row() {
    printf '| %s | Braid | Redis | ratio | p99, ms | processor time each, µs |\n|---|---|---|---|---|---|\n' "$1"
}

value=(-d 100 -r 100000)

# Measures durable writes: what, and what each connection sends at once.
part_of_writes() {
    local connections
    start_redis redis
    start_braid
    head_row "$1, per second"
    for connections in 50 200; do
        row "$connections connections" "$connections" "$2"
    done
}

part_set() {
    part_of_writes 'SET, 100 bytes' 1
}

part_pipeline() {
    part_of_writes 'SET, 100 bytes, pipelined by 16' 16
}

part_multi() {
    part_of_writes 'MULTI with ten SETs' multi
}

part_get() {
    local threads
    threads=$(nproc)
    start_redis redis --io-threads "$threads" --io-threads-do-reads yes
    start_braid
    head_row "GET, 100 bytes, $threads threads each, per second"
    for name in braid redis; do
        redis-benchmark -s "$dir/$name" -q -t set "${value[@]}" -n 300000 -c 50 -P 16 >/dev/null
    done
    benchmark_row '50 connections' -t get "${value[@]}" -c 50
    benchmark_row '50 connections, pipelined by 16' -t get "${value[@]}" -c 50 -P 16
}

# Prints how many requests of a command Braid has answered.
calls() {
    redis-cli -s "$dir/braid" INFO commandstats | awk -F'[=,]' -v prefix="cmdstat_$1:" 'index($0, prefix) == 1 { print $2 }'
}

# Measures GETs and SETs of data that is several times as large as the pool, next to writes of one key.
part_cold() {
    local connections=0 round before began rate p99 other what
    start_braid --pool 1024
    redis-benchmark -s "$dir/braid" -q -t set -d 100 -r 1000000 -n 2000000 -c 50 -P 16 >/dev/null
    kill "$pid_braid"
    wait "$pid_braid" || true
    pids=()
    start_braid --pool 32
    printf '| other connections | their requests per second | INCRs per second by 8 connections | their p99, ms |\n'
    printf '|---|---|---|---|\n'
    for what in none get set; do
        for connections in 1 8 50; do
            rm -f "$dir"/rate-* "$dir"/p99-*
            other=
            if [[ $what != none ]]; then
                redis-benchmark -s "$dir/braid" -t "$what" -d 100 -r 1000000 -n 1000000000 -c "$connections" >/dev/null 2>&1 &
                other=$!
            fi
            for ((round = 0; round <= repeat; round++)); do
                before=$(calls "$what") began=$EPOCHREALTIME
                read -r rate p99 < <(measure "$dir/braid" -n $((seconds * 5000)) -t incr -c 8)
                # The first round warms up.
                ((round > 0)) || continue
                awk -v before="${before:-0}" -v after="$(calls "$what")" -v began="$began" -v ended="$EPOCHREALTIME" \
                    'BEGIN { print (after - before) / (ended - began) }' >>"$dir/rate-other"
                printf '%s\n' "$rate" >>"$dir/rate-incr"
                printf '%s\n' "$p99" >>"$dir/p99-incr"
            done
            [[ -z $other ]] || { kill "$other" && wait "$other" 2>/dev/null || true; }
            printf '| %s | %.0f | %.0f | %.2f |\n' "${other:+$connections: }$what" "$(median <"$dir/rate-other")" \
                "$(median <"$dir/rate-incr")" "$(median <"$dir/p99-incr")"
            [[ -n $other ]] || break
        done
    done
}

# Measures how far the processors and the client let any server get: both servers as above, Braid with
# writes that are answered before they are durable, and a Redis that writes nothing to the disk.
part_ceiling() {
    local servers=(braid redis buffered memory) what connections pipeline name round rate time own
    start_redis redis
    start_redis memory --appendonly no
    start_braid
    printf '| per second | Braid | Redis | Braid, buffered | Redis, no AOF | largest ratio | client, µs |\n'
    printf '|---|---|---|---|---|---|---|\n'
    for what in SET 'SET, pipelined by 16' 'MULTI with ten SETs'; do
        case $what in
            SET) pipeline=1 ;;
            SET*) pipeline=16 ;;
            *) pipeline=multi ;;
        esac
        for connections in 50 200; do
            rm -f "$dir"/rate-* "$dir"/own-* "$dir"/time-*
            for ((round = 0; round <= repeat; round++)); do
                for name in "${servers[@]}"; do
                    read -r rate _ time own < <(load "$name" "$connections" "$pipeline")
                    # The first round warms the servers up.
                    ((round > 0)) || continue
                    printf '%s\n' "$rate" >>"$dir/rate-$name"
                    printf '%s\n' "$time" >>"$dir/time-$name"
                    printf '%s\n' "$own" >>"$dir/own-$name"
                done
            done
            for name in "${servers[@]}"; do
                printf '%s %s %s\n' "$(median <"$dir/rate-$name")" "$(median <"$dir/time-$name")" \
                    "$(median <"$dir/own-$name")"
            done | awk -v what="$what, $connections connections" '
                { rate[NR] = $1; time[NR] = $2; own[NR] = $3 }
                END {
                    most = rate[3] > rate[4] ? rate[3] : rate[4]
                    printf "| %s", what
                    for (i = 1; i <= NR; i++) printf " | %d; %.1f", rate[i], time[i]
                    printf " | %.2f | %.1f to %.1f |\n", most / rate[2], own[4], own[1]
                }'
        done
    done
}

resident() {
    awk '/^VmRSS/ { print $2 }' "/proc/$1/status"
}

part_connections() {
    local name idle before pid_name connected after
    ulimit -n "$(ulimit -H -n)"
    start_braid
    printf '| 10,000 connections, 100 of them active | connected, MB | after SETs, MB | bytes per connection |\n|---|---|---|---|\n'
    for name in braid; do
        pid_name=pid_$name
        # What the data and the pool take is not that of connections.
        redis-benchmark -s "$dir/$name" -q -t set "${value[@]}" -n 300000 -c 100 >/dev/null
        before=$(resident "${!pid_name}")
        redis-benchmark -s "$dir/$name" -c 9900 -I >/dev/null 2>&1 &
        idle=$!
        until [ "$(redis-cli -s "$dir/$name" INFO clients | awk -F: '/^connected_clients/ { print $2 + 0 }')" -gt 9900 ]; do
            kill -0 $idle
            read -r -t 0.05 _ <> <(:) || true
        done
        connected=$(resident "${!pid_name}")
        redis-benchmark -s "$dir/$name" -q -t set "${value[@]}" -n 300000 -c 100 >/dev/null
        after=$(resident "${!pid_name}")
        kill $idle
        wait $idle 2>/dev/null || true
        awk -v name="$name" -v a="$before" -v b="$connected" -v c="$after" \
            'BEGIN { printf "| %s | %+.1f | %+.1f | %d |\n", name, (b - a) / 1000, (c - a) / 1000, (b - a) * 1024 / 10000 }'
    done
}

for part in "${parts[@]}"; do
    "part_$part"
    stop
    printf '\n'
done
