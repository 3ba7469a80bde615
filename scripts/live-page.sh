#!/usr/bin/env bash
# Opens the live page of `braid serve --http` in a browser, and checks what its script has drawn.
#
#     scripts/live-page.sh
#
# Needs Chromium or Chrome, and says so and ends well if there is none. BRAID names a program that is
# built already.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$PWD/target/live-page
mkdir -p "$work"
browser=''
for name in chromium chromium-browser google-chrome; do
    [[ -n $browser ]] || browser=$(command -v "$name" || true)
done
[[ -n $browser ]] || { printf 'SKIPPED: no chromium and no google-chrome\n'; exit 0; }

options=(--http 127.0.0.1:0)
source scripts/start-server.sh
until grep -q 'pages at' "$work/server.log"; do
    kill -0 "$server"
    read -r -t 0.05 _ <> <(:) || true
done
page=$(sed -n 's/^pages at //p' "$work/server.log")

# Writes for the figures.
exec 3<>"/dev/tcp/${address%:*}/${address##*:}"
for _ in 1 2 3 4 5 6 7 8; do
    printf 'SET book Emma\r\n' >&3
    read -r reply <&3
    [[ $reply == +OK* ]]
done

# The page asks once a second; three seconds pass for its script, whose time does not run while it waits
# for an answer.
timeout 60 "$browser" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage \
    --user-data-dir="$work/profile" --virtual-time-budget=3000 --dump-dom "$page" \
    >"$work/page.html" 2>"$work/browser.log" ||
    { tail -5 "$work/browser.log"; printf 'the browser failed\n'; exit 1; }

expect() {
    grep -qE "$1" "$work/page.html" || { printf 'the page lacks %s; it is in %s\n' "$1" "$work/page.html"; exit 1; }
}
expect '<span id="health" class="">good</span>'
expect '<span id="version">· version [0-9.]+ · protocol '
# Each section has a figure and a line of two points or more.
for name in commands commits shared p50 p99 slow clients pool_bytes version_bytes log_bytes; do
    expect "<section id=\"$name\"><h2>[^<]+</h2><output>[0-9][^<]*</output><svg[^>]*><path d=\"M[0-9. ]+L"
done
printf 'The live page shows %s figures.\n' "$(grep -o '<section ' "$work/page.html" | wc -l)"
