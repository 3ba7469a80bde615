# Everyday commands; `just` lists them. (https://just.systems; each line also works without it.)

_default:
    @just --list

# Format, lint and document as CI does
check:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets -- -D warnings
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

# Run all tests, or those of one crate: `just test braid-log`
test crate="":
    cargo test {{ if crate == "" { "--workspace" } else { "-p " + crate } }}

# Run simulated histories: `just sim 0..100000`
sim seeds="0..14000":
    cargo build --profile test -p braid-cli
    target/debug/braid simulate --seeds {{ seeds }}

# Measure durable updates, and the bare log for comparison: `just bench u1 --threads 32`
bench workload="u1" *options="--threads 32 --with-limit":
    cargo run --profile fat -p braid-cli -- bench {{ workload }} {{ options }}

# Compare instruction counts with the recorded ones
instructions:
    scripts/instructions.sh check

# Compare the public interface with the recorded one; `just interface update` records it
interface action="check":
    scripts/public-api.sh {{ action }}

# Show the book at http://localhost:3000 (needs mdBook)
book:
    mdbook serve

# Build and test the Python package
python:
    scripts/python.sh

# Everything that must pass before a change is merged
ci:
    .ci/run
