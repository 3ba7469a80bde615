# Starts `braid serve` with a new database in the directory $work, with the options $options if there are
# any, until the script that sources this file ends, and sets $address to where it serves. BRAID names a
# program that is built already. Runs in the root of the repository.
[[ -n ${BRAID:-} ]] || cargo build --quiet -p braid-cli
rm -rf "$work/db"
"${BRAID:-target/debug/braid}" serve "$work/db" --port 0 ${options[@]+"${options[@]}"} >"$work/server.log" &
server=$!
trap 'kill $server 2>/dev/null || true; wait $server 2>/dev/null || true' EXIT
until grep -q 'serving on' "$work/server.log"; do
    kill -0 $server || { printf 'the server did not start\n'; exit 1; }
    read -r -t 0.05 _ <> <(:) || true
done
address=$(sed -n 's/.*serving on //p' "$work/server.log")
