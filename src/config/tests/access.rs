//! How commands connect to a server: TLS, tokens, and whom `croupier healthcheck` asks.

use super::super::cli::Target;
use super::*;

#[test]
fn healthcheck_asks_where_serve_would_listen() {
    let target = |args: &[&str], env: &[(&str, &str)]| match parse_with(args, env) {
        Ok(Command::Healthcheck(args)) => args.target,
        other => panic!("{other:?}"),
    };
    let grpc = |text: &str| Target::Grpc(text.to_owned());
    assert_eq!(target(&["healthcheck"], &[]), grpc("127.0.0.1:50051"));
    assert_eq!(target(&["healthcheck"], &[("CROUPIER_LISTEN", "0.0.0.0:7")]), grpc("127.0.0.1:7"));
    assert_eq!(
        target(&["healthcheck"], &[("CROUPIER_LISTEN", "none"), ("CROUPIER_UDS", "/tmp/x")]),
        grpc("unix:/tmp/x")
    );
    assert_eq!(target(&["healthcheck", "--addr", "h:1"], &[]), grpc("h:1"));
    // A setting that seems to be missing may have been given to the server as a flag.
    assert_eq!(target(&["healthcheck", "--addr", "h:1"], &[("CROUPIER_GRAMMARS", "true")]), grpc("h:1"));
    for (flag, value) in
        [("--addr", "127.0.0.1"), ("--addr", "/tmp/x.sock"), ("--admin", "https://h:1"), ("--admin", "h:1/livez")]
    {
        let told = mistakes(&["healthcheck", flag, value], &[]);
        assert!(told.contains(&format!("{flag}: ")) && told.contains("HOST:PORT"), "{told}");
    }
    assert!(mistakes(&["healthcheck", "--timeout=x"], &[("CROUPIER_THREADS", "0")]).contains("2 mistakes"));
}

#[test]
fn tls_settings_that_contradict_each_other_are_told() {
    for (args, part) in [
        (&["--tls-cert=/x"][..], "tls-cert and tls-key belong together"),
        (&["--tls-client-ca=/x"], "tls-client-ca needs tls-cert"),
        (
            &["--listen=none", "--uds=/tmp/x", "--tls-cert=/x", "--tls-key=/x"],
            "tls-cert applies only to listen, which is off",
        ),
        (
            &["--listen=none", "--uds=/tmp/x", "--auth-token-file=/x"],
            "auth-token-file applies only to listen, which is off",
        ),
        (&["--tls-cert="], "is empty; write a path, or none"),
    ] {
        assert!(mistakes(args, &[]).contains(part), "{part}");
    }
    let args = ["inject", "--setting=auth_token_file=/x", "x.yaml"];
    assert!(mistakes(&args, &[]).contains("auth-token-file applies only to listen, which is off"));
    for args in [&["--tls-ca=x", "--tls-cert=x"][..], &["--tls-name=x"], &["--tls-ca=x", "--tls-key=x"]] {
        for command in ["healthcheck", "bench"] {
            mistakes(&[&[command], args].concat(), &[]);
        }
    }
}

#[test]
fn healthcheck_asks_a_server_with_tls_where_no_certificate_is_needed() {
    let target = |env: &[(&str, &str)]| match parse_with(&["healthcheck"], env) {
        Ok(Command::Healthcheck(args)) => args.target,
        other => panic!("{other:?}"),
    };
    let tls = [("CROUPIER_TLS_CERT", "/c"), ("CROUPIER_TLS_KEY", "/k"), ("CROUPIER_ADMIN", "0.0.0.0:9")];
    assert_eq!(target(&tls), Target::Admin("http://127.0.0.1:9".to_owned()));
    assert_eq!(target(&[&tls[..], &[("CROUPIER_UDS", "/tmp/x")]].concat()), Target::Grpc("unix:/tmp/x".to_owned()));
    // A client that can speak TLS does so, to the same address.
    let (_ca, flag) = authority();
    match parse_with(&["healthcheck", &flag, "--tls-name=x"], &[&tls[..], &[("CROUPIER_LISTEN", "0.0.0.0:7")]].concat())
    {
        Ok(Command::Healthcheck(args)) => assert_eq!(args.target, Target::Grpc("127.0.0.1:7".to_owned())),
        other => panic!("{other:?}"),
    }
    let nobody = [&tls[..2], &[("CROUPIER_ADMIN", "none")]].concat();
    assert!(mistakes(&["healthcheck"], &nobody).contains("give --addr, and --tls-ca for TLS"));
}

#[test]
fn healthcheck_asks_no_port_that_only_the_server_knows() {
    let any = ("CROUPIER_LISTEN", "127.0.0.1:0");
    match parse_with(&["healthcheck"], &[any, ("CROUPIER_ADMIN", "127.0.0.1:9")]) {
        Ok(Command::Healthcheck(args)) => assert_eq!(args.target, Target::Admin("http://127.0.0.1:9".to_owned())),
        other => panic!("{other:?}"),
    }
    let told = mistakes(&["healthcheck"], &[any, ("CROUPIER_ADMIN", "127.0.0.1:0")]);
    assert!(told.contains("127.0.0.1:0 gets another port each time the server starts; give --addr"), "{told}");
}

/// The flag that names a file with an authority's certificate, and the folder of that file.
fn authority() -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("ca.pem");
    let key = rcgen::KeyPair::generate().expect("a key");
    let ca = rcgen::CertificateParams::default().self_signed(&key).expect("a certificate");
    std::fs::write(&path, ca.pem()).expect("a file");
    let flag = format!("--tls-ca={}", path.display());
    (dir, flag)
}

#[test]
fn a_target_without_tls_is_a_mistake_where_tls_is_asked_for() {
    let (_dir, ca) = authority();
    let uds = [("CROUPIER_UDS", "/tmp/x"), ("CROUPIER_ADMIN", "127.0.0.1:9")];
    for args in [
        &["healthcheck", &ca][..],
        &["healthcheck", &ca, "--addr=unix:/tmp/x"],
        &["healthcheck", &ca, "--admin=http://127.0.0.1:9"],
        &["healthcheck", &ca, "--admin=127.0.0.1:9"],
        &["bench", &ca, "--addr=unix:/tmp/x"],
    ] {
        let told = mistakes(args, &uds);
        for part in ["1 mistake,", "--tls-ca is given, but ", "does not speak TLS; give --addr"] {
            assert!(told.contains(part), "{part:?} is missing in:\n{told}");
        }
    }
    for command in ["healthcheck", "bench"] {
        assert!(parse_with(&[command, &ca, "--addr=h:1"], &[]).is_ok());
        let told = mistakes(&[command, "--tls-ca=/no/such.pem", "--addr=unix:/tmp/x"], &[]);
        assert!(told.contains("2 mistakes") && told.contains("--tls-ca: /no/such.pem: cannot be read"), "{told}");
        let told = mistakes(&[command, &ca, "--tls-cert=/no/c", "--tls-key=/no/k", "--addr=h:1"], &[]);
        assert!(told.contains("1 mistake,") && told.contains("--tls-key: /no/c: cannot be read"), "{told}");
    }
}
