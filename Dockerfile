# syntax=docker/dockerfile:1

FROM rust:1.90-slim-bookworm AS build
WORKDIR /src
# Places of panics stay in the program; lines of backtraces would make it five times larger.
ENV CARGO_PROFILE_RELEASE_DEBUG=0
# Dependencies first, for a program that does nothing: this layer is kept until the list of them changes. Tests, benches and
# examples are not copied, so the manifest must not ask for them.
COPY Cargo.toml Cargo.lock ./
RUN sed -i -E '/^\[\[(test|bench|example)\]\]/,/^$/d' Cargo.toml \
    && mkdir src \
    && touch src/lib.rs \
    && echo 'fn main() {}' >build.rs \
    && cp build.rs src/main.rs \
    && cargo build --release --locked --bin croupier
COPY build.rs ./
COPY helm helm
COPY kernels kernels
COPY proto proto
COPY src src
# What is copied keeps its age, and may be older than what was built in its place.
RUN touch build.rs src/lib.rs src/main.rs && cargo build --release --locked --bin croupier

# glibc and libgcc of the same Debian, a user, nothing else. A driver for GPUs would come from the container runtime.
FROM gcr.io/distroless/cc-debian12:nonroot
# Whence it comes: given when it is built.
ARG VERSION=""
ARG REVISION=""
ARG SOURCE=""
LABEL org.opencontainers.image.title="croupier" \
      org.opencontainers.image.description="A gRPC sampling sidecar for LLM inference" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.source="$SOURCE"
COPY --from=build /src/target/release/croupier /usr/local/bin/croupier
# Nobody outside of the container would reach 127.0.0.1.
ENV CROUPIER_LISTEN=0.0.0.0:50051 \
    CROUPIER_ADMIN=0.0.0.0:9464
USER 65532:65532
EXPOSE 50051 9464
# Asks where the variables above, or those set in their place, make the server listen.
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s CMD ["/usr/local/bin/croupier", "healthcheck"]
ENTRYPOINT ["/usr/local/bin/croupier"]
CMD ["serve"]
