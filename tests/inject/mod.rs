//! `croupier inject` on published manifests: its output, byte for byte, and its exit codes.
//!
//! `BLESS=1 cargo test --test server inject::` writes `*.injected.yaml` again; `scripts/helm-check` checks them against the schemas of
//! Kubernetes. `src/inject/tests.rs::the_sidecar_is_the_charts` checks that the sidecar is the chart's.

use std::ffi::OsString;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/inject").join(name)
}

fn inject(args: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_croupier"));
    command.arg("inject").args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A command that refuses its flags does not read its input.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A manifest, flags, and the expected message.
const MANIFESTS: [(&str, &[&str], &str); 3] = [
    (
        "deployment",
        &[
            "--image=registry.example.com/croupier",
            "--tag=0.1.0",
            "--cpu-limit=4",
            "--memory-limit=3Gi",
            "--setting=threads=4",
        ],
        "croupier inject: Deployment/mistral-7b: injected\n",
    ),
    (
        "statefulset",
        &[
            "--container=worker",
            "--admin-port=9465",
            "--setting",
            "max_state_bytes=512MiB",
            "--mount=models=/models",
            "--setting=vocabulary=/models/tokenizer.json",
        ],
        "croupier inject: StatefulSet/engine: injected; keeps the worker's prometheus.io annotations; \
         scrape port 9465 by other means\n",
    ),
    (
        "list",
        &[],
        "croupier inject: CronJob/nightly: injected\n\
         croupier inject: Pod/debug: unchanged, its annotation croupier/inject is disabled\n",
    ),
];

#[test]
fn manifests_come_out_as_they_must() {
    for (name, flags, notes) in MANIFESTS {
        let manifest = std::fs::read_to_string(file(&format!("{name}.yaml"))).unwrap();
        let golden = file(&format!("{name}.injected.yaml"));
        let done = inject(flags, &manifest);
        assert!(done.status.success(), "{}", text(&done.stderr));
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&golden, &done.stdout).unwrap();
        }
        let is = text(&done.stdout);
        assert!(
            is == std::fs::read_to_string(&golden).unwrap_or_default(),
            "{name} is now:\n{is}\nIf that is meant: BLESS=1"
        );
        assert_eq!(text(&done.stderr), notes);
        let path = file(&format!("{name}.yaml"));
        assert_eq!(inject(&[flags, &[path.to_str().unwrap()]].concat(), "").stdout, done.stdout, "from a file");
        let again = inject(flags, &is);
        assert_eq!(text(&again.stdout), is, "{name} a second time");
        assert!(text(&again.stderr).contains("unchanged, already injected"), "{}", text(&again.stderr));
    }
}

#[test]
fn nothing_is_written_when_something_stands_against_it() {
    let statefulset = std::fs::read_to_string(file("statefulset.yaml")).unwrap();
    let broken = statefulset.replace("    replicas: 3", "  replicas: 3");
    let cases = [
        (&[][..], statefulset.as_str(), 1, "standard input: line 19: StatefulSet/engine: there are several containers"),
        (&["--container=nobody"], &statefulset, 1, "standard input: no pod template has a container nobody"),
        (&["--container=worker", "--admin-port=0"], &statefulset, 2, "--admin-port: \"0\""),
        (&["--container=worker", "--mount=model=/m"], &statefulset, 1, "no volume model; it has config, models"),
        (
            &["--container=worker", "--mount=models=/run/croupier/"],
            &statefulset,
            1,
            "/run/croupier is taken by the socket",
        ),
        (&[], &broken, 1, "standard input: line 7: "),
        (&[], "", 1, "there is no pod template"),
        (&["/nowhere.yaml"], "", 1, "/nowhere.yaml: cannot be read: No such file"),
        (&["--setting=uds=x", "--setting=thread=1", "--setting=threads=0", "--memory-limit=1GiB"], "", 2, "4 mistakes"),
        (&["--setting=vocabulary=/a/t.json", "--mount=v=/ab"], "", 2, "/a/t.json is not in any --mount"),
        (&["--mount=v", "--mount=v=models", "--mount=v=/a", "--mount=w=/a/"], "", 2, "3 mistakes"),
    ];
    for (flags, input, code, says) in cases {
        let done = inject(flags, input);
        let said = text(&done.stderr);
        assert_eq!(done.status.code(), Some(code), "{said}");
        assert!(said.contains(says) && done.stdout.is_empty(), "{said}\ninstead of {says}");
    }
}

/// A quantity of Kubernetes is valid here too.
#[test]
fn quantities_are_those_of_kubernetes() {
    let pod = std::fs::read_to_string(file("deployment.yaml")).unwrap();
    for (quantity, is_one) in
        [("2P", true), ("1Ei", true), ("3e9", true), ("1.5Gi", true), ("1GiB", false), ("0", false), ("1e999", false)]
    {
        let done = inject(&["--container=mistral-7b", &format!("--memory-limit={quantity}")], &pod);
        let said = text(&done.stderr);
        assert_eq!(said.contains("is not a quantity"), !is_one, "{quantity}: {said}");
        // In quotes if YAML would read it as a number.
        let written = text(&done.stdout).replace('"', "");
        assert_eq!(written.contains(&format!("memory: {quantity}")), is_one, "{quantity}: {said}");
    }
}

/// The flags of the next call.
const NEXT: [&str; 3] = ["--ipv6", "--setting=max_streams=9", "--memory-request=1Gi"];

#[test]
fn another_sidecar_takes_the_place_of_the_one_before() {
    let pod =
        r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "w"}]}}"#;
    let read = |name: &str| std::fs::read_to_string(file(&format!("{name}.yaml"))).unwrap();
    let mut manifests: Vec<(String, &[&str])> = MANIFESTS.iter().map(|&(name, flags, _)| (read(name), flags)).collect();
    manifests.push((pod.to_owned(), &[]));
    for (manifest, flags) in manifests {
        let before = text(&inject(flags, &manifest).stdout);
        let older = before.replace("croupier/injected\": \"0.1.0", "croupier/injected\": \"0.0.9");
        let older = older.replace("croupier/injected: \"0.1.0", "croupier/injected: \"0.0.9");
        assert_ne!(older, before);
        // An annotation of the pod also names the port.
        let port =
            if flags.iter().any(|flag| flag.contains("admin-port")) { "--tag=0.2.0" } else { "--admin-port=9555" };
        let next = [flags, &NEXT, &[port]].concat();
        let kept = inject(&next, &older);
        assert_eq!((kept.status.code(), kept.stdout.len()), (Some(1), 0), "{}", text(&kept.stderr));
        assert!(text(&kept.stderr).contains("give --replace"), "{}", text(&kept.stderr));
        let replaced = inject(&[&next[..], &["--replace"]].concat(), &older);
        assert_eq!(text(&replaced.stdout), text(&inject(&next, &manifest).stdout), "as if it were the first");
        assert!(
            text(&replaced.stderr).contains(": replaced the sidecar injected by 0.0.9"),
            "{}",
            text(&replaced.stderr)
        );
        for part in ["--admin=[::]:9", "--admin=http://[::1]:9", "--max-streams=9"] {
            assert!(text(&replaced.stdout).contains(part), "{part}");
        }
        let again = inject(&[&next[..], &["--replace"]].concat(), &text(&replaced.stdout));
        assert_eq!(again.stdout, replaced.stdout);
        assert!(text(&again.stderr).contains("unchanged, already injected"), "{}", text(&again.stderr));
        if flags.iter().any(|flag| flag.contains("cpu-limit")) {
            continue;
        }
        // If a flag is no longer given, what it had added is removed.
        let limited = inject(&[&next[..], &["--cpu-limit=7"]].concat(), &manifest);
        let freed = inject(&[&next[..], &["--replace"]].concat(), &text(&limited.stdout));
        assert_ne!(limited.stdout, replaced.stdout);
        assert_eq!(text(&freed.stdout), text(&replaced.stdout));
        let kept = inject(&next, &text(&limited.stdout));
        assert_eq!(kept.stdout, limited.stdout, "whoever stores it may have added that");
    }
}

#[test]
fn nothing_takes_a_place_that_is_not_its_own() {
    let before = std::fs::read_to_string(file("deployment.injected.yaml")).unwrap();
    let fetch =
        "        - name: fetch\n          volumeMounts: [{name: cache-volume, mountPath: /m}]\n      volumes:\n";
    let behind = before.replace("      volumes:\n", fetch);
    let taken = before.replace("containerPort: 8000", "containerPort: 9555");
    assert!(behind != before && taken != before);
    for (manifest, flag, says) in [
        (
            before.replace("value: unix:/run/croupier", "value: unix:/run/c"),
            "--tag=0.2.0",
            "no container has the variable",
        ),
        (behind, "--mount=cache-volume=/models", "a later init container may write what the sidecar reads"),
        (before.clone(), "--mount=nothing=/models", "the pod has no volume nothing"),
        (taken, "--admin-port=9555", "port 9555 of the pod is taken"),
    ] {
        let done = inject(&["--replace", flag], &manifest);
        let said = text(&done.stderr);
        assert!(done.status.code() == Some(1) && done.stdout.is_empty() && said.contains(says), "{said}");
    }
}

/// The list under a key of a manifest, where that key comes after another key.
fn listed(manifest: &str, after: &str, key: &str) -> Vec<String> {
    let after = manifest.split(&format!("{after}:\n")).nth(1).unwrap();
    let list = after.split(&format!("{key}:\n")).nth(1).unwrap();
    let items: Vec<String> = list.lines().map_while(|line| line.trim().strip_prefix("- ").map(str::to_owned)).collect();
    assert!(items.len() > 3, "{items:?}");
    items
}

/// A manifest whose paths and addresses are replaced by ones of this machine.
fn here(name: &str, folder: &Path) -> String {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let injected = std::fs::read_to_string(file(name)).unwrap();
    injected.replace("/run/croupier", folder.to_str().unwrap()).replace("0.0.0.0", "127.0.0.1").replace("9464", &port)
}

/// The flags in a manifest are flags of this program.
#[test]
fn the_program_takes_the_flags_that_it_writes() {
    let folder = tempfile::tempdir().unwrap();
    let args = listed(&here("deployment.injected.yaml", folder.path()), "initContainers", "args");
    let args: Vec<OsString> = std::iter::once("croupier".to_owned()).chain(args).map(Into::into).collect();
    assert!(args.len() > 8, "{args:?}");
    let parsed = croupier::config::parse(args, &|_| None);
    assert!(matches!(parsed, Ok(croupier::config::Command::Serve(_))), "{parsed:?}");
}

/// A server process that is killed when its test ends.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn until(what: &str, is: impl FnMut() -> bool) {
    let found = std::iter::repeat_with(is).take(600).any(|is| {
        std::thread::sleep(Duration::from_millis(if is { 0 } else { 100 }));
        is
    });
    assert!(found, "never {what}");
}

/// A probe over the socket is then refused, like a worker. A restart of the server would cut off the connected workers.
#[test]
fn a_sidecar_whose_connections_are_all_taken_is_not_ready_and_lives() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = here("deployment.injected.yaml", folder.path());
    let croupier = |args: &[String]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_croupier"));
        command.args(args).stdout(Stdio::null()).stderr(Stdio::null());
        command
    };
    let probe = |kind: &str| croupier(&listed(&manifest, kind, "command")[1..]).status().unwrap().success();
    // As in a cluster, a failed probe is repeated before it counts as failed.
    let is_content = |kind: &str| (0..3).any(|_| probe(kind));
    let mut serve = croupier(&listed(&manifest, "initContainers", "args"));
    serve.args(["--max-connections=1", "--first-byte-timeout=10m"]);
    let _server = Server(serve.spawn().unwrap());
    until("started", || probe("startupProbe"));
    assert!(is_content("livenessProbe") && is_content("readinessProbe"));

    // The connection of the last probe may still be open.
    let mut taken = Vec::new();
    until("full", || {
        taken.push(UnixStream::connect(folder.path().join("croupier.sock")).unwrap());
        !probe("readinessProbe")
    });
    // Startup too: workers may fill a server that was started again before it is asked for the first time.
    assert!(is_content("livenessProbe") && is_content("startupProbe"));
    taken.clear();
    until("ready again", || probe("readinessProbe"));
}
