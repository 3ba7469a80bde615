#!/usr/bin/env bash
# Runs redis-py's own tests against `braid serve`.
#
#     scripts/redis-py.sh [PYTEST ARGUMENTS...]
#
# Needs Python with venv and a package registry; says so and ends well if they are missing. Tests of
# commands that the server does not have are left out, each by a line of scripts/redis-py.exceptions.
# Takes about two minutes.
set -euo pipefail
cd "$(dirname "$0")/.."

version=8.1.0
work=target/redis-py
mkdir -p "$work"

if ! python3 -m venv "$work/venv" >/dev/null 2>&1 ||
    ! "$work/venv/bin/pip" install -q "redis==$version" pytest pytest-asyncio pytest-timeout numpy >/dev/null 2>&1; then
    printf 'SKIPPED: no Python with venv, or no package registry\n'
    exit 0
fi
if [[ ! -d $work/redis-$version ]]; then
    if ! "$work/venv/bin/pip" download -q --no-deps --no-binary :all: -d "$work" "redis==$version" >/dev/null 2>&1; then
        printf 'SKIPPED: the registry has no sources of redis-py %s\n' "$version"
        exit 0
    fi
    tar -xzf "$work/redis-$version.tar.gz" -C "$work"
    # Deletes a user with ACL at the end of the whole run, which would hide the results.
    sed -i 's/^        r\.acl_deluser(username)/        pass/' "$work/redis-$version/tests/test_commands.py"
fi

source scripts/start-server.sh

left_out=$(sed 's/#.*//; s/ *$//; /^$/d' scripts/redis-py.exceptions | paste -sd'|' | sed 's/|/ or /g')
cd "$work/redis-$version"
"../venv/bin/python" -m pytest -q --timeout 120 -p no:cacheprovider --redis-url "redis://$address/9" \
    tests/test_commands.py tests/test_encoding.py tests/test_pipeline.py \
    -k "(TestRedisCommands or TestEncoding or TestPipeline or TestInvalid) and not ($left_out)" "$@"
