#!/usr/bin/env bash
# Runs test files of SQLite's own suite twice, without and with the extension braid-sqlite as the
# default VFS, and compares which tests fail. Tests that may fail only with the extension are listed in
# scripts/sqlite-suite.exceptions, each with its reason.
#
#     scripts/sqlite-suite.sh [--seconds N] [FILE...]   (by default every wal*.test and the permutation wal)
#
# The sources are those of the distribution's package, which apt-get fetches into a folder of the
# target directory. Skips where apt-get, its sources, a C compiler or Tcl is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
target="$(realpath -m "${CARGO_TARGET_DIR:-target}")"
suite="$target/sqlite-suite"
exceptions="$PWD/scripts/sqlite-suite.exceptions"
limit=120
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

cargo build --release --quiet -p braid-sqlite
library="$target/release/libbraid_sqlite.so"
if [ ! -x "$suite/build/testfixture" ] || [ scripts/sqlite-suite.c -nt "$suite/build/testfixture" ] ||
    [ crates/braid-sqlite/include/braid_sqlite.h -nt "$suite/build/testfixture" ]; then
    extra="$suite/build/extra.o"
    (
        cd "$suite/build"
        if [ ! -f Makefile ]; then
            "$sources/configure" --with-tcl="$tcl" --disable-amalgamation \
                CFLAGS="-O1 -DSQLITE_EXTRA_INIT=braid_extra_init" >configure.log 2>&1
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

# Prints the names of the tests that fail, and whether the file ran to its end.
run() {
    local kind="$1" file="$2" folder="$suite/run/$1"
    rm -rf "$folder"
    mkdir -p "$folder"
    if [ "$kind" = braid ]; then
        # The log lies next to the database, so that tests which save and restore files save it, too.
        export BRAID_SUITE_LIBRARY="$library" BRAID_MEMORY=emulated
    fi
    local arguments=()
    [ "$file" != permutations ] || arguments=(wal)
    # By default a file ends after 1,000 errors.
    (cd "$folder" && timeout "$limit" "$suite/build/testfixture" "$sources/test/$file.test" \
        "${arguments[@]}" --maxerror=1000000 >out.txt 2>&1) || true
    unset BRAID_SUITE_LIBRARY BRAID_MEMORY
    grep -a -q "errors out of" "$folder/out.txt" || echo "$file(unfinished)"
    # Also of a file that does not reach its end.
    LC_ALL=C awk '/^! .* expected: / { print $2 } /^Error: / { sub(/[.][.][.]$/, "", last); print last } { last = $0 }
        sub(/^!Failures on these tests: /, "") { gsub(/ /, "\n"); print }' "$folder/out.txt" | sed '/^$/d'
}

if [ $# -gt 0 ]; then
    files=("$@")
else
    mapfile -t files < <(cd "$sources/test" && ls wal*.test | sed 's/\.test$//')
    files+=(permutations)
fi
unexpected=0
for file in "${files[@]}"; do
    file="${file%.test}"
    run stock "$file" | sort -u >"$suite/stock.txt"
    run braid "$file" | sort -u >"$suite/braid.txt"
    tests="$(grep -a "errors out of" "$suite/run/braid/out.txt" | sed 's/.*out of \([0-9]*\) .*/\1/' || true)"
    listed=0 others=()
    while read -r name; do
        is_listed=false
        while read -r pattern _; do
            # shellcheck disable=SC2053
            [[ "$name" != $pattern ]] || is_listed=true
        done < <(grep -v '^#' "$exceptions")
        if $is_listed; then listed=$((listed + 1)); else others+=("$name"); fi
    done < <(comm -13 "$suite/stock.txt" "$suite/braid.txt")
    echo "$file: ${tests:-?} tests, $listed listed exceptions, ${#others[@]} other differences ${others[*]}"
    unexpected=$((unexpected + ${#others[@]}))
done
[ "$unexpected" = 0 ] || { echo "$unexpected differences are not listed in $exceptions"; exit 1; }
