#!/usr/bin/env bash
# Runs test files of SQLite's own suite twice, without and with the extension braid-sqlite as the
# default VFS, and compares which tests fail. Tests that may fail only with the extension are listed in
# scripts/sqlite-suite.exceptions, each with its reason.
#
#     scripts/sqlite-suite.sh [--seconds N] [FILE | PERMUTATION: | PERMUTATION:FILE]...
#
# By default every wal*.test and snapshot*.test, and the permutations wal: and coverage-wal: of
# permutations.test. A file takes
# at most N seconds, 1,200 by default. Results are kept in a folder of the target directory until SQLite's
# test program or the library changes, so that a run goes on where an earlier one was interrupted.
#
# The sources are those of the distribution's package, which apt-get fetches into that folder, too. Skips
# where apt-get, its sources, a C compiler or Tcl is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
target="$(realpath -m "${CARGO_TARGET_DIR:-target}")"
suite="$target/sqlite-suite"
exceptions="$PWD/scripts/sqlite-suite.exceptions"
limit=1200
if [ "${1:-}" = --seconds ]; then
    limit="$2"
    shift 2
fi

# shellcheck source=scripts/sqlite-sources.sh
. scripts/sqlite-sources.sh
for tool in gcc make tclsh; do
    command -v "$tool" >/dev/null || skip "$tool is missing"
done
tcl="$(dirname "$(find /usr/lib* -name tclConfig.sh -print -quit 2>/dev/null)")"
[ -f "$tcl/tclConfig.sh" ] || skip "the development files of Tcl are missing (tcl8.6-dev)"

mkdir -p "$suite/build"
fetch_sources

# Without the option for snapshots, their tests end at once.
flags="-O1 -DSQLITE_EXTRA_INIT=braid_extra_init -DSQLITE_ENABLE_SNAPSHOT"

cargo build --release --quiet -p braid-sqlite
library="$target/release/libbraid_sqlite.so"
if [ ! -x "$suite/build/testfixture" ] || [ "$(cat "$suite/build/flags" 2>/dev/null)" != "$flags" ] ||
    [ scripts/sqlite-suite.c -nt "$suite/build/testfixture" ] ||
    [ crates/braid-sqlite/include/braid_sqlite.h -nt "$suite/build/testfixture" ]; then
    extra="$suite/build/extra.o"
    (
        cd "$suite/build"
        if [ "$(cat flags 2>/dev/null)" != "$flags" ]; then
            [ ! -f Makefile ] || make clean >make.log 2>&1
            "$sources/configure" --with-tcl="$tcl" --disable-amalgamation CFLAGS="$flags" >configure.log 2>&1
            echo "$flags" >flags
        fi
        make sqlite3.h >make.log 2>&1
    )
    gcc -O1 -c -I"$suite/build" scripts/sqlite-suite.c -o "$extra"
    (
        cd "$suite/build"
        rm -f testfixture
        tcl_library="$(sed -n 's/^LIBTCL *= *//p' Makefile)"
        make testfixture LIBTCL="$extra $tcl_library -ldl" >>make.log 2>&1
    ) || { tail -n 5 "$suite/build/make.log"; exit 1; }
fi

fixture="$suite/build/testfixture"

# Removes kept results of programs that were made from other files than these.
keep_results() {
    local kind="$1" key
    shift
    key="$({ echo "$flags" && cat "$@"; } | sha256sum)"
    [ "$(cat "$suite/results/$kind/key" 2>/dev/null)" != "$key" ] || return 0
    rm -rf "$suite/results/$kind"
    mkdir -p "$suite/results/$kind"
    echo "$key" >"$suite/results/$kind/key"
}
keep_results stock "$sources/manifest.uuid" scripts/sqlite-suite.c
keep_results braid "$sources/manifest.uuid" scripts/sqlite-suite.c "$library"

# Runs a test file. By default a file ends after 1,000 errors. An option on the command line would leave a
# variable that wal2.test does not expect.
cat >"$suite/run-file.tcl" <<'TCL'
set argv0 [lindex $argv 0]
set arguments [lrange $argv 1 end]
set argv [list --maxerror=1000000]
set testdir [file dirname $argv0]
source [file join $testdir tester.tcl]
set argv $arguments
unset -nocomplain a arguments
source $argv0
TCL

# The tests work in memory where that is possible: in walcrash*.test the disk would take most of the time.
work="$(mktemp -d -p "$([ -d /dev/shm ] && echo /dev/shm || echo "$suite")")"
trap 'rm -rf "$work"' EXIT

# Prints the files of a permutation, or fails.
files_of() {
    local permutation="$1" script="$suite/files-of.tcl"
    cat >"$script" <<'TCL'
set testdir [lindex $argv 0]
set name [lindex $argv 1]
set argv [list]
# It finds the other files next to the script that runs.
set argv0 [file join $testdir files-of.tcl]
source [file join $testdir permutations.test]
if {![info exists ::testspec($name)]} {exit 1}
array set spec $::testspec($name)
foreach file $spec(-files) {puts "file [file rootname [file tail $file]]"}
TCL
    (cd "$work" && "$fixture" "$script" "$sources/test" "$permutation") |
        sed -n 's/^file //p'
}

# Runs a file, and keeps its output, the names of the tests that fail, whether it ran to its end, and the
# seconds that it took.
run() {
    local kind="$1" unit="$2" folder="$work/$1" file="${2#*:}"
    local kept="$suite/results/$kind/$unit"
    # What was cut runs again: perhaps it has more time now.
    [ ! -f "$kept" ] || grep -q '(unfinished)$' "$kept.failed" || return 0
    rm -rf "$folder"
    mkdir -p "$folder"
    if [ "$kind" = braid ]; then
        # The log lies next to the database, so that tests which save and restore files save it, too.
        export BRAID_SUITE_LIBRARY="$library" BRAID_MEMORY=emulated
    fi
    local arguments=("$sources/test/$file.test") prefix="" begun="$SECONDS"
    if [ "$file" != "$unit" ]; then
        prefix="${unit%%:*}"
        arguments=("$sources/test/permutations.test" "$prefix" "$file.test")
    fi
    (cd "$folder" && timeout "$limit" "$fixture" "$suite/run-file.tcl" "${arguments[@]}" >out.txt 2>&1) || true
    unset BRAID_SUITE_LIBRARY BRAID_MEMORY
    {
        grep -a -q "errors out of" "$folder/out.txt" || echo "$file(unfinished)"
        # Also of a file that does not reach its end.
        LC_ALL=C awk '/^! .* expected: / { print $2 } /^Error: / { sub(/[.][.][.]$/, "", last); print last } { last = $0 }
            sub(/^!Failures on these tests: /, "") { gsub(/ /, "\n"); print }' "$folder/out.txt" |
            LC_ALL=C sed -e '/^$/d' -e "s/^${prefix:-no prefix}[.]//"
    } | sort -u >"$kept.failed"
    LC_ALL=C sed -n 's/.*errors out of \([0-9]*\) .*/\1/p' "$folder/out.txt" >"$kept.tests"
    echo $((SECONDS - begun)) >"$kept.seconds"
    mv "$folder/out.txt" "$kept"
}

if [ $# = 0 ]; then
    mapfile -t files < <(cd "$sources/test" && ls wal*.test snapshot*.test | sed 's/\.test$//')
    set -- "${files[@]}" wal: coverage-wal:
    is_complete=true
fi
units=()
for name in "$@"; do
    case "$name" in
        *:)
            mapfile -t files < <(files_of "${name%:}")
            [ "${#files[@]}" != 0 ] || { echo "permutations.test has no permutation ${name%:}"; exit 1; }
            units+=("${files[@]/#/$name}")
            ;;
        *) units+=("${name%.test}") ;;
    esac
done
patterns=() used=()
while read -r pattern _; do
    patterns+=("$pattern")
    used+=(0)
done < <(grep -v '^#' "$exceptions")

# Whether a failed test is listed as an exception.
is_listed() {
    local at
    for at in "${!patterns[@]}"; do
        # shellcheck disable=SC2053
        if [[ "$1" == ${patterns[at]} ]]; then
            used[at]=$((used[at] + 1))
            return 0
        fi
    done
    return 1
}

unexpected=0 all_tests=0 all_listed=0 all_seconds=0
for unit in "${units[@]}"; do
    run stock "$unit"
    run braid "$unit"
    stock="$suite/results/stock/$unit" braid="$suite/results/braid/$unit"
    tests="$(cat "$braid.tests")"
    listed=0 others=()
    while read -r name; do
        if is_listed "$name"; then listed=$((listed + 1)); else others+=("$name"); fi
    done < <(comm -13 "$stock.failed" "$braid.failed")
    # Without the extension, too: nothing is known about the rest of the file.
    is_cut=""
    ! grep -q '(unfinished)$' "$stock.failed" || is_cut=", unfinished without the extension, too"
    echo "$unit: ${tests:-?} tests, $listed listed exceptions, ${#others[@]} other differences ${others[*]}$is_cut" \
        "($(cat "$stock.seconds") s and $(cat "$braid.seconds") s)"
    unexpected=$((unexpected + ${#others[@]}))
    all_tests=$((all_tests + ${tests:-0})) all_listed=$((all_listed + listed))
    all_seconds=$((all_seconds + $(cat "$stock.seconds") + $(cat "$braid.seconds")))
done
echo "${#units[@]} files, $all_tests tests, $all_listed listed exceptions, $unexpected other differences;" \
    "$all_seconds s, of which $SECONDS s in this run"
if ${is_complete:-false}; then
    for at in "${!patterns[@]}"; do
        [ "${used[at]}" != 0 ] || { echo "${patterns[at]}: no test fails that this exception names"; unexpected=1; }
    done
fi
[ "$unexpected" = 0 ] || { echo "differences are not those that $exceptions lists"; exit 1; }
