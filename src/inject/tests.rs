use super::yaml::{Node, parse};
use super::*;

mod shared;

const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: p\nspec:\n  containers:\n  - name: w\n    image: i\n";

fn read(path: &str) -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(path).expect("a file of the repository")
}

fn injected(text: &str) -> String {
    inject(text, &InjectArgs::default()).unwrap_or_else(|e| panic!("{e} in\n{text}")).text
}

fn refused(text: &str) -> String {
    match inject(text, &InjectArgs::default()) {
        Err(error) => error.to_string(),
        Ok(done) => panic!("not refused:\n{}", done.text),
    }
}

/// The pod of the chart's example, as helm renders it.
fn golden() -> Node {
    let rendered = parse(&read("tests/helm/golden/sidecar.yaml")).expect("YAML");
    let kind = |document: &Node| document.get("kind").and_then(Node::text) == Some("Deployment");
    rendered.into_iter().find(kind).and_then(|d| d.at(&["spec", "template"]).cloned()).expect("a Deployment")
}

/// The settings of a golden manifest. The chart puts them into a file, and this command into flags.
fn golden_settings() -> Vec<(String, String)> {
    let rendered = parse(&read("tests/helm/golden/sidecar.yaml")).expect("YAML");
    let file = rendered.iter().find_map(|document| document.at(&["data", "croupier.toml"])?.text()).expect("settings");
    let lines = file.lines().take_while(|line| !line.starts_with('[')).filter_map(|line| line.split_once(" = "));
    lines.map(|(key, value)| (key.replace('_', "-"), value.trim_matches('"').to_owned())).collect()
}

fn without(node: &Node, list: &str, drop: impl Fn(&Node) -> bool) -> Node {
    Node::map(node.entries().iter().map(|(key, value)| {
        let kept = || Node::list(value.items().iter().filter(|item| !drop(item)).cloned());
        let key = key.text().expect("a key").to_owned();
        let value = if key == list { kept() } else { value.clone() };
        (key, value)
    }))
}

#[test]
fn the_sidecar_is_the_charts() {
    let args = InjectArgs {
        settings: golden_settings(),
        cpu_request: Some("2".to_owned()),
        memory_request: Some("256Mi".to_owned()),
        memory_limit: Some("1Gi".to_owned()),
        ..InjectArgs::default()
    };
    let own = inject(POD, &args).expect("injected").text;
    let own = parse(&own).expect("YAML").remove(0);
    let chart = golden();
    let container = |pod: &Node| pod.at(&["spec", "initContainers"]).expect("a sidecar").items()[0].clone();
    // The one difference: with the chart, settings are in a file of a ConfigMap.
    let is_config = |mount: &Node| mount.get("mountPath").and_then(Node::text) == Some("/etc/croupier");
    let is_config_flag = |arg: &Node| arg.text().is_some_and(|text| text.starts_with("--config="));
    let charts = without(&without(&container(&chart), "volumeMounts", is_config), "args", is_config_flag);
    let settings: Vec<String> = golden_settings().iter().map(|(name, value)| format!("--{name}={value}")).collect();
    let is_setting = |arg: &Node| arg.text().is_some_and(|text| settings.iter().any(|setting| setting == text));
    assert_eq!(
        container(&own).get("args").expect("args").items().iter().filter(|arg| is_setting(arg)).count(),
        settings.len()
    );
    let own_container = without(&container(&own), "args", is_setting);
    assert!(
        own_container.sorted().same(&charts.sorted()),
        "{}\n---\n{}",
        own_container.lines().join("\n"),
        charts.lines().join("\n")
    );

    let first = |pod: &Node, path: &[&str]| pod.at(path).expect("there").items()[0].clone();
    for path in [&["spec", "volumes"][..], &["spec", "containers"]] {
        let part =
            |pod: &Node, key: &str| first(pod, path).get(key).cloned().unwrap_or_else(|| Node::list([])).sorted();
        for key in ["env", "volumeMounts", "emptyDir"] {
            assert!(part(&own, key).same(&part(&chart, key)), "{path:?} {key}");
        }
    }
    for key in ["fsGroup", "fsGroupChangePolicy"] {
        let path = ["spec", "securityContext", key];
        assert!(own.at(&path).expect(key).same(chart.at(&path).expect(key)), "{key}");
    }
    assert!(chart.at(&["metadata", "labels", sidecar::LABEL]).is_some(), "the chart's label has another name");
}

#[test]
fn what_is_there_stays_byte_for_byte() {
    for manifest in [
        read("tests/inject/deployment.yaml").as_str(),
        &POD.replace('\n', "\r\n"),
        &POD.replace("image: i", "image: i # comment\n    args: [--mode, 0644, 'yes']\n    # the end"),
    ] {
        let text = injected(manifest);
        let mut left = text.as_str();
        for line in manifest.split_inclusive('\n') {
            let at = left.find(line).unwrap_or_else(|| panic!("{line:?} is gone or elsewhere in\n{text}"));
            left = &left[at + line.len()..];
        }
        assert!(!text.contains("\r\n") || !text.replace("\r\n", "").contains('\n'), "two kinds of line ends:\n{text}");
    }
}

#[test]
fn twice_is_once() {
    let once = injected(POD);
    let twice = inject(&once, &InjectArgs::default()).expect("unchanged");
    assert_eq!(twice.text, once);
    assert_eq!(twice.notes, ["Pod/p: unchanged, already injected"]);
    // Fields that the API server adds to an object change nothing.
    let stored = once
        .replace("restartPolicy: Always", "restartPolicy: Always\n      terminationMessagePath: /dev/termination-log");
    assert!(stored != once);
    assert_eq!(injected(&stored), stored);
    for args in [
        InjectArgs { image: Some("other:2".to_owned()), ..InjectArgs::default() },
        InjectArgs { settings: vec![("threads".to_owned(), "2".to_owned())], ..InjectArgs::default() },
        InjectArgs { memory_limit: Some("4Gi".to_owned()), ..InjectArgs::default() },
    ] {
        let refused = inject(&once, &args).expect_err("asked for something else").to_string();
        assert!(refused.contains("inject the original manifest"), "{refused}");
    }
    let gone = once.replace("name: croupier\n", "name: other\n");
    assert!(refused(&gone).contains("there is no container croupier"), "{}", refused(&gone));
    let chart = POD.replace("  name: p\n", "  name: p\n  labels: {croupier/sidecar: x}\n");
    assert_eq!(injected(&chart), chart);
}

/// Layouts in which manifests come. The program itself checks that the result means what was intended.
#[test]
fn every_layout_is_understood() {
    for (what, with) in [
        ("  containers:\n  - name: w\n    image: i\n", "  containers: [{name: w, image: i}]\n"),
        (
            "spec:\n  containers:\n  - name: w\n    image: i\n",
            "spec: {containers: [{name: w, env: [], volumeMounts: [{name: a, mountPath: /a}]}]}\n",
        ),
        ("  - name: w\n    image: i\n", "    - env:\n        - {name: A, value: b}\n      name: w\n"),
        ("  - name: w\n", "  # The worker.\n  - name: w\n    env:\n    # None yet.\n    volumeMounts: ~\n"),
        (
            "  - name: w\n",
            "  - name: w\n    env: []\n    volumeMounts:\n    # Of the model.\n    - name: m\n      mountPath: /m\n",
        ),
        (
            "    image: i\n",
            "    image: i\n    env:\n    - {name: A, value: b}\n    volumeMounts: &x\n    - {name: a, mountPath: /a}\n",
        ),
        ("  name: p\n", "  name: p\n  labels:\n    a: b\n  annotations: {}\n"),
        ("metadata:\n  name: p\n", "metadata: {name: p}\n"),
        ("metadata:\n  name: p\n", ""),
        ("spec:\n", "spec:\n  securityContext: {runAsNonRoot: true}\n  initContainers: []\n  volumes: null\n"),
        ("    image: i\n", "    image: i"),
        ("    image: i\n", "    args:\n    - |\n      # in a text\n      more\n    image: i\n"),
        ("apiVersion: v1\n", "---\n# A comment: with a colon.\napiVersion: v1\n"),
    ] {
        let manifest = POD.replace(what, with);
        assert!(manifest != POD, "{what}");
        let text = injected(&manifest);
        let pod = parse(&text).expect("YAML").remove(0);
        let worker = &pod.at(&["spec", "containers"]).expect("containers").items()[0];
        let names = |list: &str, key: &str| {
            worker.get(list).expect("a list").items()[0].get(key).and_then(Node::text).map(str::to_owned)
        };
        assert_eq!(names("env", "name").as_deref(), Some("CROUPIER_TARGET"), "{text}");
        assert_eq!(names("volumeMounts", "mountPath").as_deref(), Some("/run/croupier"), "{text}");
        assert!(pod.at(&["metadata", "annotations", "croupier/injected"]).is_some(), "{text}");
        assert_eq!(injected(&text), text);
    }
}

#[test]
fn what_cannot_be_done_safely_is_refused_with_its_line() {
    for (what, with, says) in [
        (
            "  - name: w\n",
            "  - name: croupier\n    image: x\n  - name: w\n",
            "line 6: Pod/p: there are several containers; name the worker's with --container croupier|w",
        ),
        (
            "  - name: w\n",
            "  - name: croupier\n",
            "line 7: Pod/p: there is already a container croupier, and it was not injected",
        ),
        (
            "spec:\n",
            "spec:\n  initContainers: [{name: croupier}]\n",
            "line 6: Pod/p: there is already a container croupier, and it was not injected",
        ),
        (
            "spec:\n",
            "spec:\n  volumes:\n  - name: croupier-socket\n",
            "line 7: Pod/p: there is already a volume croupier-socket",
        ),
        (
            "    image: i\n",
            "    volumeMounts: [{name: x, mountPath: /run/croupier}]\n",
            "line 8: Pod/p: there is already a mount at /run/croupier",
        ),
        (
            "    image: i\n",
            "    env: [{name: CROUPIER_TARGET, value: x}]\n",
            "line 8: Pod/p: there is already a variable CROUPIER_TARGET",
        ),
        (
            "    image: i\n",
            "    ports: [{containerPort: 9464}]\n",
            "line 8: Pod/p: port 9464 of the pod is taken; choose another with --admin-port",
        ),
        (
            "    image: i\n",
            "    ports: [{containerPort: 1, hostPort: 9464}]\n  hostNetwork: true\n",
            "line 8: Pod/p: port 9464 of the node (hostNetwork) is taken",
        ),
        ("spec:\n", "spec:\n  nodeSelector:\n    kubernetes.io/os: windows\n", "line 7: Pod/p: the pod is for Windows"),
        ("spec:\n", "spec:\n  os: {name: windows}\n", "line 6: Pod/p: the pod is for Windows"),
        ("spec:\n", "spec:\n  <<: *x\n", "line 6"),
        ("    image: i\n", "    image: i\n  containers: []\n", "line 9: the key containers appears twice"),
        ("    image: i\n", "   image: i\n", "line 8: "),
        ("    image: i\n", "    image: \"i\n", "line "),
        (
            "  containers:\n  - name: w\n    image: i\n",
            "  containers: []\n",
            "Pod/p: the pod template has no containers",
        ),
        ("kind: Pod", "kind: Service", "there is no pod template"),
        ("apiVersion: v1\n", "apiVersion: example.com/v1\n", "there is no pod template"),
    ] {
        let manifest = POD.replace(what, with);
        assert!(manifest != POD, "{what}");
        let said = refused(&manifest);
        assert!(said.contains(says), "{said}\ninstead of {says} for\n{manifest}");
    }
    let claims = "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: s}\nspec:\n  volumeClaimTemplates:\n  - metadata: {name: croupier-socket}\n  template:\n    spec:\n      containers: [{name: w, image: i}]\n";
    assert!(
        refused(claims).contains("line 6: StatefulSet/s: there is already a volume croupier-socket"),
        "{}",
        refused(claims)
    );
    assert_eq!(visible("Pod/p\u{1b}[31m\nline"), "Pod/p\\u{1b}[31m\\nline");
    assert!(refused("").contains("there is no pod template"));
    let alias = POD
        .replace("    image: i\n", "    image: i\n    env: *e\n")
        .replace("kind: Pod\n", "kind: Pod\nx: &e [{name: a}]\n");
    assert!(refused(&alias).contains("something must be added here, but this is an alias"), "{}", refused(&alias));
}

#[test]
fn the_worker_is_chosen_by_name() {
    let two = POD.replace("  - name: w\n", "  - name: proxy\n    image: x\n  - name: w\n");
    let args = InjectArgs { container: Some("w".to_owned()), ..InjectArgs::default() };
    let other = POD.replace("name: w", "name: other").replace("name: p", "name: q");
    let done = inject(&format!("{two}---\n{other}"), &args).expect("injected");
    assert_eq!(done.notes, ["Pod/p: injected", "Pod/q: unchanged, has no such container"]);
    assert!(done.text.ends_with(&other), "{}", done.text);
    let on_host = two.replace("spec:\n", "spec:\n  hostNetwork: true\n");
    let told = inject(&on_host, &args).expect("injected").notes.concat();
    assert!(told.contains("injected; with hostNetwork, /metrics takes port 9464 of the node"), "{told}");
    assert!(inject(&other, &args).is_err_and(|e| e.to_string().contains("no pod template has a container w")));
}

#[test]
fn images_are_completed() {
    let image = |image: Option<&str>, tag: Option<&str>| {
        InjectArgs { image: image.map(str::to_owned), tag: tag.map(str::to_owned), ..InjectArgs::default() }.image()
    };
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(image(None, None), format!("croupier:{version}"));
    assert_eq!(image(Some("r.example:5000/c"), None), format!("r.example:5000/c:{version}"));
    assert_eq!(image(Some("r.example:5000/c"), Some("x")), "r.example:5000/c:x");
    for complete in ["r/c:1", "r/c@sha256:00"] {
        assert_eq!(image(Some(complete), None), complete);
    }
}

/// Manifests that are cut anywhere, that lack any one line, or that have any one line indented differently. They never
/// cause a panic, and never a result with another meaning, which the program itself checks. What was injected is
/// injected once.
#[test]
fn whatever_comes_in_it_does_not_go_wrong() {
    let (mut done, mut refused) = (0, 0);
    let mut try_one = |text: &str, container: &str| {
        let mounts = if container == "worker" { reading() } else { Vec::new() };
        let args = InjectArgs { container: Some(container.to_owned()), mounts, ..InjectArgs::default() };
        match inject(text, &args) {
            Ok(first) => {
                let second = inject(&first.text, &args).unwrap_or_else(|e| panic!("{e} in\n{}", first.text));
                assert_eq!(second.text, first.text);
                done += 1;
            }
            Err(_) => refused += 1,
        }
    };
    for (name, container) in [("deployment", "mistral-7b"), ("statefulset", "worker"), ("list", "worker")] {
        let text = read(&format!("tests/inject/{name}.yaml"));
        (0..=text.len()).step_by(3).filter_map(|end| text.get(..end)).for_each(|cut| try_one(cut, container));
        let lines: Vec<&str> = text.lines().collect();
        for i in 0..lines.len() {
            let with = |line: Option<String>| {
                let before = lines[..i].iter().map(ToString::to_string);
                let all = before.chain(line).chain(lines[i + 1..].iter().map(ToString::to_string));
                all.map(|line| line + "\n").collect::<String>()
            };
            try_one(&with(None), container);
            try_one(&with(Some(format!("  {}", lines[i]))), container);
            try_one(&with(lines[i].strip_prefix("  ").map(str::to_owned)), container);
            try_one(&with(Some(format!("{} # a: comment [", lines[i]))), container);
        }
    }
    assert!(done > 300 && refused > 300, "{done} injected, {refused} refused");
}

fn reading() -> Vec<(String, String)> {
    vec![("models".to_owned(), "/models".to_owned())]
}

/// Native sidecars start one after another. One that waits for a file from a later container keeps that container from
/// starting.
#[test]
fn what_writes_a_volume_runs_before_the_sidecar_that_reads_it() {
    let pod = |inits: &str| format!("{POD}  volumes:\n  - name: models\n    emptyDir: {{}}\n{inits}");
    let block = |names: &[(&str, &str)]| {
        let container = |(name, mounts): &(&str, &str)| format!("  - name: {name}\n    volumeMounts:{mounts}\n");
        "  initContainers:\n".to_owned() + &names.iter().map(container).collect::<String>()
    };
    let (writes, reads) = (" [{name: models, mountPath: /m}]", " [{name: models, mountPath: /m, readOnly: true}]");
    let longer = "\n    - name: models\n      mountPath: /m\n    args:\n    - |\n      one\n\n      two\n  # of nobody";
    for (inits, place) in [
        (String::new(), 0),
        (block(&[("a", " []"), ("b", reads)]), 0),
        (block(&[("a", writes), ("b", reads), ("c", " []")]), 1),
        (block(&[("a", writes), ("b", " # what it has")]), 1),
        (block(&[("a", " []"), ("b", writes)]), 2),
        (block(&[("a", " []"), ("b", longer)]), 2),
        (block(&[("a", " []"), ("b", writes)]).trim_end().to_owned(), 2),
        (block(&[("a", " []"), ("b", writes)]) + "  # of the pod\n\n  hostNetwork: false\n", 2),
        ("  initContainers: [{name: a}, {name: b, volumeMounts: [{name: models, mountPath: /m}]}]\n".to_owned(), 2),
        ("  initContainers: [{name: a, volumeMounts: [{name: models, mountPath: /m}]}, {name: b}]\n".to_owned(), 1),
    ] {
        let manifest = pod(&inits);
        let args = InjectArgs { mounts: reading(), ..InjectArgs::default() };
        let done = inject(&manifest, &args).unwrap_or_else(|e| panic!("{e} in\n{manifest}")).text;
        let read = parse(&done).expect("YAML").remove(0);
        let containers = read.at(&["spec", "initContainers"]).expect("containers").items();
        let is_sidecar = |node: &Node| node.get("name").and_then(Node::text) == Some("croupier");
        assert_eq!(containers.iter().position(is_sidecar), Some(place), "{done}");
        let mounts = containers[place].get("volumeMounts").expect("mounts").items();
        let mount = Node::map([
            ("name", Node::string("models")),
            ("mountPath", Node::string("/models")),
            ("readOnly", Node::plain("true")),
        ]);
        assert!(mounts.len() == 2 && mounts[1].same(&mount), "{done}");
        let mut left = done.as_str();
        for line in manifest.lines().filter(|line| !line.contains("initContainers: [")) {
            let at = left.find(line).unwrap_or_else(|| panic!("{line:?} is gone or elsewhere in\n{done}"));
            left = &left[at + line.len()..];
        }
        assert_eq!(inject(&done, &args).expect("unchanged").text, done);
    }
}

#[test]
fn marks_of_yaml_stay() {
    for manifest in [
        format!("\u{feff}{POD}"),
        format!("%YAML 1.2\n---\n{POD}...\n"),
        format!("---\n# Source: chart/templates/pod.yaml\n{POD}\n---\n# nothing\n---\n"),
        POD.replace("name: p", "name: p\n  annotations: {text: \"\u{1f600} \u{e9}\"}"),
    ] {
        let text = injected(&manifest);
        assert_eq!(text.chars().next(), manifest.chars().next());
        assert_eq!(injected(&text), text);
        let kept = |text: &str| text.lines().filter(|l| l.starts_with(['%', '-', '#', '.', '\u{feff}'])).count();
        assert_eq!(kept(&text), kept(&manifest), "{text}");
    }
}
