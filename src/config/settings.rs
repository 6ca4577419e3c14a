//! The list of settings.

use super::setting::{ANY, FRAME, MESSAGE, POSITIVE, WINDOW};
pub(super) use super::setting::{Setting, env_name};
use super::values::{self, BACKEND, HOST_ROWS, LOG_FORMAT, SHIPPED, SIMD, show_duration, show_option, show_size};
use crate::params::MAX_VOCAB_SIZE;
use std::path::PathBuf;
use std::time::Duration;

/// Every setting, in the order of `--help`.
pub(super) static SETTINGS: &[Setting] = &[
    setting!(
        "listen",
        "ADDR",
        listen,
        values::address,
        |a: &Option<_>| show_option(*a, "none"),
        "Address for gRPC over TCP, IP:PORT; none switches TCP off. Port 0 takes any free port. Listen on 0.0.0.0 or [::] only on a trusted network, or with tls-cert and either tls-client-ca or auth-token-file"
    ),
    setting!(
        "uds",
        "PATH",
        uds,
        values::socket_path,
        |p: &Option<PathBuf>| show_option(p.as_ref().map(|p| p.display()), "none"),
        "Path of a Unix socket for gRPC, mode 0660. The fastest transport for a worker on the same host: put it in a directory that both containers mount"
    ),
    setting!(
        "region-socket",
        "PATH",
        region_socket,
        values::region_socket,
        values::show_region_socket,
        "Path of the Unix socket that hands workers shared memory for their logits, mode 0660; auto: the path of uds followed by .region, if uds is set; none switches shared memory off. Linux only"
    ),
    setting!(
        "admin",
        "ADDR",
        admin,
        values::address,
        |a: &Option<_>| show_option(*a, "none"),
        "Address for /metrics, /livez and /readyz over HTTP; none switches them off. Prometheus and the kubelet need an address other than 127.0.0.1"
    ),
    path!(
        "tls-cert",
        tls.cert,
        "PEM file with the server's TLS certificate for listen, followed by its intermediate certificates; none: plain text. Read again when it changes, together with tls-key. The Unix socket and the admin port stay plain"
    ),
    path!("tls-key", tls.key, "PEM file with the private key of tls-cert, without a password; required with tls-cert"),
    path!(
        "tls-client-ca",
        tls.client_ca,
        "PEM file of certificate authorities, one of which must have signed a client's certificate; none: TLS clients need no certificate. Read again when it changes"
    ),
    duration!(
        "tls-handshake-timeout",
        tls_handshake_timeout,
        POSITIVE,
        "How long a TLS handshake may take; first-byte-timeout starts after it. Keeps silent connections from using up max-connections"
    ),
    path!(
        "auth-token-file",
        auth_token_file,
        "File of tokens, one per line. Every call on listen, except health, must send one of them as authorization: Bearer TOKEN; none: no token is needed. Read again when it changes. Use it with TLS: without, tokens travel in plain text"
    ),
    word!(
        "backend",
        "NAME",
        backend,
        &BACKEND,
        "Which backend samples: cpu, cuda (a GPU; the server does not start without a working one) or auto (a GPU if one works, else the CPU). Tokens are the same with each. A GPU samples the rows in its own memory; host-rows selects what samples the others"
    ),
    setting!(
        "presets",
        "PATH",
        presets_file,
        values::presets,
        |p: &Option<PathBuf>| show_option(p.as_ref().map(|p| p.display()), SHIPPED),
        "TOML file with presets, named sets of sampling parameters that clients choose with params.preset; shipped: those that come with the program"
    ),
    path!(
        "vocabulary",
        vocabulary_file,
        "File with the text of each token, for params.grammar, params.infill and params.dry_sequence_breaker_texts: a Hugging Face tokenizer.json (BPE or Unigram), or a JSON array of texts by token id, null where a token has none; at most 64 MiB. none: token texts are unknown. Read once"
    ),
    switch!(
        "grammars",
        grammars,
        "Compile the grammars that clients send (params.grammar); needs a vocabulary. A compiler is a large attack surface: a client may find a grammar that uses up all memory and so takes the server down for everyone"
    ),
    setting!(
        "device",
        "GPU",
        device,
        values::device,
        |d: &String| d.clone(),
        "Which GPU to use: its index in the driver's order, or its UUID as nvidia-smi -L shows it. Only used with backend cuda or auto"
    ),
    word!(
        "host-rows",
        "NAME",
        host_rows,
        &HOST_ROWS,
        "With a GPU: what samples the rows whose logits arrive in messages or in shared memory: cpu, which takes about as long per row as packing it for the GPU would; or cuda, which copies them to the GPU. Tokens are the same with each"
    ),
    setting!(
        "threads",
        "N",
        threads,
        |t| if t == "auto" { Ok(None) } else { values::count(t, 1..=1024).map(Some) },
        |n: &Option<usize>| show_option(*n, "auto"),
        "Threads that sample; auto: as many as the process's CPU quota and affinity allow. Lower it to leave cores to a worker on the same host"
    ),
    setting!(
        "io-threads",
        "N",
        io_threads,
        |t| if t == "auto" { Ok(None) } else { values::count(t, 1..=1024).map(Some) },
        |n: &Option<usize>| show_option(*n, "auto"),
        "Threads that read and write messages; auto: as many as the CPU quota and affinity allow, at most 8. With 1, a step through shared memory returns about 10% sooner, but several streams of inline logits wait for each other"
    ),
    setting!(
        "simd",
        "LEVEL",
        simd,
        values::simd,
        |s| values::word_of(s, &SIMD),
        "Instruction set the CPU backend may use: auto, avx512-amd, avx512, avx2 or portable. Tokens are the same with each; change it only to compare speeds"
    ),
    duration!(
        "first-byte-timeout",
        first_byte_timeout,
        POSITIVE,
        "How long a new connection may take to send its HTTP/2 preface. Keeps silent connections from using up max-connections"
    ),
    duration!(
        "keepalive-interval",
        keepalive_interval,
        ANY,
        "Time between HTTP/2 pings to a silent client; one that does not answer is cut off and its sequences are freed. 0 sends no pings. Raise it on links that charge for traffic"
    ),
    duration!(
        "keepalive-timeout",
        keepalive_timeout,
        POSITIVE,
        "How long a client may take to answer a ping before its connection is closed"
    ),
    duration!(
        "max-connection-age",
        max_connection_age,
        ANY,
        "Age at which a connection stops accepting new calls. Its streams go on until the worker closes them; the worker's next stream opens a new connection, perhaps to another replica. 0: no limit. For a service whose replicas come and go"
    ),
    duration!(
        "engine-stall-timeout",
        engine_stall_timeout,
        ANY,
        "How long the engine may work on one batch before /livez fails, so that the process is restarted. /livez succeeds again once the engine moves on. 0: no limit"
    ),
    duration!(
        "lame-duck",
        lame_duck,
        ANY,
        "How long to keep accepting new connections after a stop signal, while health already reports NOT_SERVING. 0 for a sidecar; about 5s behind a load balancer that must notice first"
    ),
    duration!(
        "drain-timeout",
        drain_timeout,
        ANY,
        "How long streams may go on after a stop signal, lame-duck included; those still open then end with UNAVAILABLE. Keep it 2 to 5 seconds below terminationGracePeriodSeconds"
    ),
    switch!(
        "device-ipc",
        device_ipc,
        "Accept GPU buffers that workers lend by a legacy CUDA IPC handle. A worker that frees one too early can crash the server for everyone who uses it"
    ),
    switch!(
        "reflection",
        reflection,
        "Serve gRPC reflection, so that grpcurl needs no .proto file. It tells everyone who connects what can be called"
    ),
    limit!(
        "max-connections",
        max_connections,
        1..=1_000_000,
        "Connections open at the same time, on all transports; further ones are closed immediately. Each needs a file descriptor. With uds, one in eight (at least one, if there are several) is for Unix sockets only"
    ),
    limit!(
        "max-streams",
        max_streams,
        1..=1_000_000,
        "Decode streams open at the same time; further ones are refused with RESOURCE_EXHAUSTED. Each worker needs one"
    ),
    limit!(
        "max-steps-in-flight-per-stream",
        max_steps_in_flight_per_stream,
        1..=65_536,
        "Steps of one stream in flight; its next message is not read until one of them is answered"
    ),
    limit!(
        "max-sequences-per-stream",
        max_sequences_per_stream,
        1..=100_000_000,
        "Sequences open on one stream; unless set, no more than max-sequences"
    ),
    limit!(
        "max-sequences",
        max_sequences,
        1..=100_000_000,
        "Sequences open at the same time; each takes about 1 KiB plus its history, which max-state-bytes bounds"
    ),
    limit!(
        "max-history-tokens",
        max_history_tokens,
        1..=(1 << 28),
        "Prompt and output tokens of one sequence, together; its predicted output may have as many. Must cover the model's longest context"
    ),
    size!(
        "max-state-bytes",
        limits.max_state_bytes,
        usize,
        1 << 20..=1 << 46,
        "Memory for the state of all sequences (their own parameters and, with penalties, 16 to 20 bytes for each distinct token), for streams' draft vocabularies, and for grammars. When it is used up, the server refuses to open more; set it to the memory you can spare"
    ),
    limit!("max-rows-per-step", max_rows_per_step, 1..=1_000_000, "Logits rows in one step"),
    size!(
        "max-row-bytes-per-step",
        limits.max_row_bytes_per_step,
        usize,
        4096..=1 << 46,
        "Bytes of the logits rows in one step, and in one batch; a shared row counts each time it is used. Bounds how long one stream's batch can hold up the others. At least max-message-bytes"
    ),
    limit!(
        "max-vocab-size",
        max_vocab_size,
        2..=MAX_VOCAB_SIZE,
        "Largest vocabulary a stream may announce, in tokens; it can be lowered, not raised"
    ),
    limit!(
        "max-top-logprobs",
        max_top_logprobs,
        0..=MAX_VOCAB_SIZE,
        "How many of the most likely tokens a request may ask for with each token. Each makes replies larger and rows slower"
    ),
    size!(
        "max-message-bytes",
        limits.max_message_bytes,
        usize,
        MESSAGE,
        "Largest request message. Must hold a step's logits: rows × vocabulary × 2 or 4 bytes. Messages of about 1MiB are fastest"
    ),
    size!(
        "max-bytes-in-flight",
        limits.max_bytes_in_flight,
        usize,
        4096..=1 << 46,
        "Bytes of messages received and not yet answered, of all streams. When it is used up, the server refuses steps; set it to the memory you can spare, at least max-message-bytes"
    ),
    limit!(
        "max-queued-steps",
        max_queued_steps,
        1..=1_000_000,
        "Steps waiting for the backend; further ones are refused immediately, with a hint when to retry"
    ),
    duration!(
        "reply-timeout",
        limits.reply_timeout,
        ANY,
        "How long a reply, or a message queued after it, may wait for the worker to read earlier replies, or to open its HTTP/2 window for them; then the stream ends with ABORTED, and its share of max-bytes-in-flight is freed. 0: no limit"
    ),
    duration!(
        "receive-timeout",
        limits.receive_timeout,
        ANY,
        "How long a message may take to arrive, counted from its first byte or, for the first message of a call, from the beginning of the call; then the call ends with ABORTED. 0: no limit"
    ),
    limit!("max-regions-per-stream", max_regions_per_stream, 1..=1024, "Shared memory regions of one stream"),
    size!(
        "max-bytes-per-region",
        limits.max_bytes_per_region,
        usize,
        4096..=1 << 40,
        "Largest shared memory region. Must hold the rows of a step, once for each buffer the worker writes in turn: rows × vocabulary × 2 or 4 bytes"
    ),
    size!(
        "max-region-bytes",
        limits.max_region_bytes,
        usize,
        4096..=1 << 46,
        "Bytes of the shared memory regions of all streams. When it is used up, the server refuses to lease more. Regions count as memory of this process, whoever writes to them"
    ),
    size!(
        "max-device-region-bytes",
        limits.max_device_region_bytes,
        usize,
        0..=1 << 46,
        "Bytes of GPU memory for the regions of all streams, with backend cuda. Memory is allocated on the GPU when a worker leases it; 0 offers none"
    ),
    limit!(
        "max-ranks-per-stream",
        max_ranks_per_stream,
        1..=1024,
        "Ranks of a tensor-parallel worker that may hold columns of one stream's vocabulary, rank 0 included"
    ),
    limit!(
        "max-attached-ranks",
        max_attached_ranks,
        0..=1_000_000,
        "Ranks above 0 attached, or attaching, at the same time; further ones are refused with RESOURCE_EXHAUSTED"
    ),
    limit!(
        "max-shards-ahead",
        max_shards_ahead,
        1..=65_536,
        "Shards that one rank may announce before the first of them is finished; beyond that its next message is not read"
    ),
    size!(
        "max-shard-bytes",
        limits.max_shard_bytes,
        usize,
        4096..=1 << 46,
        "Bytes of messages with columns from ranks above 0 that are announced but not yet finished. When it is used up, the server refuses shards; set it to the memory you can spare. Shards in shared memory take none of it"
    ),
    duration!(
        "shard-timeout",
        limits.shard_timeout,
        POSITIVE,
        "How long a step waits for the columns of other ranks before its rows fail. The time runs from the step's turn, or from its receipt if the step before it waited without success. Raise it where ranks may be late, as when a kernel is compiled on first use"
    ),
    limit!(
        "max-model-labels",
        max_model_labels,
        0..=1000,
        "Distinct model labels in metrics; further ones are counted as \"other\""
    ),
    size!(
        "http2-stream-window",
        http2.stream_window,
        u32,
        WINDOW,
        "How much a client may send on one stream before it must wait. Raise it on long fast links: bandwidth × round trip"
    ),
    size!(
        "http2-connection-window",
        http2.connection_window,
        u32,
        WINDOW,
        "How much a client may send on one connection before it must wait; at least http2-stream-window"
    ),
    size!(
        "http2-frame-size-tcp",
        http2.frame_size_tcp,
        u32,
        FRAME,
        "Largest HTTP/2 frame on TCP. Larger frames cost less, smaller ones share a connection better"
    ),
    size!("http2-frame-size-uds", http2.frame_size_uds, u32, FRAME, "Largest HTTP/2 frame on the Unix socket"),
    setting!(
        "otlp-endpoint",
        "URL",
        traces.endpoint,
        values::collector,
        |url: &Option<String>| show_option(url.as_ref(), "none"),
        "OpenTelemetry collector to send traces to, by OTLP over gRPC: http://HOST:PORT, or https://HOST:PORT with otlp-ca; none: no traces. Traces never hold up a step: spans that the collector does not accept in time are dropped and counted"
    ),
    path!(
        "otlp-ca",
        traces.ca,
        "PEM file of certificate authorities, one of which must have signed the collector's certificate; required for https, and only allowed there. Read once"
    ),
    setting!(
        "trace-ratio",
        "SHARE",
        trace_ratio,
        values::share,
        ToString::to_string,
        "Share of the steps and calls without a trace context that are recorded, 0 to 1. A call that carries a context is recorded if its sampled flag is set, whatever the share. Only used with otlp-endpoint"
    ),
    word!(
        "log-format",
        "FORMAT",
        log_format,
        &LOG_FORMAT,
        "Format of log lines on stderr: text or json. Use json where logs are collected"
    ),
    setting!(
        "log-level",
        "FILTER",
        log_level,
        values::log_level,
        Clone::clone,
        "Which log lines to write: error, warn, info, debug or trace, or by module, such as info,croupier=debug,h2=warn"
    ),
];
