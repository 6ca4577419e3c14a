//! The configuration as users meet it: the documentation, and the program's answers to wrong settings.

use croupier::config::{EXIT_CONFIG, command_line, default_parameters_table, presets_table, reference_table};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Output};

const PAGE: &str = include_str!("../docs/configuration.md");

fn croupier(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_croupier")).args(args).output().expect("it runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn whoever_reads_the_help_may_stop_early() {
    let (from, to) = std::io::pipe().expect("a pipe");
    drop(from);
    let mut program = Command::new(env!("CARGO_BIN_EXE_croupier"));
    let output = program.args(["serve", "--help"]).stdout(to).output().expect("it runs");
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
}

#[test]
fn the_documentation_holds_the_tables() {
    for table in [reference_table(), default_parameters_table(), presets_table()] {
        assert!(PAGE.contains(&table), "docs/configuration.md has to hold:\n{table}");
    }
}

#[test]
fn the_documentation_lists_every_flag_and_no_other() {
    let command = command_line();
    let serve = command.find_subcommand("serve").expect("serve");
    let flags: BTreeSet<String> =
        serve.get_arguments().filter_map(|a| a.get_long()).map(|l| format!("--{l}")).collect();
    let words = PAGE.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-')).filter(|w| w.starts_with("--"));
    let listed: BTreeSet<String> = words.filter(|w| !w.trim_matches('-').is_empty()).map(ToOwned::to_owned).collect();
    assert_eq!(listed, flags);
}

#[test]
fn every_flag_teaches() {
    let command = command_line();
    let serve = command.find_subcommand("serve").expect("serve");
    for argument in serve.get_arguments() {
        let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
        // `--check` has no variable, because each check is asked for on the command line.
        let has_variable = help.contains("[env: CROUPIER_") || argument.get_id() == "check";
        assert!(help.len() > 40 && has_variable, "{}: {help}", argument.get_id());
    }
}

#[test]
fn mistakes_end_the_program_with_code_2_and_a_list() {
    let output = croupier(&["serve", "--threads=0", "--listen=nowhere", "--max-steams=1"]);
    assert_eq!(output.status.code(), Some(i32::from(EXIT_CONFIG)));
    let told = text(&output.stderr);
    for part in ["3 mistakes", "--threads", "--listen", "--max-steams"] {
        assert!(told.contains(part), "{part} is missing in:\n{told}");
    }
    assert!(output.stdout.is_empty());
}

#[test]
fn a_check_tells_what_a_start_would_and_starts_nothing() {
    let output = croupier(&["serve", "--check", "--listen=127.0.0.1:1", "--max-streams=7"]);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
    assert_eq!(text(&output.stdout), "the configuration is valid; nothing was started\n");
    let mut misspelt = Command::new(env!("CARGO_BIN_EXE_croupier"));
    let output = misspelt.args(["serve", "--check"]).env("CROUPIER_MAX_STREAM", "3").output().expect("it runs");
    assert_eq!(output.status.code(), Some(0));
    assert!(
        text(&output.stdout)
            .starts_with("CROUPIER_MAX_STREAM is not a setting and is ignored; did you mean CROUPIER_MAX_STREAMS?")
    );
    let output = croupier(&["serve", "--check", "--otlp-endpoint=https://collector:4317", "--otlp-ca=/nowhere"]);
    assert_eq!(output.status.code(), Some(i32::from(EXIT_CONFIG)));
    assert!(text(&output.stderr).contains("cannot send traces: /nowhere: cannot be read"));
    let output = croupier(&["--check", "--threads=0", "--tls-cert=/nowhere"]);
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(i32::from(EXIT_CONFIG)));
    assert!(told.contains("--threads") && told.contains("tls-cert and tls-key belong together"), "{told}");
}

#[test]
fn a_check_tells_of_a_certificate_that_clients_refuse() {
    let folder = tempfile::tempdir().expect("a folder");
    let check = |from, until| {
        let mut params = rcgen::CertificateParams::new(vec!["croupier.example".to_owned()]).expect("a name");
        (params.not_before, params.not_after) = (rcgen::date_time_ymd(from, 1, 1), rcgen::date_time_ymd(until, 1, 1));
        let key = rcgen::KeyPair::generate().expect("a key");
        let (cert, private) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
        std::fs::write(&cert, params.self_signed(&key).expect("a certificate").pem()).expect("it is written");
        std::fs::write(&private, key.serialize_pem()).expect("it is written");
        let flags = [format!("--tls-cert={}", cert.display()), format!("--tls-key={}", private.display())];
        let output = croupier(&["serve", "--check", &flags[0], &flags[1]]);
        assert_eq!(output.status.code(), Some(0), "a server starts with it");
        text(&output.stdout)
    };
    let right = "the configuration is valid; nothing was started\n";
    assert_eq!(check(2001, 2096), right);
    for (from, until, part) in [(2001, 2002, "the certificate expired "), (2095, 2096, "is not valid for another ")] {
        let told = check(from, until);
        assert!(told.starts_with("--tls-cert: ") && told.contains(part) && told.ends_with(right), "{told}");
    }
}

/// If such a variable were taken as unset, a server that should require tokens would require none.
#[test]
fn a_variable_that_is_not_utf8_is_a_mistake() {
    let file = OsStr::from_bytes(b"/run/tokens\xff");
    for (command, other) in
        [("serve", "CROUPIER_CONFIG"), ("serve", "CROUPIER_UDS"), ("healthcheck", "CROUPIER_CONFIG")]
    {
        let mut program = Command::new(env!("CARGO_BIN_EXE_croupier"));
        program.arg(command).env("CROUPIER_LISTEN", "nowhere").env("CROUPIER_AUTH_TOKEN_FILE", file).env(other, file);
        let output = program.output().expect("it runs");
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(i32::from(EXIT_CONFIG)), "{told}");
        let says = "\"/run/tokens\\xFF\" is not UTF-8; set it again, or unset it";
        for part in
            ["3 mistakes", "CROUPIER_LISTEN", &format!("CROUPIER_AUTH_TOKEN_FILE: {says}"), &format!("{other}: {says}")]
        {
            assert!(told.contains(part), "{part} is missing in:\n{told}");
        }
    }
    // A flag takes precedence, whatever the variable holds.
    let mut program = Command::new(env!("CARGO_BIN_EXE_croupier"));
    program.args(["healthcheck", "--config", "/nowhere"]).env("CROUPIER_CONFIG", file);
    let told = text(&program.output().expect("it runs").stderr);
    assert!(told.contains("/nowhere: cannot be read") && !told.contains("UTF-8"), "{told}");
}

#[test]
fn a_wrong_vocabulary_ends_the_program_with_its_name_and_the_place() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("tokenizer.json");
    let cases = [
        (None, "--vocabulary: "),
        (None, "cannot be read"),
        (Some("[\"a\",\n 7]"), "expected a string at line 2 column 2"),
        (Some("{\"model\": {\"type\": \"WordPiece\", \"vocab\": {}}}"), "model.type is \"WordPiece\""),
        (Some("texts"), "is neither a tokenizer.json nor a JSON array of texts"),
    ];
    for (written, expected) in cases {
        written.iter().for_each(|text| std::fs::write(&path, text).expect("it is written"));
        let file = path.display().to_string();
        let output = croupier(&["serve", "--threads=0", "--vocabulary", &file]);
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(i32::from(EXIT_CONFIG)));
        for part in ["2 mistakes", "--threads", &format!("{file}: "), expected] {
            assert!(told.contains(part), "{part} is missing in:\n{told}");
        }
        // A health check does not read the vocabulary.
        let config = dir.path().join("croupier.toml");
        std::fs::write(&config, format!("vocabulary = \"{file}\"\nlisten = \"127.0.0.1:1\"\n")).expect("it is written");
        let output = croupier(&["healthcheck", "--config", &config.display().to_string(), "--timeout", "50ms"]);
        assert_ne!(output.status.code(), Some(i32::from(EXIT_CONFIG)), "{}", text(&output.stderr));
    }
}

#[test]
fn help_goes_to_stdout_with_code_0() {
    for args in [&["--help"][..], &["serve", "--help"], &["healthcheck", "--help"], &["--version"]] {
        let output = croupier(args);
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert!(!output.stdout.is_empty() && output.stderr.is_empty(), "{args:?}");
    }
}
