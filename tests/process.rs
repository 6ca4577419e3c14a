//! The program as a process: probes, signals and exit codes.

use croupier::config::LogFormat;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::Permissions;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

/// Longer than anything here takes on a busy machine: reaching it means that the event never happens.
const NEVER: Duration = Duration::from_secs(60);

/// A server process that is killed when its test ends.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Server {
    fn start(socket: &Path, more: &[&str]) -> Self {
        Self::listening("none", socket, more)
    }

    /// Also listens on TCP, unless `tcp` is `none`.
    fn listening(tcp: &str, socket: &Path, more: &[&str]) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_croupier"))
            .args(["serve", "--admin=none", "--threads=1", "--log-format=json", "--listen", tcp, "--uds"])
            .arg(socket)
            .args(more)
            .stderr(Stdio::piped())
            .spawn();
        let server = Self(child.expect("it starts"));
        until(|| healthcheck(socket).status.success().then_some(()));
        server
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args(["-s", name, &self.0.id().to_string()]).status();
        assert!(sent.expect("kill runs").success());
    }

    fn end(&mut self) -> ExitStatus {
        until(|| self.0.try_wait().expect("a child"))
    }
}

fn until<T>(mut found: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(start.elapsed() < NEVER, "it never happens");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn healthcheck(socket: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_croupier"));
    command.args(["healthcheck", "--timeout=10s", "--addr"]).arg(format!("unix:{}", socket.display()));
    command.output().expect("it runs")
}

#[test]
fn healthcheck_tells_a_server_from_none() {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("s");
    let none = healthcheck(&socket);
    assert_eq!(none.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&none.stderr).contains("cannot connect"), "{none:?}");

    let _server = Server::start(&socket, &[]);
    let some = healthcheck(&socket);
    assert_eq!((some.status.code(), some.stdout.as_slice()), (Some(0), b"serving\n".as_slice()));

    // The same question, with the environment variables that `serve` was given.
    let mut by_env = Command::new(env!("CARGO_BIN_EXE_croupier"));
    by_env.arg("healthcheck").env("CROUPIER_LISTEN", "none").env("CROUPIER_UDS", &socket);
    assert_eq!(by_env.args(["--timeout", "10s"]).status().expect("it runs").code(), Some(0));
    let unknown = by_env.args(["--service", "nothing"]).output().expect("it runs");
    assert_eq!(unknown.status.code(), Some(1), "{unknown:?}");
}

#[test]
fn a_signal_drains_and_exits_with_0() {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("s");
    for name in ["TERM", "INT"] {
        let mut server = Server::start(&socket, &[]);
        server.signal(name);
        assert_eq!(server.end().code(), Some(0), "{name}");
        assert!(!socket.exists());
    }
}

/// The files of a server's sockets.
fn files(socket: &Path) -> [bool; 2] {
    [socket.exists(), socket.with_extension("region").exists()]
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("s");
    let mut server = Server::start(&socket, &["--lame-duck=30m", "--drain-timeout=1h"]);
    assert_eq!(files(&socket), [true, true]);
    server.signal("TERM");
    // The test waits until draining is visible from outside, so that the two signals cannot merge into one.
    until(|| (healthcheck(&socket).status.code() == Some(1)).then_some(()));
    std::thread::sleep(Duration::from_millis(1100));
    server.signal("TERM");
    assert_eq!(server.end().code(), Some(128 + 15));
    assert_eq!(files(&socket), [false, false]);
}

/// `timeout` sends signals like this: to the process and to its group.
#[test]
fn signals_that_come_together_are_one() {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("s");
    for second in [Signal::TERM, Signal::INT] {
        let mut server = Server::start(&socket, &["--lame-duck=300ms"]);
        let id = Pid::from_child(&server.0);
        for signal in [Signal::TERM, second] {
            kill_process(id, signal).expect("it runs");
        }
        assert_eq!(server.end().code(), Some(0));
        assert_eq!(files(&socket), [false, false]);
    }
}

#[test]
fn a_hangup_has_files_looked_at_and_ends_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let (socket, tokens) = (dir.path().join("s"), dir.path().join("tokens"));
    std::fs::write(&tokens, "the-old-token-of-workers").expect("a file");
    let file = format!("--auth-token-file={}", tokens.display());
    let mut server = Server::listening("127.0.0.1:0", &socket, &[&file]);
    let log = BufReader::new(server.0.stderr.take().expect("it is piped"));
    let mut lines = log.lines().map_while(Result::ok);
    let mut next = |part: &str| assert!(lines.any(|line| line.contains(part)), "the log ends without: {part}");
    server.signal("HUP");
    next("SIGHUP: checking");
    next("the files have not changed");
    std::fs::write(&tokens, "short").expect("a file");
    next("changed files are invalid");
    // The same error is reported again only if somebody asks.
    server.signal("HUP");
    next("changed files are invalid");
    std::fs::write(&tokens, "the-new-token-of-workers").expect("a file");
    server.signal("HUP");
    next("changed files were read and are now in force");
    assert!(healthcheck(&socket).status.success(), "it goes on");
    server.signal("TERM");
    assert_eq!(server.end().code(), Some(0));
}

#[test]
fn after_a_kill_the_next_server_takes_the_socket() {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("s");
    let mut server = Server::start(&socket, &[]);
    server.signal("KILL");
    server.end();
    assert!(socket.exists());
    let _next = Server::start(&socket, &[]);
}

#[test]
fn a_live_socket_is_refused_with_code_1() {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("s");
    let _server = Server::start(&socket, &[]);
    let mut second = Command::new(env!("CARGO_BIN_EXE_croupier"));
    second.args(["serve", "--listen=none", "--admin=none", "--uds"]).arg(&socket);
    let refused = second.output().expect("it runs");
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("another server is listening"), "{refused:?}");
}

/// A device that no machine has, so that these tests have the same result on a machine with a GPU.
const NO_DEVICE: &str = "--device=9999";

#[test]
fn without_a_gpu_auto_samples_on_the_cpu() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(&folder.path().join("socket"), &["--backend=auto", NO_DEVICE]);
    drop(server);
}

#[test]
fn without_a_gpu_cuda_is_refused_with_a_reason() {
    let output = Command::new(env!("CARGO_BIN_EXE_croupier"))
        .args(["serve", "--listen=127.0.0.1:0", "--admin=none", "--backend=cuda", NO_DEVICE])
        .output()
        .expect("it runs");
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{log}");
    assert!(log.contains("cannot use the backend cuda: "), "{log}");
    assert!(log.contains("there is no CUDA driver: ") || log.contains("there is no device 9999"), "{log}");
}

#[test]
fn a_device_is_an_index_or_a_uuid() {
    let output = Command::new(env!("CARGO_BIN_EXE_croupier")).args(["serve", "--device=first"]).output();
    let output = output.expect("it runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("\"first\" is not a device"));
}

/// The lines that a program logged as JSON. Each must be an object with level ERROR.
fn errors(output: &Output) -> Vec<serde_json::Value> {
    let text = String::from_utf8_lossy(&output.stderr);
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line} in:\n{text}")));
    let lines: Vec<serde_json::Value> = lines.collect();
    assert!(lines.iter().all(|line| line["level"] == "ERROR"), "{text}");
    lines
}

#[test]
fn mistakes_are_told_in_the_format_of_the_log() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("croupier.toml");
    std::fs::write(&file, "log_format = \"json\"\n").expect("a file");
    let file = format!("--config={}", file.display());
    let wrong = ["--threads=none", "--log-level=", "--no-such-flag"];
    let run = |format: &[&str], variable: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_croupier"));
        let output = command.arg("serve").args(format).args(wrong).env("CROUPIER_LOG_FORMAT", variable).output();
        output.expect("it runs")
    };
    for json in [run(&["--log-format=json"], ""), run(&[], "json"), run(&[&file], "")] {
        assert_eq!(json.status.code(), Some(2));
        let lines = errors(&json);
        let told = |part: &str| lines.iter().any(|line| line["message"].as_str().is_some_and(|m| m.contains(part)));
        for part in ["wrong configuration: --threads: ", "no-such-flag", " mistakes, nothing was done"] {
            assert!(told(part), "{part} in {lines:?}");
        }
    }
    let text = run(&[], "text");
    assert_eq!(text.status.code(), Some(2));
    assert!(text.stderr.starts_with(b"croupier: "), "{text:?}");
}

/// With this variable set, the test program logs as a server does and panics.
const PANIC: &str = "CROUPIER_TEST_PANIC";

#[test]
fn a_panic_is_a_line_of_the_log() {
    if std::env::var_os(PANIC).is_some() {
        let guard = croupier::telemetry::init(LogFormat::Json, "info").expect("nothing logs yet");
        let thread = std::thread::Builder::new().name("the-panicking".to_owned());
        thread.spawn(|| panic!("for {}", "a test")).expect("a thread").join().expect_err("a panic");
        thread_without_a_message();
        drop(guard);
        std::process::exit(0);
    }
    let mut child = Command::new(std::env::current_exe().expect("this program"));
    child
        .args(["--exact", "process::a_panic_is_a_line_of_the_log", "--nocapture"])
        .env(PANIC, "1")
        .env_remove("RUST_BACKTRACE");
    let lines = errors(&child.output().expect("it runs"));
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_eq!((&lines[0]["message"], &lines[0]["thread"]), (&"panicked: for a test".into(), &"the-panicking".into()));
    assert!(lines[0]["location"].as_str().is_some_and(|place| place.starts_with("tests/process.rs:")), "{lines:?}");
    assert_eq!(lines[1]["message"], "panicked: without a message");
    let traced = errors(&child.env("RUST_BACKTRACE", "1").output().expect("it runs"));
    assert!(traced[0]["backtrace"].as_str().is_some_and(|trace| trace.contains("panic")), "{traced:?}");
}

/// Panics without a message, as the loss of a device does.
fn thread_without_a_message() {
    std::thread::spawn(|| std::panic::panic_any(1)).join().expect_err("a panic");
}

/// The first process of a container does not get signals that it does not handle.
#[test]
fn a_signal_ends_the_first_process_of_a_container_while_it_reads_its_configuration() {
    let dir = tempfile::tempdir().expect("a directory");
    let config = dir.path().join("config.toml");
    // Nobody writes to the pipe, so reading lasts as long as the test needs.
    assert!(Command::new("mkfifo").arg(&config).status().expect("mkfifo runs").success());
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--pid", "--fork", env!("CARGO_BIN_EXE_croupier"), "serve", "--config"]);
    let mut outer = Server(command.arg(&config).stderr(Stdio::null()).spawn().expect("unshare runs"));
    let children = format!("/proc/{0}/task/{0}/children", outer.0.id());
    let inner = until(|| {
        if let Some(ended) = outer.0.try_wait().expect("a child") {
            eprintln!("not tested: no namespace of processes may be made here ({ended})");
            return Some(None);
        }
        let inner: u32 = std::fs::read_to_string(&children).ok()?.trim().parse().ok()?;
        // The process reads once it is this program and no longer `unshare`.
        let status = std::fs::read_to_string(format!("/proc/{inner}/status")).ok()?;
        (status.starts_with("Name:\tcroupier") && status.contains("State:\tS")).then_some(Some(inner))
    });
    let Some(inner) = inner else { return };
    assert!(Command::new("kill").args(["-s", "TERM", &inner.to_string()]).status().expect("kill runs").success());
    assert_eq!(outer.end().code(), Some(128 + 15));
}

#[test]
fn open_files_are_as_many_as_may_be_and_few_are_told() {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("s");
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -Sn 100 && ulimit -Hn 300 && exec \"$@\"", "sh", env!("CARGO_BIN_EXE_croupier")]);
    command.args(["serve", "--admin=none", "--listen=none", "--threads=1", "--log-format=json", "--uds"]).arg(&socket);
    let mut server = Server(command.stderr(Stdio::piped()).spawn().expect("it starts"));
    until(|| healthcheck(&socket).status.success().then_some(()));
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.0.id())).expect("it runs");
    let files = limits.lines().find(|line| line.starts_with("Max open files")).expect("a limit");
    assert_eq!(files.split_whitespace().filter(|word| *word == "300").count(), 2, "{files}");
    server.signal("TERM");
    server.end();
    let mut log = String::new();
    server.0.stderr.take().expect("it is piped").read_to_string(&mut log).expect("text");
    assert!(log.contains("\"descriptors\":300") && log.contains("lower max_connections"), "{log}");
}

/// A metric counts them. Only the log says which setting refused them, and who they are.
#[test]
fn refused_connections_are_told_in_the_log_once_in_a_while() {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("s");
    let mut server = Server::start(&socket, &["--max-connections=1"]);
    let connect = || {
        let client = UnixStream::connect(&socket).expect("the backlog takes it");
        client.set_nonblocking(true).expect("a socket");
        client
    };
    let clients = [connect(), connect(), connect()];
    let is_closed = |mut client: &UnixStream| matches!(client.read(&mut [0; 64]), Ok(0));
    until(|| (clients.iter().filter(|client| is_closed(client)).count() >= 2).then_some(()));
    drop(clients);
    server.signal("TERM");
    server.end();
    let mut log = String::new();
    server.0.stderr.take().expect("it is piped").read_to_string(&mut log).expect("text");
    let told: Vec<&str> = log.lines().filter(|line| line.contains("a connection was refused")).collect();
    assert!(told.len() == 1 && told[0].contains("max_connections is 1 and as many are open"), "{log}");
    assert!(told[0].contains("\"peer\":\"unix"), "{log}");
}

/// Starts a server from a shell that has set a limit first. If it got that far, it would find its socket in use.
fn started_under(limit: &str, user: Option<u32>, binary: &Path, socket: &Path) -> Output {
    let mut shell = Command::new("bash");
    shell.args(["-c", &format!("ulimit {limit} && exec \"$0\" serve --listen=none --admin=none --uds=\"$1\"")]);
    if let Some(user) = user {
        shell.uid(user);
    }
    shell.arg(binary).arg(socket).output().expect("a shell")
}

#[test]
fn a_start_with_too_little_of_the_system_is_refused_and_says_of_what() {
    let dir = tempfile::tempdir().expect("a directory");
    let (binary, socket) = (dir.path().join("croupier"), dir.path().join("s"));
    std::fs::copy(env!("CARGO_BIN_EXE_croupier"), &binary).expect("room");
    for path in [dir.path(), &binary] {
        std::fs::set_permissions(path, Permissions::from_mode(0o755)).expect("it is ours");
    }
    let _server = Server::start(&socket, &[]);
    // A user that nobody has, nor any other run, so that only its own threads count. The superuser has no limit.
    let user = rustix::process::getuid().is_root().then(|| 40_000 + std::process::id() % 10_000);
    let told = |limit: &str| {
        let output = started_under(limit, user, &binary, &socket);
        assert_eq!(output.status.code(), Some(1), "{limit}: {output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    for descriptors in [4, 6, 8, 12, 20] {
        let told = told(&format!("-n {descriptors}"));
        assert!(told.contains("open files") && told.contains("ulimit -Hn"), "{descriptors}: {told}");
    }
    for threads in 1..8 {
        let told = told(&format!("-u {threads}"));
        assert!(told.contains(" threads: ") && told.contains("ulimit -u"), "{threads}: {told}");
    }
    // Without a thread for the log, the line has its format all the same.
    let told_in_json = told("-u 3; export CROUPIER_LOG_FORMAT=json");
    let line: serde_json::Value = serde_json::from_str(&told_in_json).expect("a line of JSON");
    assert!(line["message"].as_str().is_some_and(|message| message.contains(" more threads: ")), "{line}");
    let enough = told("-n 64");
    assert!(enough.contains("--uds: cannot listen on"), "{enough}");
}

/// A probe with a misspelt name would ask another question than was meant.
#[test]
fn the_admin_port_is_asked_for_names_that_it_knows() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_croupier"));
    let told =
        command.args(["healthcheck", "--admin=http://127.0.0.1:1", "--service=livness"]).output().expect("it runs");
    assert_eq!(told.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&told.stderr).contains("unknown service \"livness\"; write liveness or readiness"),
        "{told:?}"
    );
}
