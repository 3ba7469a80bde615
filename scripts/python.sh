#!/usr/bin/env bash
# Builds the Python packages (braid, and SQLite's extension) and runs their type checkers and tests; see
# docs/python.md and docs/sqlite.md.
#
#     scripts/python.sh [pytest arguments]
#
# Keeps the virtual environment and the build in the target directory. PYTHON=python3.12 selects
# another interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."

# A missing tool is reported and is not a failure, because CI may have no Python, or no access to
# the tools.
skip() {
    printf 'SKIPPED: %s\n' "$*"
    exit 0
}

python=${PYTHON:-python3}
supported='import sys; sys.exit(sys.version_info < (3, 10))'
"$python" -c "$supported" 2>/dev/null || skip "no $python of version 3.10 or newer"

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")/python
venv=$target/venv
# A virtual environment of another version, or of a removed Python, cannot be used.
version=$("$python" -c 'import sys; print(sys.version)')
if [ "$("$venv/bin/python" -c 'import sys; print(sys.version)' 2>/dev/null)" != "$version" ]; then
    rm -rf "$venv"
    "$python" -m venv "$venv" || skip "$python can't make virtual environments"
fi
pip=("$venv/bin/pip" --disable-pip-version-check --quiet)
"${pip[@]}" install --requirement python/tests/requirements.txt ||
    skip "pip can't install the tools of python/tests/requirements.txt"

# Build in a separate directory: maturin's environment would make cargo rebuild pyo3 and its
# dependents each time.
export CARGO_TARGET_DIR=$target/clippy
(cd python && cargo fmt --check && cargo clippy --locked --all-targets -- -D warnings)
export CARGO_TARGET_DIR=$target

# As a user does, except for the profile.
MATURIN_PEP517_ARGS="--profile dev" PATH=$venv/bin:$PATH \
    "${pip[@]}" install --no-build-isolation --no-deps --force-reinstall ./python

cd python
"$venv/bin/mypy" --config-file pyproject.toml lib/braid tests examples benchmarks
# Run in another directory, so that the tests import the installed package.
(cd "$target" && "$venv/bin/stubtest" braid)
"$venv/bin/pytest" "$@"

# SQLite's extension. The wheel has no sources, so that it is tested as it is installed.
cd sqlite
BRAID_PROFILE=dev CARGO_TARGET_DIR=${target%/python} \
    "${pip[@]}" install --no-build-isolation --no-deps --force-reinstall .
"$venv/bin/mypy" --config-file pyproject.toml lib/braid_sqlite backend tests
"$venv/bin/pytest" "$@"
