# Two images out of one build of static binaries:
#
#   docker build --target operator   -t fairlead-operator .
#   docker build --target node-agent -t fairlead-node-agent .

# On Alpine the host's own target is musl, so that cargo links statically without a cross compiler.
FROM docker.io/library/rust:1.95.0-alpine AS build
# aws-lc-sys compiles C and assembly with cc.
RUN apk add --no-cache build-base linux-headers
WORKDIR /src
COPY . .
# The image's own toolchain is the one the file names; rustup must not fetch another for its components.
RUN rm rust-toolchain.toml
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target \
    cargo build --release --locked --bins \
      --package fairlead-operator --package fairlead-node-agent --package fairlead-supervisor \
    && mkdir /out \
    && cp target/release/fairlead-operator target/release/fairlead-node-agent target/release/fairlead-supervisor /out/

# The operator needs nothing but itself: no shell, no libc, no user database.
FROM scratch AS operator
# Model providers speak TLS with certificates of public authorities.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/fairlead-operator /usr/local/bin/fairlead-operator
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/fairlead-operator"]

# The node agent's image is also where tools find their programs: a shell, coreutils, curl, git, python3.
FROM docker.io/library/debian:12-slim AS node-agent
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates curl git python3 \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /out/fairlead-supervisor /out/fairlead-node-agent /usr/local/bin/
# Root, said explicitly: it makes control groups and gives each run a user of its own.
USER 0:0
# PID 1 of the container: the supervisor, the parent of the agent and of every tool.
ENTRYPOINT ["/usr/local/bin/fairlead-supervisor"]
