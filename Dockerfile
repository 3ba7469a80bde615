# The command line of Braid:
#
#     docker build -t braid .
#     docker run --rm --user "$(id -u):$(id -g)" -v "$PWD:/data" braid stat DB
#
# Docker's default seccomp profile forbids io_uring; Braid then uses plain file access.
FROM rust:1-slim-bookworm AS build
WORKDIR /braid
COPY . .
RUN cargo install --locked --profile dist --path crates/braid-cli --features scripts,tls --root /out

FROM debian:bookworm-slim
COPY --from=build /out/bin/braid /usr/local/bin/braid
WORKDIR /data
ENTRYPOINT ["braid"]
CMD ["--help"]
