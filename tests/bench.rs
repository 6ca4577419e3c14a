//! `croupier bench`, run the way users run it.

use std::process::{Child, Command, Output, Stdio};

fn bench(args: &[&str]) -> Output {
    let binary = env!("CARGO_BIN_EXE_croupier");
    Command::new(binary).arg("bench").args(args).output().expect("the program runs")
}

fn json(output: &Output) -> serde_json::Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON object and nothing else")
}

/// The time starts before the streams are connected, and a side that did nothing by its end has failed.
const SMALL: [&str; 9] = ["--vocab", "512", "--batch", "6", "--warmup", "50ms", "--duration", "1500ms", "--json"];

#[test]
fn one_command_starts_measures_and_compares() {
    for socket in ["uds", "tcp"] {
        let small = ["--spawn", socket, "--baseline", "--rounds", "1", "--mix", "mixed", "--streams", "2"];
        let report = json(&bench(&[&small[..], &SMALL[..]].concat()));
        for side in ["croupier", "baseline"] {
            assert!(report[side]["tokens_per_second"].as_f64() > Some(0.0), "{report}");
            assert!(report[side]["step_milliseconds"]["p50"].as_f64() > Some(0.0), "{report}");
            assert_eq!(report[side]["failures"], serde_json::json!({}), "{report}");
        }
        assert!(report["share_of_baseline"].as_f64() > Some(0.0), "{report}");
    }
}

#[test]
fn shared_memory_is_held_against_the_backend_in_process() {
    for transport in ["shm", "shm-slots", "inline"] {
        let small = ["--spawn", "uds", "--in-process", "--rounds", "1", "--transport", transport];
        let report = json(&bench(&[&small[..], &SMALL[..]].concat()));
        for side in ["croupier", "in_process"] {
            assert!(report[side]["tokens_per_second"].as_f64() > Some(0.0), "{report}");
            assert_eq!(report[side]["failures"], serde_json::json!({}), "{report}");
        }
        assert!(report["shares_of_in_process"][0].as_f64() > Some(0.0), "{report}");
        assert!(report["added_milliseconds"][0].is_number(), "{report}");
    }
    // Over TCP a worker has no side socket, unless it was given one.
    let refused = bench(&[&["--spawn", "tcp", "--transport", "shm"][..], &SMALL[..]].concat());
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("offers no shared memory"), "{refused:?}");
    for transport in ["shm", "shm-slots"] {
        let bare = bench(&[&["--spawn", "uds", "--baseline", "--transport", transport][..], &SMALL[..]].concat());
        assert!(String::from_utf8_lossy(&bare.stderr).contains("with shared memory use --in-process"), "{bare:?}");
    }
}

#[test]
fn ranks_are_measured_beside_whole_rows() {
    for transport in ["shm", "inline"] {
        let small = ["--spawn", "uds", "--shards", "1,2,3", "--rounds", "1", "--transport", transport];
        let report = json(&bench(&[&small[..], &SMALL[..]].concat()));
        assert!(report["whole"]["tokens_per_second"].as_f64() > Some(0.0), "{report}");
        let shards = report["shards"].as_array().expect("a list");
        assert_eq!(shards.iter().map(|ranks| ranks["ranks"].as_u64()).collect::<Vec<_>>(), [Some(1), Some(2), Some(3)]);
        for ranks in shards {
            assert!(ranks["croupier"]["tokens_per_second"].as_f64() > Some(0.0), "{report}");
            assert_eq!(ranks["croupier"]["failures"], serde_json::json!({}), "{report}");
            assert!(ranks["shares_of_whole"][0].as_f64() > Some(0.0), "{report}");
        }
    }
    let slots = bench(&[&["--spawn", "uds", "--shards", "2", "--transport", "shm-slots"][..], &SMALL[..]].concat());
    assert!(String::from_utf8_lossy(&slots.stderr).contains("cannot be combined with --shards"), "{slots:?}");
    for wrong in [["--shards", "0"], ["--shards", "2,"], ["--shards", "600"]] {
        assert!(!bench(&[&["--spawn", "uds"][..], &wrong[..], &SMALL[..]].concat()).status.success(), "{wrong:?}");
    }
}

#[test]
fn a_timetable_sets_the_pace() {
    let never = bench(&["--spawn", "uds", "--rate", "1e-300"]);
    assert_eq!(never.status.code(), Some(2), "{never:?}");
    assert!(
        String::from_utf8_lossy(&never.stderr).contains("neither 0 nor a number in 0.001 ..= 1000000"),
        "{never:?}"
    );
    // Its next step would be due long after the end.
    let slow = bench(&[&["--spawn", "uds", "--rate", "0.001", "--duration", "100ms"][..], &SMALL[..4]].concat());
    assert!(
        String::from_utf8_lossy(&slow.stdout).contains("no step was answered within the measured time"),
        "{slow:?}"
    );
    // Two messages of three rows, 50 times a second, are 300 tokens a second, give or take a busy machine. Without a timetable they would
    // be tens of thousands. Messages that fell due while the machine stood still are sent later, so time is lost only before the streams
    // are connected or at the end.
    let timed = ["--spawn", "uds", "--rate", "50", "--message-bytes", "6144", "--duration", "3s", "--json"];
    let report = json(&bench(&[&timed[..], &SMALL[..6]].concat()));
    let tokens_per_second = report["croupier"]["tokens_per_second"].as_f64().expect("a number");
    assert!((100.0..=450.0).contains(&tokens_per_second), "{report}");
    let pace = &report["croupier"]["pace"];
    assert_eq!(pace["wanted_steps_per_second"].as_f64(), Some(100.0), "{report}");
    assert!(pace["steps_per_second"].as_f64() > Some(0.0) && pace["is_reached"].is_boolean(), "{report}");
    // No server answers a million messages a second, one after the other.
    let hurried = bench(&[&["--spawn", "uds", "--rate", "1e6"][..], &SMALL[..8]].concat());
    let told = String::from_utf8_lossy(&hurried.stdout);
    assert!(told.contains("croupier: --rate was not reached: ") && told.contains(" of 1000000.00 steps/s"), "{told}");
}

#[test]
fn an_output_that_is_full_is_named() {
    let full = std::fs::File::options().write(true).open("/dev/full").expect("every Linux has it");
    let mut command = Command::new(env!("CARGO_BIN_EXE_croupier"));
    let output = command.args(["bench", "--spawn", "uds"]).args(SMALL).stdout(full).output().expect("the program runs");
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("croupier bench: cannot write to standard output: "), "{told}");
}

/// A server that is killed when its test ends.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn streams_that_never_connect_are_told() {
    let dir = tempfile::tempdir().expect("a directory");
    let (binary, addr) = (env!("CARGO_BIN_EXE_croupier"), format!("unix:{}", dir.path().join("s").display()));
    let mut server = Command::new(binary);
    server.args(["serve", "--listen=none", "--admin=none", "--threads=1", "--uds", &addr]).stderr(Stdio::null());
    let _server = Server(server.spawn().expect("it starts"));
    let is_up =
        || Command::new(binary).args(["healthcheck", "--addr", &addr]).output().expect("it runs").status.success();
    let started = std::time::Instant::now();
    while !is_up() {
        assert!(started.elapsed().as_secs() < 60, "it never serves");
    }
    let few = |json: &str| {
        let mut shell = Command::new("bash");
        shell.args(["-c", "ulimit -n 60 && exec \"$0\" bench --streams=100 \"$@\"", binary, "--addr", &addr]);
        shell.args(&SMALL[..8]).args((!json.is_empty()).then_some(json)).output().expect("a shell")
    };
    let (table, json) = (few(""), few("--json"));
    assert_eq!((table.status.code(), json.status.code()), (Some(1), Some(1)), "{table:?} {json:?}");
    let said = String::from_utf8_lossy(&table.stdout);
    assert!(said.contains(" of 100 streams ran") && said.contains("x stream not connected: "), "{said}");
    let report: serde_json::Value = serde_json::from_slice(&json.stdout).expect("one JSON object and nothing else");
    let side = &report["croupier"];
    let ran = side["streams_ran"].as_u64().expect("a number");
    let failures = side["failures"].as_object().expect("a table").iter();
    let missing: u64 = failures
        .filter(|(reason, _)| reason.starts_with("stream not connected"))
        .filter_map(|(_, count)| count.as_u64())
        .sum();
    assert!(ran > 0 && ran + missing == 100, "{report}");
}

#[test]
fn without_a_server_it_says_how_to_get_one() {
    let output = bench(&["--addr", "unix:/nowhere/croupier.sock"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("/nowhere/croupier.sock") && said.contains("--spawn"), "{said}");
}

#[test]
fn files_that_are_no_credentials_are_mistakes() {
    let file = std::env::temp_dir().join(format!("croupier-no-pem-{}", std::process::id()));
    std::fs::write(&file, "# nothing\n").expect("a file");
    let name = file.to_str().expect("UTF-8");
    for (flag, problem) in [("--tls-ca", "has no PEM certificate"), ("--token-file", "has no token")] {
        let output = bench(&["--addr", "127.0.0.1:1", flag, name]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(name) && said.contains(problem), "{said}");
    }
    std::fs::remove_file(&file).expect("removed");
}

/// The servers that the bench started end with it, and leave no sockets behind.
#[test]
fn a_signal_ends_what_it_has_started() {
    for (signal, code) in [("-TERM", 143), ("-INT", 130), ("-HUP", 129)] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = Command::new(env!("CARGO_BIN_EXE_croupier"));
        command.args(["bench", "--spawn", "uds", "--baseline", "--vocab", "512", "--duration", "60s"]);
        let mut bench = command.env("TMPDIR", folder.path()).stderr(Stdio::null()).spawn().expect("it starts");
        let sockets = || std::fs::read_dir(folder.path()).expect("it is there").count();
        // The server's socket, its side socket, and the baseline's socket.
        while sockets() < 3 {
            assert!(bench.try_wait().expect("it is there").is_none(), "it has ended");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let id = bench.id().to_string();
        let children = children_of(&id);
        assert_eq!(children.len(), 2, "the server and the baseline");
        assert!(Command::new("kill").args([signal, &id]).status().expect("kill runs").success());
        assert_eq!(bench.wait().expect("it ends").code(), Some(code));
        assert_eq!(sockets(), 0);
        let left: Vec<_> = children.iter().filter(|child| std::path::Path::new("/proc").join(child).exists()).collect();
        assert!(left.is_empty(), "{left:?} run on");
    }
}

/// The children of all threads of a process.
fn children_of(id: &str) -> Vec<String> {
    let threads = std::fs::read_dir(format!("/proc/{id}/task")).expect("it runs").flatten();
    let of_each = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    of_each.flat_map(|ids| ids.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).collect()
}
