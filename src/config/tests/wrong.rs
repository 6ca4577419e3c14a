//! Values of another type, or with another meaning, than their author thought.

use super::*;

#[test]
fn a_value_of_the_wrong_type_is_told_with_its_line_and_the_fix() {
    let text = "uds = false\nregion_socket = 3\nlog_level = 3\npresets = false\nauth_token_file = 1.5\n  listen = true\n\
                log_format = 1\nthreads = false\n";
    let (_dir, path) = file(text);
    let told = mistakes(&["--config", &path], &[]);
    let off = "write \"none\" to switch it off";
    for part in [
        "8 mistakes",
        &format!("{path}: uds: line 1, column 7: false is not a string; {off}"),
        &format!("{path}: region_socket: line 2, column 17: 3 is not a string; {off}"),
        "log_level: line 3, column 13: 3 is not a string; write a string in quotes, such as \"info\"",
        "presets: line 4, column 11: false is not a string; write a string in quotes, such as \"shipped\"",
        &format!("auth_token_file: line 5, column 19: 1.5 is not a string; {off}"),
        &format!("listen: line 6, column 12: true is not a string; {off}"),
        "log_format: line 7, column 14: 1 is not a string; write a string in quotes, such as \"text\"",
        "threads: \"false\" is not a whole number",
    ] {
        assert!(told.contains(part), "{part:?} is missing in:\n{told}");
    }
    // A setting with a mistake must not count as off.
    let (_dir, path) = file("listen = \"none\"\nuds = false\n");
    assert!(mistakes(&["--config", &path], &[]).contains("1 mistake,"));
    let (_dir, path) = file("trace_ratio = 1\ndevice = 0\nreflection = true\nthreads = \"2\"\nlame_duck = 1.5\n");
    let read = config(&["--config", &path], &[]);
    assert_eq!((read.trace_ratio, read.reflection, read.threads()), (1.0, true, 2));
    assert_eq!((read.device.as_str(), read.lame_duck), ("0", Duration::from_millis(1500)));
}

#[test]
fn what_stands_in_the_wrong_table_is_told_where_it_belongs() {
    let (_dir, path) = file("temperature = 0.5\n[defaults]\nmax_streams = 5\n");
    let told = mistakes(&["--config", &path], &[]);
    for part in [
        "2 mistakes",
        &format!("{path}: temperature: is a sampling parameter; write it under [defaults]"),
        "defaults.max_streams: is a setting of the server; it belongs at the top level of its file",
    ] {
        assert!(told.contains(part), "{part:?} is missing in:\n{told}");
    }
    let told = mistakes(&["inject", "--setting", "thread=2", "--setting", "xyzzy=2"], &[]);
    assert!(told.contains("unknown setting thread; did you mean threads?\n"), "{told}");
    assert!(told.contains("unknown setting xyzzy\n"), "{told}");
    let told = mistakes(&["inject", "--setting=threads=two", "--setting=max_message_bytes=64"], &[]);
    assert!(told.contains("--setting threads: \"two\" is not a whole number in 1 ..= 1024"), "{told}");
    assert!(told.contains("--setting max-message-bytes: \"64\" is not a size in 4KiB ..< 4GiB; "), "{told}");
}

#[test]
fn a_word_that_switches_is_no_path() {
    for word in ["off", "false", "no", "on", "true", "0", "None", "False"] {
        for variable in ["CROUPIER_UDS", "CROUPIER_REGION_SOCKET", "CROUPIER_TLS_CERT", "CROUPIER_AUTH_TOKEN_FILE"] {
            let told = mistakes(&[], &[(variable, word)]);
            assert!(
                told.contains(&format!("{variable}: \"{word}\" is not a path; write none, or ./{word} ")),
                "{told}"
            );
        }
        let told = mistakes(&["--presets", word], &[]);
        assert!(told.contains("is not a path; write shipped, or ./"), "{told}");
    }
    assert_eq!(config(&["--uds=./off"], &[]).uds, Some("./off".into()));
    for name in ["@croupier", "unix:@croupier", "unix-abstract:croupier"] {
        assert!(mistakes(&["--uds", name], &[]).contains("is an abstract socket, which is not supported"), "{name}");
    }
    assert!(mistakes(&["healthcheck", "--addr=unix:@x"], &[]).contains("is an abstract socket"));
}

#[test]
fn what_lacks_is_told_of_where_it_was_asked_for() {
    let told = mistakes(&["--config="], &[]);
    assert!(told.contains("1 mistake,") && told.contains("--config: is empty; name a file"), "{told}");
    assert_eq!(config(&[], &[("CROUPIER_CONFIG", "")]), Config::default());
    let lacks = "grammars: needs the texts of the tokens; set vocabulary";
    let (_dir, path) = file("grammars = \"yes\"\n");
    assert!(mistakes(&["--config", &path], &[]).contains(&format!("{path}: {lacks}")));
    assert!(mistakes(&["--grammars"], &[]).contains(&format!("--{lacks}")));
    assert!(mistakes(&[], &[("CROUPIER_GRAMMARS", "1")]).contains("CROUPIER_GRAMMARS: needs the texts of the tokens"));
}
