#!/usr/bin/env bash
# Mutation testing of the engine's core: every mutant of the chosen files in one build. See docs/testing.md.
# Not part of CI.
#
#     scripts/mutate.sh build [--tests] [FILE...]
#     scripts/mutate.sh run [--quick] [--jobs N] [--sample N] [--seed N] [--minutes N] [--again] ... [ID...]
#     scripts/mutate.sh survivors [--all]
set -euo pipefail
cd "$(dirname "$0")/.."
exec cargo run --quiet --manifest-path tools/mutate/Cargo.toml --target-dir target/mutate/tool -- "$@"
