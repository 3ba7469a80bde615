#!/usr/bin/env bash
# Runs scripts/sqlite-versions.c, which links libbraid_sqlite, with several versions of SQLite: the
# system's, the newest one that a crate carries, and the oldest ones. The one before 3.32 is refused.
# Cargo fetches the sources of SQLite, which crates carry. Skips what cannot be fetched or built.
set -euo pipefail
cd "$(dirname "$0")/.."
target="$(realpath -m "${CARGO_TARGET_DIR:-target}")"
folder="$target/sqlite-versions"
command -v gcc >/dev/null || { echo "skipped: gcc is missing"; exit 0; }
cargo build --release --quiet -p braid-sqlite
library="$target/release/libbraid_sqlite.so"
mkdir -p "$folder"
cp "$library" "$folder/copy.so"

# Runs a program with an empty folder.
run() {
    rm -rf "$folder/run"
    mkdir -p "$folder/run"
    LD_LIBRARY_PATH="$target/release" "$1" "$folder/run" "$library" "$folder/copy.so"
}

if echo '#include <sqlite3.h>' | gcc -E - >/dev/null 2>&1; then
    gcc -O1 scripts/sqlite-versions.c -o "$folder/system" -L"$target/release" -lbraid_sqlite -lsqlite3
    run "$folder/system"
else
    echo "skipped: the system's SQLite has no header (libsqlite3-dev)"
fi

# Crate, version ("*" is the newest), and options of the compiler.
while read -r crate version options; do
    name="$crate-${version#=}"
    name="${name/\*/newest}"
    if [ ! -f "$folder/$name/sqlite3.c" ]; then
        mkdir -p "$folder/$name/fetch/src"
        touch "$folder/$name/fetch/src/lib.rs"
        printf '[package]\nname = "fetch"\nversion = "0.0.0"\nedition = "2021"\n[workspace]\n[dependencies]\n%s = "%s"\n' \
            "$crate" "$version" >"$folder/$name/fetch/Cargo.toml"
        if ! (cd "$folder/$name/fetch" && cargo vendor --quiet vendor >/dev/null 2>&1); then
            echo "skipped: the crate $crate $version cannot be fetched"
            continue
        fi
        find "$folder/$name/fetch/vendor" \( -path "*/$crate*/sqlite3.c" -o -path "*/$crate*/sqlite3.h" \
            -o -path "*/$crate*/sqlite3ext.h" \) -not -path '*sqlcipher*' -exec cp {} "$folder/$name/" \;
    fi
    object="$folder/$name/sqlite3.o"
    [ -f "$object" ] || gcc -O0 -w -c "$folder/$name/sqlite3.c" -o "$object"
    # shellcheck disable=SC2086
    gcc -O1 $options -I"$folder/$name" scripts/sqlite-versions.c "$object" -o "$folder/$name/program" \
        -L"$target/release" -lbraid_sqlite -lpthread -ldl -lm
    run "$folder/$name/program"
done <<'VERSIONS'
libsqlite3-sys *
libsqlite3-sys =0.20.1
sqlite3-src =0.2.12
libsqlite3-sys =0.18.0 -DTOO_OLD
VERSIONS
