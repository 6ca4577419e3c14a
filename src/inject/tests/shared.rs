//! Anchors, aliases and merge keys.

use super::super::yaml::{Node, parse};
use super::{InjectArgs, POD, inject, injected, refused};

const DEPLOYMENT: &str = "apiVersion: apps/v1
kind: Deployment
metadata:
  name: worker
spec:
  template:
    metadata:
      labels:
        app: worker
    spec:
      containers:
      - name: worker
        image: w
        volumeMounts:
        - {name: models, mountPath: /models}
      volumes:
      - {name: models, emptyDir: {}}
  selector:
    matchLabels:
      app: worker
";

/// The Deployment with some pieces of its text replaced.
fn with(replacements: &[(&str, &str)]) -> String {
    replacements.iter().fold(DEPLOYMENT.to_owned(), |text, (what, with)| {
        assert!(text.contains(what), "{what}");
        text.replacen(what, with, 1)
    })
}

fn refused_of(manifest: &str, container: &str) -> String {
    let args = InjectArgs { container: Some(container.to_owned()), ..InjectArgs::default() };
    inject(manifest, &args).map(|done| done.text).expect_err("not refused").to_string()
}

/// The addition would also appear where the alias is: a selector cannot be changed later, and another container would
/// get the socket.
#[test]
fn what_an_alias_repeats_is_not_added_to() {
    let matched = ("matchLabels:\n      app: worker\n", "matchLabels: *x\n");
    for (replacements, line, alias) in [
        (&[("labels:\n", "labels: &x\n"), matched][..], 8, 19),
        (&[("labels:\n        app: worker\n", "labels: &x {app: worker}\n"), matched], 8, 18),
        (&[("template:\n", "template: &x\n"), ("matchLabels:\n      app: worker\n", "other: *x\n")], 6, 19),
        (&[("    spec:\n", "    spec: &x\n"), ("matchLabels:\n      app: worker\n", "<<: *x\n")], 10, 19),
        (
            &[
                ("- name: worker\n        image: w\n", "- &x\n        name: worker\n        image: w\n"),
                ("      volumes:\n", "      initContainers: [*x]\n      volumes:\n"),
            ],
            13,
            17,
        ),
        (
            &[
                ("volumeMounts:\n", "volumeMounts: &x\n"),
                ("      volumes:\n", "      - {name: other, volumeMounts: *x}\n      volumes:\n"),
            ],
            14,
            16,
        ),
    ] {
        let manifest = with(replacements);
        let said = refused_of(&manifest, "worker");
        let says = format!(
            "line {line}: something must be added here, and the alias in line {alias} would repeat it; write that alias out"
        );
        assert!(said.contains(&says), "{said}\ninstead of {says} for\n{manifest}");
    }
    // The other way round: the place to add to is itself the alias.
    let mounts = with(&[
        ("- name: worker", "- name: other\n        volumeMounts: &x []\n      - name: worker"),
        ("volumeMounts:\n        - {name: models, mountPath: /models}", "volumeMounts: *x"),
    ]);
    let said = refused_of(&mounts, "worker");
    assert!(said.contains("line 16: something must be added here, but this is an alias; write it out"), "{said}");
}

/// An anchor without aliases changes nothing. Neither does an alias of a node that stays as it is.
#[test]
fn what_is_not_added_to_may_have_aliases() {
    for manifest in [
        with(&[("labels:\n", "labels: &x\n"), ("volumeMounts:\n", "volumeMounts: &y\n")]),
        with(&[("app: worker", "app: &x worker"), ("matchLabels:\n      app: worker", "matchLabels:\n      app: *x")]),
        with(&[("name: worker", "name: &x worker"), ("- name: worker", "- name: *x"), ("app: worker", "app: *x")]),
        with(&[
            ("        image: w\n", "        image: w\n        resources: &x {limits: {cpu: 1}}\n"),
            ("matchLabels:", "x: *x\n    matchLabels:"),
        ]),
    ] {
        let text = injected(&manifest);
        assert_eq!(injected(&text), text);
        let deployment = parse(&text).expect("YAML").remove(0);
        let matched = deployment.at(&["spec", "selector", "matchLabels"]).expect("labels");
        assert!(matched.entries().len() == 1 && matched.get("app").and_then(Node::text) == Some("worker"), "{text}");
    }
}

/// What an alias stands for counts in the same way as what is written out.
#[test]
fn aliases_are_read_as_what_they_stand_for() {
    let disabled = with(&[
        ("  name: worker\n", "  name: worker\n  annotations: &x {croupier/inject: disabled}\n"),
        ("    metadata:\n", "    metadata:\n      annotations: *x\n"),
    ]);
    assert_eq!(injected(&disabled), disabled);
    for (key, value, list, says) in [
        ("env", "{name: CROUPIER_TARGET, value: x}", "env: [*x]", "there is already a variable CROUPIER_TARGET"),
        ("a", "{containerPort: 9464}", "ports: [*x]", "port 9464 of the pod is taken"),
        ("a", "[{containerPort: 9464}]", "ports: *x", "port 9464 of the pod is taken"),
        ("a", "9464", "ports: [{containerPort: *x}]", "port 9464 of the pod is taken"),
        ("a", "/run/croupier", "volumeMounts: [{name: y, mountPath: *x}]", "there is already a mount at /run/croupier"),
    ] {
        let manifest = POD
            .replace("metadata:\n", &format!("metadata:\n  {key}: &x {value}\n"))
            .replace("    image: i\n", &format!("    image: i\n    {list}\n"));
        assert!(refused(&manifest).contains(says), "{}\nfor\n{manifest}", refused(&manifest));
    }
    let windows = POD.replace("  name: p\n", "  name: p\n  x: &x {kubernetes.io/os: windows}\n");
    let windows = windows.replace("spec:\n", "spec:\n  nodeSelector: *x\n");
    assert!(refused(&windows).contains("the pod is for Windows"), "{}", refused(&windows));
    // No object is overlooked.
    let list =
        "apiVersion: v1\nkind: List\nitems:\n- &x {apiVersion: v1, kind: Pod, spec: {containers: [{name: w}]}}\n- *x\n";
    assert!(refused(list).contains("the alias in line 5 would repeat it"), "{}", refused(list));
}

/// An added key would take precedence over the merged one, and merged entries are not seen.
#[test]
fn merge_keys_are_refused_where_something_is_read_or_added() {
    let anchors = "x: &x {a: b}\n";
    for (what, with, line) in [
        ("apiVersion: v1\n", "<<: *x\n", 2),
        ("kind: Pod\n", "<<: *x\n", 3),
        ("spec:\n", "<<: *x\nspec:\n", 6),
        ("  name: p\n", "  <<: *x\n", 5),
        ("  name: p\n", "  labels: {<<: *x}\n", 5),
        ("  name: p\n", "  annotations:\n    <<: *x\n", 6),
        ("spec:\n", "spec:\n  <<: *x\n", 7),
        ("spec:\n", "spec:\n  securityContext: {runAsUser: 1, <<: *x}\n", 7),
        ("spec:\n", "spec:\n  nodeSelector: {<<: *x}\n", 7),
        ("spec:\n", "spec:\n  os: {<<: *x}\n", 7),
        ("spec:\n", "spec:\n  volumes:\n  - <<: [*x]\n", 8),
        ("spec:\n", "spec:\n  initContainers: [{<<: *x}]\n", 7),
        ("spec:\n", "spec:\n  initContainers:\n  - name: a\n    volumeMounts: [{<<: *x}]\n", 9),
        ("  - name: w\n", "  - <<: *x\n    name: w\n", 8),
        ("  - name: w\n", "  - <<: *x\n", 8),
        ("    image: i\n", "    ports: [{<<: *x}]\n", 9),
        ("    image: i\n", "    env: [{<<: *x}]\n", 9),
        ("    image: i\n", "    volumeMounts: [{<<: *x}]\n", 9),
    ] {
        let manifest = anchors.to_owned() + &POD.replace(what, with);
        let says = format!("line {line}: ");
        let said = refused(&manifest);
        assert!(
            said.starts_with(&says) && said.ends_with("a merge key (<<) hides what is there; write it out"),
            "{said}"
        );
    }
    for (what, merging, line) in [
        ("  template:\n", "  <<: &x {}\n  template:\n", 6),
        ("    metadata:\n", "    <<: &x {}\n    metadata:\n", 7),
        ("  name: worker\n", "  <<: &x {}\n", 4),
    ] {
        let said = refused(&with(&[(what, merging)]));
        assert!(said.contains(&format!("line {line}: ")) && said.contains("merge key"), "{said}");
    }
}

#[test]
fn merge_keys_elsewhere_stay() {
    for manifest in [
        POD.replace(
            "    image: i\n",
            "    image: i\n    resources: {<<: {limits: {cpu: 1}}}\n    livenessProbe: {<<: {}}\n",
        ),
        POD.replace(
            "    image: i\n",
            "    image: i\n    securityContext: {<<: {runAsUser: 1}}\n  affinity: {<<: {}}\n",
        ),
        format!("{POD}---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{<<: {{name: c}}}}\n<<: {{}}\n"),
    ] {
        let text = injected(&manifest);
        assert_eq!(injected(&text), text);
    }
    // Pods without the worker's container may contain anything.
    let args = InjectArgs { container: Some("w".to_owned()), ..InjectArgs::default() };
    let other = POD.replace("  - name: w\n", "  - name: other\n    <<: {}\n");
    let both = format!("{other}---\n{POD}");
    let done = inject(&both, &args).expect("injected");
    assert_eq!(done.notes, ["Pod/p: unchanged, has no such container", "Pod/p: injected"]);
}

/// Parsing is fast and does not overflow the stack.
#[test]
fn aliases_of_aliases_end() {
    let doubled: String = (1..2000).map(|i| format!("  a{i}: &a{i} [*a{0}, *a{0}]\n", i - 1)).collect();
    let deep = POD.replace("metadata:\n", &format!("metadata:\n  a0: &a0 [x]\n{doubled}"));
    assert_eq!(refused(&deep), "line 103: nested deeper than 100 levels");
    let itself = POD.replace("  - name: w\n", "  - &x\n    name: w\n    env: [*x]\n");
    assert!(
        refused(&itself).contains("line 9: an alias stands inside the node that it refers to"),
        "{}",
        refused(&itself)
    );
}

/// An addition before a key with an anchor would take over the anchor.
#[test]
fn anchors_stay_where_they_are() {
    let manifest = POD.replace("  name: p\n", "  &x name: >\n    p\n").replace("image: i", "image: *x");
    assert!(refused(&manifest).contains("its layout cannot be changed safely"), "{}", refused(&manifest));
}
