# shellcheck shell=bash
# For scripts that use SQLite's own tests: fetches the sources of the distribution's package into
# $suite, a folder of the target directory, and sets $sources to their folder.

skip() {
    echo "skipped: $1"
    exit 0
}

fetch_sources() {
    command -v apt-get >/dev/null || skip "apt-get is missing"
    mkdir -p "$suite/apt/lists/partial" "$suite/apt/cache/archives/partial"
    if ! ls -d "$suite"/sqlite3-3*/ >/dev/null 2>&1; then
        # shellcheck source=/dev/null
        . /etc/os-release
        [ "${ID:-}" = debian ] || skip "the sources are fetched on Debian only"
        echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]" \
            "http://deb.debian.org/debian $VERSION_CODENAME main" >"$suite/apt/sources.list"
        local options=(-qq -o "Dir::Etc::sourcelist=$suite/apt/sources.list" -o Dir::Etc::sourceparts=-
            -o "Dir::State::lists=$suite/apt/lists" -o "Dir::Cache=$suite/apt/cache"
            -o "APT::Sandbox::User=$(id -un)")
        (cd "$suite" && apt-get "${options[@]}" update &&
            apt-get "${options[@]}" source --download-only sqlite3) ||
            skip "the sources of the package sqlite3 cannot be fetched"
        # Complete or absent, also after an interruption.
        rm -rf "$suite/unpacked"
        mkdir "$suite/unpacked"
        tar -xf "$suite"/sqlite3_*.orig.tar.xz -C "$suite/unpacked"
        mv "$suite/unpacked"/sqlite3-3* "$suite"
    fi
    sources="$(echo "$suite"/sqlite3-3*/)"
    sources="${sources%/}"
}
