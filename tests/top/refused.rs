//! The command's error messages when there is nothing to show, and its exit codes.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};

fn top(args: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_croupier"));
    let output = command.arg("top").args(args).stdin(Stdio::null()).output().unwrap();
    assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

/// Answers one request with this text, and then goes away.
fn answering(answer: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 1024]);
        let _ = stream.write_all(answer.as_bytes());
    });
    address
}

#[test]
fn nobody_answers() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    for flags in [&["--once"][..], &["--once", "--json"]] {
        let (code, said) = top(&[flags, &["--admin", &free]].concat());
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains(&free) && said.contains("Connection refused") && said.contains("--admin"), "{said}");
    }
}

#[test]
fn somebody_else_answers() {
    for (answer, reason) in [
        ("HTTP/1.0 404 Not Found\r\n\r\n", "it answers HTTP/1.0 404 Not Found"),
        ("HTTP/1.0 200 OK\r\n\r\n<html>\n", "line 1 is not a metric"),
        ("HTTP/1.0 200 OK\r\n\r\nup 1\n", "it has no croupier_build_info"),
        ("HTTP/1.0 200 OK\r\nContent-Length: 99\r\n\r\nup 1\n", "the answer was cut short"),
        ("SSH-2.0-OpenSSH_9.2\r\n", "the answer is not HTTP"),
        ("", "without an answer"),
    ] {
        let (code, said) = top(&["--once", "--admin", &answering(answer)]);
        assert_eq!(code, Some(3), "{said}");
        assert!(said.contains("is not Croupier's") && said.contains(reason), "{reason} in {said}");
    }
}

#[test]
fn what_makes_no_sense_is_refused_at_once() {
    let (code, said) = top(&["--admin=https://h:1", "--interval=0", "--jsn"]);
    assert_eq!(code, Some(2), "{said}");
    for mistake in ["3 mistakes", "--admin: \"https://h:1\"", "--interval: \"0\"", "'--jsn'"] {
        assert!(said.contains(mistake), "{mistake} in {said}");
    }
    assert_eq!(top(&["--json"]).0, Some(2));
    let (code, said) = top(&[]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("not a terminal") && said.contains("--once"), "{said}");
}
