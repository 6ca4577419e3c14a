//! The program when clients have taken all file descriptors that it may have.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// More clients than the server has descriptors.
const CLIENTS: usize = 100;
/// The first bytes that an HTTP/2 client sends: the preface, and an empty settings frame.
const OPENING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// Longer than anything here takes on a busy machine.
const NEVER: Duration = Duration::from_secs(60);

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Fetches a page of the admin port over a new connection.
fn page(admin: &str, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(admin)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[test]
fn scrapes_and_probes_are_answered_where_connections_have_them_all() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 64 && exec \"$@\"", "sh", env!("CARGO_BIN_EXE_croupier"), "serve", "--threads=1"]);
    command.args(["--admin=127.0.0.1:0", "--listen=none", "--log-format=json", "--uds"]).arg(&socket);
    let mut server = Killed(command.stderr(Stdio::piped()).spawn().unwrap());
    let mut log = BufReader::new(server.0.stderr.take().unwrap()).lines();
    let ready = log.find(|line| line.as_ref().unwrap().contains("\"ready\"")).unwrap().unwrap();
    let ready: serde_json::Value = serde_json::from_str(&ready).unwrap();
    let admin = ready["admin"].as_str().unwrap().to_owned();
    std::thread::spawn(move || log.for_each(drop));

    let mut clients: Vec<UnixStream> = (0..CLIENTS).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    clients.iter_mut().for_each(|client| client.write_all(OPENING).unwrap());
    let errors = || -> f64 {
        let page = page(&admin, "/metrics").expect("a scrape is answered");
        let line = page.lines().find_map(|line| line.strip_prefix("croupier_accept_errors_total "));
        line.expect("the series").parse().unwrap()
    };
    let started = Instant::now();
    while errors() < 10.0 {
        assert!(started.elapsed() < NEVER, "descriptors are never used up");
        std::thread::sleep(Duration::from_millis(50));
    }
    // The descriptor that one scrape frees stays available to the next: no client takes it.
    for _ in 0..20 {
        assert!(errors() > 0.0);
        let ready = page(&admin, "/readyz").expect("a probe is answered");
        assert!(ready.starts_with("HTTP/1.1 200 OK\r\n"), "{ready}");
    }
}

/// By default the system ends a process whose file reaches its limit, and shared memory is a file.
#[test]
fn a_lease_beyond_the_limit_of_files_is_refused_and_the_server_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -f 64 && exec \"$@\"", "sh", env!("CARGO_BIN_EXE_croupier"), "serve", "--threads=1"]);
    command.args(["--admin=none", "--listen=none", "--uds"]).arg(&socket);
    let mut server = Killed(command.stderr(Stdio::piped()).spawn().unwrap());
    let mut log = BufReader::new(server.0.stderr.take().unwrap()).lines();
    log.find(|line| line.as_ref().unwrap().contains("ready")).unwrap().unwrap();
    std::thread::spawn(move || log.for_each(drop));
    let address = format!("unix:{}", socket.display());
    let croupier = |command: &str, flags: &[&str]| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_croupier"));
        program.args([command, "--addr", &address]).args(flags).output().unwrap()
    };
    let refused = croupier("bench", &["--transport=shm", "--duration=100ms"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("File too large"), "{refused:?}");
    let healthy = croupier("healthcheck", &[]);
    assert!(healthy.status.success(), "{healthy:?}");
}
