//! The configuration as users meet it: the documentation, and the program's answers to mistakes.

use croupier::config::{EXIT_CONFIG, command_line, default_parameters_table, presets_table, reference_table};
use std::collections::BTreeSet;
use std::process::{Command, Output};

const PAGE: &str = include_str!("../docs/configuration.md");

fn croupier(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_croupier")).args(args).output().expect("it runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
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
        assert!(help.len() > 40 && help.contains("[env: CROUPIER_"), "{}: {help}", argument.get_id());
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
fn help_goes_to_stdout_with_code_0() {
    for args in [&["--help"][..], &["serve", "--help"], &["healthcheck", "--help"], &["--version"]] {
        let output = croupier(args);
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert!(!output.stdout.is_empty() && output.stderr.is_empty(), "{args:?}");
    }
}
