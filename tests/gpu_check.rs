//! `scripts/gpu-check` in a folder whose programs are stubs: time on a machine with a GPU is too precious to find out there that a script
//! ends at the first failure, waits forever, or runs a test that does not exist.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

/// A stub of the server that `smoke` waits for.
const SERVER: &str = r#"[[ $1 == --version ]] && echo "croupier 1" && exit
trap 'echo "{\"message\":\"drained\"}" >&2; exit 0' TERM
sleep 0.3; echo '{"fields":{"message":"ready"}}' >&2; while :; do sleep 0.05; done"#;
/// A stub of the tests, which runs only if a GPU with clusters is required.
const TESTS: &str =
    r#"[[ $CROUPIER_TEST_GPU == required-clusters ]] && echo "ran $PROPTEST_CASES $CROUPIER_TEST_GPU_PROOF: $*""#;

fn program(folder: &Path, name: &str, body: &str) {
    let path = folder.join(name);
    std::fs::write(&path, format!("#!/usr/bin/env bash\n{body}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// Runs the script in such a folder, with `others` in place of these stubs. It is called by a path from the folder above.
fn check(verb: &str, limit: &str, others: &[(&str, &str)]) -> (tempfile::TempDir, Output) {
    let dir = tempfile::tempdir().unwrap();
    for script in ["gpu-check", "gpu-bench"] {
        std::fs::copy(format!("{}/scripts/{script}", env!("CARGO_MANIFEST_DIR")), dir.path().join(script)).unwrap();
    }
    let stubs = [
        ("nvidia-smi", r#"[[ $* == *=compute_cap\ * ]] && echo 9.0 || echo "a GPU""#),
        ("croupier", SERVER),
        ("gpu-bench-kernels", "echo measured"),
        ("python3", r#"[[ $1 == -c ]] || echo "peers""#),
        ("numbers", TESTS),
        ("gpu", TESTS),
        ("compute-sanitizer", r#"echo "$2"; while [[ $1 != ./* ]]; do shift; done; exec "$@""#),
    ];
    stubs.iter().chain(others).for_each(|(name, body)| program(dir.path(), name, body));
    let path = format!("{}:{}", dir.path().display(), std::env::var("PATH").unwrap());
    let above = dir.path().parent().unwrap();
    let name = Path::new(dir.path().file_name().unwrap());
    // Of the path that it should write to, only the folder above exists.
    let mut command = Command::new("bash");
    command.current_dir(above).arg(name.join("gpu-check")).arg(verb).env("PATH", path);
    command.env("OUT", name.join("out/gpu")).env("LIMIT_kernels", limit);
    command.env("LD_LIBRARY_PATH", "/a:/usr/local/cuda/lib64/stubs:/stubsof/b:/c/stubs/");
    let output = command.env_remove("PROPTEST_CASES").output().unwrap();
    (dir, output)
}

fn read(dir: &tempfile::TempDir, name: &str) -> String {
    std::fs::read_to_string(dir.path().join("out/gpu").join(name)).unwrap()
}

#[test]
fn all_steps_run_and_pass() {
    let (dir, output) = check("run", "20", &[]);
    let summary = read(&dir, "summary.txt");
    let steps: Vec<&str> = summary.lines().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(steps, ["smoke", "backends", "verification", "device_memory", "kernels", "peers", "memcheck"]);
    assert!(summary.lines().all(|line| line.contains(" passed ")) && output.status.success(), "{summary}");
    assert!(String::from_utf8_lossy(&output.stdout).ends_with(&summary), "the table stands at the end");
    let smoke = read(&dir, "smoke.log");
    assert!(smoke.contains("croupier 1") && smoke.contains("ready") && smoke.contains("drained"), "{smoke}");
    let tests = read(&dir, "tests.log");
    let places =
        ["== backends (", "ran 200 : ", "== verification (", "== device_memory ("].map(|part| tests.find(part));
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{tests}");
    assert!(read(&dir, "sanitize.log").contains("memcheck\nran 8 skip: "));
    // A machine may return no more than 8 files.
    let mut files: Vec<_> =
        std::fs::read_dir(dir.path().join("out/gpu")).unwrap().map(|f| f.unwrap().file_name()).collect();
    files.sort();
    assert_eq!(files, ["bench.log", "sanitize.log", "smoke.log", "summary.txt", "tests.log"]);
}

#[test]
fn the_slowest_is_asked_for_by_itself() {
    let (dir, output) = check("sanitize", "20", &[]);
    let log = read(&dir, "sanitize.log");
    assert!(
        output.status.success() && log.contains("memcheck\nran 8 skip: ") && log.contains("racecheck\nran 8 skip: ")
    );
}

/// A machine may be lent for ten minutes at a time.
#[test]
fn a_run_in_which_everything_hangs_ends_within_ten_minutes() {
    let script = include_str!("../scripts/gpu-check");
    let limits = script.lines().find_map(|line| line.strip_prefix("declare -rA LIMITS=(")).unwrap();
    let limits: Vec<(&str, u64)> = limits
        .trim_end_matches(')')
        .split(' ')
        .map(|limit| limit.trim_start_matches('[').split_once("]=").unwrap())
        .map(|(step, seconds)| (step, seconds.parse().unwrap()))
        .filter(|(step, _)| *step != "racecheck")
        .collect();
    assert!(script.contains("KILL_AFTER=5\n"));
    let all: u64 = limits.iter().map(|(_, seconds)| seconds + 5).sum();
    assert!(limits.len() == 7 && all < 590, "{all} s: {limits:?}");
}

/// The bench itself succeeds if there is no GPU.
#[test]
fn a_bench_that_measured_nothing_has_not_passed() {
    let nothing = "echo SKIPPED: nothing was measured: no CUDA device";
    let (dir, output) = check("bench", "20", &[("gpu-bench-kernels", nothing)]);
    let summary = read(&dir, "summary.txt");
    assert!(summary.starts_with("kernels        FAILED ") && output.status.code() == Some(1), "{summary}");
    assert!(read(&dir, "bench.log").contains("SKIPPED: nothing was measured: no CUDA device\n"));
    // In other positions the word has no meaning, and a failure is still a failure.
    let (dir, output) = check("bench", "20", &[("gpu-bench-kernels", "echo measured; echo SKIPPED: a line")]);
    assert!(output.status.success() && read(&dir, "bench.log").contains("measured\nSKIPPED: a line\n"));
    let (dir, _) = check("bench", "20", &[("gpu-bench-kernels", "echo measured; exit 1")]);
    assert!(read(&dir, "summary.txt").starts_with("kernels        FAILED                 code   1"));
}

/// An error of the driver, for example for an image that it refuses before it takes another, is not a fault of the kernels.
#[test]
fn what_the_driver_answers_is_left_to_the_program() {
    let sanitizer = r#"[[ $* == *" --report-api-errors no "* ]] && echo "$2" && while [[ $1 != ./* ]]; do shift; done && exec "$@""#;
    let (dir, output) = check("sanitize", "20", &[("compute-sanitizer", sanitizer)]);
    assert!(output.status.success(), "{}", read(&dir, "sanitize.log"));
}

#[test]
fn programs_find_the_device_and_the_driver_that_are_meant() {
    let told = r#"mkdir "$CUDA_CACHE_PATH"; echo "$CUDA_DEVICE_ORDER, $CUDA_CACHE_PATH, $LD_LIBRARY_PATH""#;
    let (dir, output) = check("bench", "20", &[("gpu-bench-kernels", told)]);
    let (log, cache) = (read(&dir, "bench.log"), dir.path().join("out/gpu/cuda-cache"));
    let expected = format!("PCI_BUS_ID, {}, /a:/stubsof/b\n", cache.canonicalize().unwrap_or(cache.clone()).display());
    assert!(output.status.success() && log.contains(&expected), "{log}");
    assert!(!cache.exists(), "a machine may bring no more than so many files back");
}

#[test]
fn a_step_that_fails_or_hangs_is_told_and_the_next_runs() {
    let fails = format!("[[ $* != *verification::* ]] || exit 3; {TESTS}");
    let hangs = "trap '' TERM; echo one line; while :; do sleep 0.05; done";
    let others = [("gpu-bench-kernels", hangs), ("numbers", &fails), ("python3", "exit 1"), ("croupier", "exit 2")];
    let (dir, output) = check("run", "4", &others);
    let summary = read(&dir, "summary.txt");
    let results = ["FAILED ", "passed", "FAILED ", "passed", "FAILED: timed out", "SKIPPED", "FAILED "];
    assert_eq!(summary.lines().count(), results.len());
    for (line, result) in summary.lines().zip(results) {
        assert!(line.contains(result), "{line}");
    }
    assert_eq!(output.status.code(), Some(1));
    assert!(read(&dir, "bench.log").contains("one line"), "what it said before it hung is kept");
}

#[test]
fn only_what_a_gpu_without_clusters_can_is_required_of_it() {
    let asked = r#"[[ $CROUPIER_TEST_GPU == required ]]"#;
    let others = [("nvidia-smi", "echo 8.6"), ("numbers", asked), ("gpu", asked)];
    let (dir, output) = check("tests", "20", &others);
    assert!(output.status.success(), "{}", read(&dir, "summary.txt"));
}

/// A name of no test would select nothing, and that passes.
#[test]
fn the_tests_that_are_asked_for_are_there() {
    let script = include_str!("../scripts/gpu-check");
    let sources = [
        ("numbers", "backends::", include_str!("backends.rs")),
        ("numbers", "backends::teams::", include_str!("backends/teams.rs")),
        ("numbers", "verification::", include_str!("verification.rs")),
        ("gpu", "device_memory::gpu::", include_str!("device_memory/gpu.rs")),
    ];
    let mut asked = 0;
    for line in script.lines() {
        let Some((program, names)) = line.split_once("./").and_then(|(_, line)| line.split_once(" --exact ")) else {
            continue;
        };
        for path in names.split(' ') {
            let (module, name) = path.split_at(path.rfind("::").unwrap() + 2);
            let is_it = |(within, holds, source): &(&str, &str, &str)| {
                program.starts_with(within) && *holds == module && source.contains(&format!("fn {name}("))
            };
            assert!(sources.iter().any(is_it), "{path} is no test: {line}");
            asked += 1;
        }
    }
    assert!(asked > 10, "{asked}");
}

#[test]
fn the_usage_teaches() {
    let output = check("what", "1", &[]).1;
    let usage = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(2));
    for word in ["pack FOLDER", "smoke", "bench", "tests", "sanitize", "run", "LIMIT_STEP", "$OUT", "SKIPPED"] {
        assert!(usage.contains(word), "{word} is missing in:\n{usage}");
    }
}
