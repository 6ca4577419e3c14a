use super::*;
use std::collections::HashMap;
use std::ffi::OsString;
use std::path::Path;

mod access;
mod chart;
mod parameters;
mod presets;
mod wrong;

fn parse_with(args: &[&str], env: &[(&str, &str)]) -> Result<Command, Stop> {
    let env: HashMap<String, String> = env.iter().map(|&(k, v)| (k.to_owned(), v.to_owned())).collect();
    let args = std::iter::once("croupier").chain(args.iter().copied()).map(OsString::from);
    parse(args, &|name| env.get(name).map(OsString::from))
}

fn config(args: &[&str], env: &[(&str, &str)]) -> Config {
    match parse_with(args, env) {
        Ok(Command::Serve(config)) => *config,
        other => panic!("{other:?}"),
    }
}

fn mistakes(args: &[&str], env: &[(&str, &str)]) -> String {
    let stop = parse_with(args, env).expect_err("mistakes");
    assert_eq!(stop.code, EXIT_CONFIG, "{}", stop.text);
    stop.text
}

/// A vocabulary.
const TEXTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/config/tests/texts.json");

fn file(text: &str) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("croupier.toml");
    std::fs::write(&path, text).expect("a file");
    let path = path.display().to_string();
    (dir, path)
}

#[test]
fn nothing_given_is_the_default() {
    assert_eq!(config(&[], &[]), Config::default());
    assert_eq!(config(&["serve"], &[("CROUPIER_MAX_STREAMS", "")]), Config::default());
}

/// The example file of docs/configuration.md.
#[test]
fn the_file_to_start_from_is_right_and_changes_what_it_says() {
    let page = include_str!("../../docs/configuration.md");
    let text = page.split("```toml\n").nth(1).and_then(|part| part.split("```").next()).expect("the example");
    let (_dir, path) = file(text);
    let (read, default) = (config(&["--config", &path], &[]), Config::default());
    let limits = Limits { max_state_bytes: 2 << 30, max_bytes_in_flight: 512 << 20, ..default.limits.clone() };
    assert_eq!((read.listen, read.uds.as_deref()), (None, Some(Path::new("/run/croupier.sock"))));
    assert_eq!((read.threads(), &read.limits), (4, &limits));
    assert_eq!((read.defaults.temperature, read.defaults.top_p), (0.7, 0.9));
    // Each line of the example changes something.
    assert!(read.admin != default.admin && read.listen != default.listen && read.defaults != default.defaults);
}

#[test]
fn every_default_can_be_written_as_it_is_shown() {
    for setting in settings::SETTINGS {
        let mut config = Config::default();
        assert_eq!((setting.set)(&mut config, &setting.default()), Ok(()), "{}", setting.name);
        assert_eq!(config, Config::default(), "{}", setting.name);
    }
}

#[test]
fn every_limit_has_a_setting() {
    let names = format!("{:?}", Limits::default());
    for field in names.split(['{', ',', '}']).filter_map(|part| part.split_once(':')).map(|(name, _)| name.trim()) {
        assert!(settings::SETTINGS.iter().any(|s| s.key() == field), "{field}");
    }
}

#[test]
fn flag_over_environment_over_file_over_default() {
    let (_dir, path) = file("max_streams = 1\nmax_connections = 1\nmax_queued_steps = 1\nlisten = \"[::]:1\"\n");
    let env = [("CROUPIER_CONFIG", path.as_str()), ("CROUPIER_MAX_STREAMS", "2"), ("CROUPIER_MAX_CONNECTIONS", "2")];
    let config = config(&["--max-streams", "3"], &env);
    let limits = &config.limits;
    assert_eq!((limits.max_streams, limits.max_connections, limits.max_queued_steps), (3, 2, 1));
    assert_eq!(limits.max_sequences, Limits::default().max_sequences);
    assert_eq!(config.listen, "[::]:1".parse().ok());
}

#[test]
fn every_mistake_of_every_source_is_told_at_once() {
    let (_dir, path) = file(
        "max_steams = 1\nsimd = [1]\nmax_rows_per_step = 0\n[defaults]\ntemperatur = 1\ntop_p = 2.0\nmin_p = \"x\"\n[limits]\nx = 1\n",
    );
    let env = [("CROUPIER_THREADS", "many"), ("CROUPIER_LOG_LEVEL", "croupier=loud")];
    let args = [
        "serve",
        "--bogus",
        "1",
        "--config",
        &path,
        "--listen",
        "none",
        "--drain-timeout=5x",
        "--max-message-bytes=2GiB",
    ];
    let text = mistakes(&args, &env);
    for part in [
        "14 mistakes",
        "--bogus",
        "max_steams: unknown key; did you mean max_streams?",
        "simd: line 2, column 8: must be a single value",
        "max_rows_per_step: \"0\" is not a whole number in 1 ..=",
        "defaults.temperatur: unknown key; did you mean temperature?",
        &format!("{path}: defaults.top_p: is 2, must be in 0 ..= 1"),
        "defaults.min_p: \"x\"",
        "limits: unknown key",
        "CROUPIER_THREADS: \"many\"",
        "CROUPIER_LOG_LEVEL: \"croupier=loud\" is not a log filter",
        "--drain-timeout: \"5x\" is not a duration",
        "listen and uds are both off",
        "max-message-bytes is above max-row-bytes-per-step",
    ] {
        assert!(text.contains(part), "{part:?} is missing in:\n{text}");
    }
}

#[test]
fn a_flag_is_not_the_value_of_the_flag_before_it() {
    assert!(mistakes(&["--uds", "--listen", "none"], &[("CROUPIER_THREADS", "x")]).contains("--uds"));
}

#[test]
fn a_broken_file_is_told() {
    let (_dir, path) = file("max_streams = = 1");
    assert!(mistakes(&["--config", &path], &[]).contains("is not TOML: line 1, column 15: "));
    let (_dir, path) = file("[defaults]\ntop_p = .95");
    let told = mistakes(&["--config", &path], &[]);
    assert!(
        told.contains("line 2, column 9: ") && told.contains("; a number begins with a digit, as in 0.5"),
        "{told}"
    );
    // A quoted piece of the file could be the key of a watermark. This key is a number that TOML cannot represent.
    let (_dir, path) = file("[defaults]\nwatermark = { gumbel = { key = 12345678901234567890 } }\n");
    let told = mistakes(&["--config", &path], &[]);
    assert!(told.contains("is not TOML: line 2, column") && !told.contains("123456"), "{told}");
    let (_dir, path) = file("[defaults]\nwatermark = { gumbel = { key = 12345678901234567890123456 } }\n");
    let told = mistakes(&["--config", &path], &[]);
    assert!(told.contains("is not TOML: ") && !told.contains("123456"), "{told}");
    assert!(mistakes(&["--config", "/nowhere/at/all"], &[]).contains("cannot be read"));
}

#[test]
fn a_password_in_a_collector_s_address_is_not_shown() {
    let told = mistakes(&["--otlp-endpoint=http://me:secret@h:4317"], &[]);
    assert!(told.contains("before an @") && !told.contains("secret"), "{told}");
    assert!(mistakes(&["--otlp-endpoint=h:4317"], &[]).contains("\"h:4317\" is not a collector"));
}

#[test]
fn server_defaults_are_read_and_checked_together() {
    let (_dir, path) = file("[defaults]\ntemperature = 0\ntop_p = 0.9\ntop_k = 40\nignore_eos = true\n");
    let defaults = config(&["--config", &path], &[]).defaults;
    assert_eq!(
        defaults,
        SamplingParams { temperature: 0.0, top_p: 0.9, top_k: 40, ignore_eos: true, ..SamplingParams::default() }
    );
    let (_dir, path) = file("[defaults]\npenalty_decay_n = 5\npenalty_last_n = 10\ndry_penalty_last_n = -1\n");
    let defaults = config(&["--config", &path], &[]).defaults;
    assert_eq!((defaults.history.penalty_last_n, defaults.history.penalty_decay_n), (10, 5));
    let (_dir, path) = file("[defaults]\npenalty_decay_n = 5\n");
    assert!(mistakes(&["--config", &path], &[]).contains("defaults.penalty_last_n: is 0, but"));
    let (_dir, path) = file("[defaults]\nmin_tokens = 3\nmax_tokens = 2\n");
    assert!(mistakes(&["--config", &path], &[]).contains("defaults.min_tokens: is 3, above max_tokens 2"));
}

#[test]
fn settings_that_contradict_each_other_are_told() {
    let text = mistakes(
        &[
            "--listen=127.0.0.1:7",
            "--admin=127.0.0.1:7",
            "--http2-connection-window=65535",
            "--lame-duck=1h",
            "--uds=/nowhere/x",
        ],
        &[],
    );
    for part in
        ["4 mistakes", "the same address", "http2-connection-window is below", "lame-duck", "/nowhere does not exist"]
    {
        assert!(text.contains(part), "{part:?} is missing in:\n{text}");
    }
}

#[test]
fn what_bounds_something_else_may_be_as_large() {
    let read = config(
        &[
            "--lame-duck=40s",
            "--drain-timeout=40s",
            "--http2-stream-window=1MiB",
            "--http2-connection-window=1MiB",
            "--max-message-bytes=8MiB",
            "--max-bytes-in-flight=8MiB",
            "--max-row-bytes-per-step=8MiB",
            "--max-bytes-per-region=8MiB",
            "--max-region-bytes=8MiB",
        ],
        &[],
    );
    assert_eq!((read.lame_duck, read.drain_timeout), (Duration::from_secs(40), Duration::from_secs(40)));
    assert!(
        mistakes(&["--lame-duck=40001ms", "--drain-timeout=40s"], &[]).contains("lame-duck is above drain-timeout")
    );
}

#[test]
fn limits_that_contradict_each_other_are_told() {
    let text = mistakes(
        &[
            "--max-message-bytes=2MiB",
            "--max-bytes-in-flight=1MiB",
            "--max-row-bytes-per-step=1MiB",
            "--max-sequences=10",
            "--max-sequences-per-stream=11",
        ],
        &[],
    );
    for part in [
        "3 mistakes",
        "max-message-bytes is above max-row-bytes-per-step",
        "max-message-bytes is above max-bytes-in-flight",
        "max-sequences-per-stream is above",
    ] {
        assert!(text.contains(part), "{part:?} is missing in:\n{text}");
    }
}

#[test]
fn a_lower_limit_of_the_server_is_that_of_a_stream_too() {
    let limits = config(&["--max-sequences=10"], &[]).limits;
    assert_eq!((limits.max_sequences, limits.max_sequences_per_stream), (10, 10));
    let limits = config(&["--max-sequences=10", "--max-sequences-per-stream=3"], &[]).limits;
    assert_eq!((limits.max_sequences, limits.max_sequences_per_stream), (10, 3));
}

#[test]
fn values_are_read_with_their_units() {
    let config = config(
        &[
            "--max-message-bytes=2MiB",
            "--drain-timeout",
            "1.5s",
            "--keepalive-interval=0",
            "--reflection",
            "--io-threads=5",
            "--listen=localhost:1",
            "--log-format=json",
        ],
        &[("CROUPIER_THREADS", "3")],
    );
    assert_eq!(config.limits.max_message_bytes, 2 << 20);
    assert_eq!(config.drain_timeout, Duration::from_millis(1500));
    assert_eq!(config.keepalive_interval, Duration::ZERO);
    assert_eq!((config.reflection, config.log_format, config.threads()), (true, LogFormat::Json, 3));
    assert_eq!(config.io_threads(), 5);
    assert_eq!(config.listen, "127.0.0.1:1".parse().ok());
}

#[test]
fn help_and_version_are_no_mistakes() {
    for args in [&["--help"][..], &["serve", "--help"], &["healthcheck", "-h"], &["--version"]] {
        assert_eq!(parse_with(args, &[]).expect_err("help").code, 0);
    }
}

#[test]
fn misspelt_variables_are_noticed_and_those_of_kubernetes_are_not() {
    let names =
        ["CROUPIER_THREAD", "CROUPIER_THREADS", "CROUPIER_SERVICE_HOST", "CROUPIER_PORT_50051_TCP_ADDR", "PATH"];
    let found = unknown_variables(names.iter().map(|&name| name.to_owned()));
    assert_eq!(found, [("CROUPIER_THREAD".to_owned(), "CROUPIER_THREADS".to_owned())]);
}

#[test]
fn a_slip_is_told_once_and_with_what_was_meant() {
    let only = |args: &[&str]| {
        let text = mistakes(args, &[]);
        assert!(text.starts_with("croupier: 1 mistake, nothing was done:\n"), "{text}");
        text.lines().nth(1).unwrap_or_default().trim().to_owned()
    };
    assert_eq!(only(&["--log-level=wran"]), "--log-level: \"wran\" is not a log level; did you mean warn?");
    assert!(only(&["--log-level="]).starts_with("--log-level: is empty"));
    assert!(only(&["--log-level=info,croupier"]).contains("\"croupier\" is not a log level"));
    assert!(parse_with(&["--log-level=info,croupier::rpc=debug,h2=off"], &[]).is_ok());
    assert_eq!(only(&["--uds=unix:/no/such/c.sock"]), "--uds: the directory /no/such does not exist; create it first");
    let near = "unexpected argument '--lisen' found; tip: a similar argument exists: '--listen'";
    assert_eq!(only(&["--lisen=none"]), near);
    assert!(
        only(&["inject", "--memory-request=4Gi", "--memory-limit=3000Mi"]).contains("is above --memory-limit 3000Mi")
    );
    let twice = only(&["inject", "--image=a/b:3", "--tag=9"]);
    assert!(twice.contains("--tag: the image a/b:3 has a tag or a digest already"), "{twice}");
    assert!(parse_with(&["inject", "--image=h:5000/b", "--tag=9"], &[]).is_ok());
    assert!(only(&["inject", "--cpu-request=2500m", "--cpu-limit=2"]).contains("is above --cpu-limit 2"));
    assert!(parse_with(&["inject", "--cpu-request=2000m", "--cpu-limit=2"], &[]).is_ok());
    let range = "--max-streams: \"-1\" is not a whole number in 1 ..= ";
    assert!(only(&["--max-streams", "-1"]).starts_with(range) && only(&["--max-streams=-1"]).starts_with(range));
    assert_eq!(only(&["bench", "--rate", "-1"]), "--rate: \"-1\" is neither 0 nor a number in 0.001 ..= 1000000");
    assert!(only(&["bench", "--rate=NaN"]).starts_with("--rate: \"NaN\" is neither 0 nor a number in"));
    assert!(only(&["bench", "--duration", "0"]).starts_with("--duration: \"0\" is not a duration in 1ms ..= "));
    assert_eq!(only(&["top", "--json"]), "the following required arguments were not provided: --once");
    for args in [&["--reflection", "true"][..], &["--reflection"], &["--reflection=true"]] {
        assert!(config(args, &[]).reflection, "{args:?}");
    }
}

#[test]
fn certificates_and_tokens_are_looked_into_before_anything_starts() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = |name: &str| dir.path().join(name).display().to_string();
    std::fs::write(path("cert"), "no certificate").expect("a file");
    std::fs::write(path("tokens"), "short\n").expect("a file");
    let (cert, key, tokens) = (path("cert"), path("key"), path("tokens"));
    let env = [("CROUPIER_TLS_CERT", cert.as_str()), ("CROUPIER_TLS_KEY", &key), ("CROUPIER_AUTH_TOKEN_FILE", &tokens)];
    let text = mistakes(&["--threads=x"], &env);
    for part in [
        "3 mistakes",
        "--threads: \"x\"",
        "--tls-key: ",
        "key: cannot be read",
        "--auth-token-file: ",
        "tokens: line 1: a token must have at least 16",
    ] {
        assert!(text.contains(part), "{part:?} is missing in:\n{text}");
    }
    std::fs::write(&key, "no key").expect("a file");
    let text = mistakes(&[], &env);
    for part in ["3 mistakes", "cert: has no PEM certificate", "key: has no PEM private key"] {
        assert!(text.contains(part), "{part:?} is missing in:\n{text}");
    }
    // If one file is given twice and is wrong, the mistake is reported once for each flag.
    let twice = [("CROUPIER_TLS_CERT", cert.as_str()), ("CROUPIER_TLS_KEY", &key), ("CROUPIER_TLS_CLIENT_CA", &cert)];
    let text = mistakes(&[], &twice);
    for flag in ["--tls-cert: ", "--tls-key: ", "--tls-client-ca: "] {
        assert!(text.lines().filter(|line| line.trim().starts_with(flag)).count() == 1, "{flag:?} in:\n{text}");
    }
    // A health check does not look into the server's files, because the server may have better ones.
    assert!(matches!(parse_with(&["healthcheck"], &env), Ok(Command::Healthcheck(_))));
}
