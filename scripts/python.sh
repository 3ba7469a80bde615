#!/usr/bin/env bash
# Builds the Python package and runs its type checkers and tests; see docs/python.md.
#
#     scripts/python.sh [pytest arguments]
#
# The virtual environment and what is built are kept in the target directory. PYTHON=python3.12 takes another one.
set -euo pipefail
cd "$(dirname "$0")/.."

# What can't be run here is said, and is no failure: CI may have no Python, and no way to the tools.
skip() {
    printf 'SKIPPED: %s\n' "$*"
    exit 0
}

python=${PYTHON:-python3}
supported='import sys; sys.exit(sys.version_info < (3, 10))'
"$python" -c "$supported" 2>/dev/null || skip "no $python of version 3.10 or newer"

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")/python
venv=$target/venv
# One of another version, or of a Python that is gone, is of no use.
version=$("$python" -c 'import sys; print(sys.version)')
if [ "$("$venv/bin/python" -c 'import sys; print(sys.version)' 2>/dev/null)" != "$version" ]; then
    rm -rf "$venv"
    "$python" -m venv "$venv" || skip "$python can't make virtual environments"
fi
pip=("$venv/bin/pip" --disable-pip-version-check --quiet)
"${pip[@]}" install --requirement python/tests/requirements.txt ||
    skip "pip can't install the tools of python/tests/requirements.txt"

# In a directory of its own: with maturin's environment all that pyo3 is would be built anew each time.
export CARGO_TARGET_DIR=$target/clippy
(cd python && cargo fmt --check && cargo clippy --locked --all-targets -- -D warnings)
export CARGO_TARGET_DIR=$target

# As a user does it, but for the profile.
MATURIN_PEP517_ARGS="--profile dev" PATH=$venv/bin:$PATH \
    "${pip[@]}" install --no-build-isolation --no-deps --force-reinstall ./python

cd python
"$venv/bin/mypy" --config-file pyproject.toml lib/braid tests examples benchmarks
# From elsewhere, so that it takes what is installed.
(cd "$target" && "$venv/bin/stubtest" braid)
"$venv/bin/pytest" "$@"
