#!/usr/bin/env bash
# Runs the test programs of SQLite's sources with the extension braid-sqlite as the default VFS, and some
# of them without it for comparison: mptester (processes, crashes), threadtest3 (threads), kvtest,
# speedtest1 --verify (the same results; prints the ratio of the times), fuzzcheck with its corpus.
#
#     scripts/sqlite-programs.sh [mptester|threadtest3|kvtest|speedtest1|fuzzcheck]...   (by default all)
#
# The sources are those of the distribution's package. Skips where they, a C compiler or Tcl are missing.
# BRAID_FUZZDATA names files of fuzzcheck's corpus, by default all of them, the smallest one first. A file
# that has passed is not checked again until the library changes, so that a run goes on where an earlier one
# was interrupted.
set -euo pipefail
cd "$(dirname "$0")/.."
target="$(realpath -m "${CARGO_TARGET_DIR:-target}")"
suite="$target/sqlite-suite"
# shellcheck source=scripts/sqlite-sources.sh
. scripts/sqlite-sources.sh
for tool in gcc make tclsh; do
    command -v "$tool" >/dev/null || skip "$tool is missing"
done
fetch_sources
cargo build --profile dist --quiet -p braid-sqlite
library="$target/dist/libbraid_sqlite.so"

# SQLite in one object, which registers the extension in each process if BRAID_SUITE_LIBRARY is set.
build="$suite/programs"
mkdir -p "$build"
if [ ! -f "$build/sqlite3.o" ] || [ scripts/sqlite-suite.c -nt "$build/sqlite3.o" ] ||
    [ crates/braid-sqlite/include/braid_sqlite.h -nt "$build/sqlite3.o" ]; then
    (cd "$build" && { [ -f Makefile ] || "$sources/configure" --disable-tcl >configure.log 2>&1; } &&
        make sqlite3.c >make.log 2>&1) || { tail -n 5 "$build"/*.log; exit 1; }
    gcc -O1 -c -I"$build" scripts/sqlite-suite.c -o "$build/extra.o"
    gcc -O2 -w -c -DSQLITE_EXTRA_INIT=braid_extra_init -DSQLITE_ENABLE_MEMSYS5 -DHAVE_FDATASYNC=1 \
        -DSQLITE_ENABLE_DESERIALIZE -DSQLITE_ENABLE_RTREE -DSQLITE_ENABLE_FTS4 -DSQLITE_ENABLE_FTS5 \
        -DSQLITE_ENABLE_DBSTAT_VTAB -DSQLITE_ENABLE_BYTECODE_VTAB -DSQLITE_ENABLE_UNKNOWN_SQL_FUNCTION \
        "$build/sqlite3.c" -o "$build/sqlite3.o"
fi

# Compiles a program from its sources unless it is newer than SQLite's object.
compile() {
    local name="$1"
    shift
    [ "$build/$name" -nt "$build/sqlite3.o" ] || gcc -O2 -w -I"$build" -I"$sources/src" -I"$sources/test" \
        "$@" "$build/sqlite3.o" "$build/${extra:-extra.o}" -o "$build/$name" -lpthread -ldl -lm
}

# Runs a command in an empty folder, with the extension if the first argument is braid. The log lies next to
# the database.
run() {
    local kind="$1" folder="$build/run"
    shift
    rm -rf "$folder"
    mkdir -p "$folder"
    if [ "$kind" = braid ]; then
        (cd "$folder" && BRAID_SUITE_LIBRARY="$library" BRAID_MEMORY=emulated "$@")
    else
        (cd "$folder" && "$@")
    fi
}

failed() {
    echo "$1: failed; see $build/$1.log"
    tail -n 5 "$build/$1.log"
    exit 1
}

mptester() {
    compile mptester "$sources/mptest/mptest.c"
    local test
    for test in crash01 multiwrite01; do
        # Prints the number of errors at its end, and returns it.
        run braid timeout 300 "$build/mptester" mptest.db "$sources/mptest/$test.test" --journalmode WAL \
            --repeat 2 >"$build/mptester.log" 2>&1 || failed mptester
        echo "mptester $test: $(grep -a 'Summary' "$build/mptester.log" | tail -n 1)"
    done
}

threadtest3() {
    compile threadtest3 -DSQLITE_THREADSAFE=1 "$sources/test/threadtest3.c" "$sources/src/test_multiplex.c"
    # Not walthread5, which copies a -wal file without its log.
    run braid timeout 500 "$build/threadtest3" 'walthread[1-4]' 'checkpoint_starvation*' vacuum1 stress1 \
        >"$build/threadtest3.log" 2>&1 || failed threadtest3
    echo "threadtest3: $(grep -a 'errors out of' "$build/threadtest3.log" | tail -n 1)"
}

kvtest() {
    compile kvtest "$sources/test/kvtest.c"
    local commands="'$build/kvtest' init kv.db --count 2000 --size 8k --variance 4k &&
        '$build/kvtest' run kv.db --count 2000 --jmode WAL --update --random --multitrans &&
        '$build/kvtest' run kv.db --count 2000 --jmode WAL --blob-api --integrity-check &&
        '$build/kvtest' stat kv.db"
    run braid sh -c "$commands" >"$build/kvtest.log" 2>&1 || failed kvtest
    # The programs do run with the extension: it refuses a folder that does not exist.
    ! BRAID_LOG="$build/no-such-folder" run braid sh -c "$commands" >/dev/null 2>&1 ||
        { echo "kvtest does not use the extension"; exit 1; }
    echo "kvtest: works"
}

speedtest1() {
    compile speedtest1 "$sources/test/speedtest1.c"
    local kind times_stock=() times_braid=() expected="" log="$build/speedtest1.log" memory
    # The database lies on the disk. Stores into a file that is not in memory would be measured otherwise.
    memory="$(mktemp -d -p "$([ -d /dev/shm ] && echo /dev/shm || echo "$build")")"
    for _ in 1 2 3 4 5; do
        for kind in stock braid; do
            BRAID_LOG="$memory" run "$kind" "$build/speedtest1" --verify --journal wal --size 15 speed.db >"$log" 2>&1 ||
                failed speedtest1
            local hash seconds
            hash="$(grep -a 'Verification Hash' "$log")" || failed speedtest1
            expected="${expected:-$hash}"
            [ "$hash" = "$expected" ] || { echo "speedtest1: $kind has $hash, not $expected"; exit 1; }
            seconds="$(sed -n 's/.*TOTAL[. ]*\([0-9.]*\)s.*/\1/p' "$log")"
            if [ "$kind" = stock ]; then times_stock+=("$seconds"); else times_braid+=("$seconds"); fi
        done
    done
    rm -rf "$memory"
    # Medians.
    paste <(printf '%s\n' "${times_stock[@]}" | sort -n) <(printf '%s\n' "${times_braid[@]}" | sort -n) |
        awk 'NR == 3 { printf "speedtest1: same results; %s s, without the extension %s s (%.3f)\n", $2, $1, $2 / $1 }'
}

fuzzcheck() {
    local extra=fuzzcheck.o
    gcc -O1 -c -DFUZZCHECK -I"$build" scripts/sqlite-suite.c -o "$build/$extra"
    compile fuzzcheck -DSQLITE_CORE -DSQLITE_OSS_FUZZ -I"$sources/ext/recover" "$sources"/test/fuzzcheck.c \
        "$sources"/test/{ossfuzz,fuzzinvariants,vt02}.c "$sources"/ext/recover/{dbdata,sqlite3recover}.c \
        -Wl,--wrap=sqlite3_memory_used
    # The files that have passed, with this library and this program.
    local passed key
    key="$(cat "$library" "$build/fuzzcheck" | sha256sum)"
    passed="$suite/results/fuzzcheck/${key%% *}"
    [ -d "$passed" ] || { rm -rf "$suite/results/fuzzcheck"; mkdir -p "$passed"; }
    local files file begun
    files="${BRAID_FUZZDATA:-$(cd "$sources/test" && ls -Sr fuzzdata*.db)}"
    for file in $files; do
        if [ ! -f "$passed/$file" ]; then
            begun="$SECONDS"
            run braid timeout 3600 "$build/fuzzcheck" --native-vfs --limit-mem 100M "$sources/test/$file" \
                >"$build/fuzzcheck.log" 2>&1 || failed fuzzcheck
            echo "$(grep -a '0 errors' "$build/fuzzcheck.log" | tail -n 1) ($((SECONDS - begun)) s)" >"$passed/$file"
        fi
        echo "fuzzcheck $file: $(cat "$passed/$file")"
    done
}

if [ $# = 0 ]; then set -- mptester kvtest speedtest1 fuzzcheck threadtest3; fi
for program in "$@"; do
    "$program"
done
