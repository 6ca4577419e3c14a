//! Finds pod templates, and checks whether a sidecar can be added to one.

use super::edit::{Editor, PathStep};
use super::shared::check_merged;
use super::sidecar::{INJECTED, LABEL, SCRAPE_PORT, Sidecar, has_scrape};
use super::yaml::{Mistake, Node};

/// Kinds of objects with pods, with the group of their apiVersion and the path of their template. The group must match,
/// because a kind of the same name in another group may be something else.
const KINDS: [(&str, &str, &[&str]); 8] = [
    ("Pod", "", &[]),
    ("Deployment", "apps", &["spec", "template"]),
    ("StatefulSet", "apps", &["spec", "template"]),
    ("DaemonSet", "apps", &["spec", "template"]),
    ("ReplicaSet", "apps", &["spec", "template"]),
    ("ReplicationController", "", &["spec", "template"]),
    ("Job", "batch", &["spec", "template"]),
    ("CronJob", "batch", &["spec", "jobTemplate", "spec", "template"]),
];
/// The lists of containers in a pod.
const CONTAINERS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];
/// If this annotation is `disabled`, the pod is left as it is.
const INJECT: &str = "croupier/inject";

/// The reason for leaving a template alone if `--container` names a container of other pods.
pub(super) const NO_SUCH_CONTAINER: &str = "has no such container";

/// The outcome for a pod template.
pub(super) enum Outcome {
    /// The sidecar was added. Has notes for the user.
    Injected(Vec<String>),
    /// An injected sidecar was replaced. Has the version that had injected it.
    Replaced(String),
    /// The template is left as it is, for this reason.
    Left(&'static str),
}

/// A pod template in a document.
pub(super) struct Template<'a> {
    /// Such as `Deployment/worker`.
    pub(super) name: String,
    path: Vec<PathStep>,
    pub(super) node: &'a Node,
    /// Volume claims of a StatefulSet, which adds them to its pods as volumes.
    claims: &'a [Node],
}

/// The templates of a document. If it is a list, these are the templates of all its items.
pub(super) fn templates(document: &Node) -> Result<Vec<Template<'_>>, Mistake> {
    let kind = document.get("kind").and_then(Node::text).unwrap_or_default();
    if !kind.ends_with("List") {
        return Ok(template(document, Vec::new())?.into_iter().collect());
    }
    check_merged(document, &[])?;
    let items = document.get("items").map(Node::items).unwrap_or_default();
    let at = |i| vec![PathStep::Key("items"), PathStep::Item(i)];
    items.iter().enumerate().filter_map(|(i, item)| template(item, at(i)).transpose()).collect()
}

fn template(object: &Node, mut path: Vec<PathStep>) -> Result<Option<Template<'_>>, Mistake> {
    let text = |key| object.get(key).and_then(Node::text);
    let (Some(kind), Some(version)) = (text("kind"), text("apiVersion")) else {
        // A merge key could bring in what makes this an object with pods.
        return check_merged(object, &[]).map(|()| None);
    };
    let group = version.split_once('/').map_or("", |(group, _)| group);
    let Some((_, _, keys)) = KINDS.iter().find(|(known, of, _)| *known == kind && *of == group) else {
        return Ok(None);
    };
    for read in [*keys, &["metadata"], &["spec", "volumeClaimTemplates", "metadata"]] {
        check_merged(object, read)?;
    }
    path.extend(keys.iter().map(|key| PathStep::Key(key)));
    let metadata = object.get("metadata");
    let name = ["name", "generateName"].iter().find_map(|key| metadata?.get(key)?.text());
    let name = format!("{kind}/{}", name.unwrap_or("(no name)"));
    let claims = object.at(&["spec", "volumeClaimTemplates"]).map(Node::items).unwrap_or_default();
    Ok(object.at(keys).map(|node| Template { name, path, node, claims }))
}

impl Template<'_> {
    /// Adds the sidecar. With `replace`, a different sidecar that was injected before is replaced.
    pub(super) fn inject(
        &self,
        editor: &mut Editor<'_>,
        sidecar: &Sidecar,
        (worker, replace): (Option<&str>, bool),
    ) -> Result<Outcome, Mistake> {
        for read in [&["metadata", "labels"][..], &["metadata", "annotations"], &["spec"]] {
            check_merged(self.node, read)?;
        }
        let annotations = self.node.at(&["metadata", "annotations"]);
        if let Some(mark) = annotations.and_then(|known| known.get(INJECTED)) {
            return self.known(editor, mark, sidecar, replace);
        }
        if self.node.at(&["metadata", "labels", LABEL]).is_some() {
            return Ok(Outcome::Left("already has a sidecar from the chart"));
        }
        if annotations.and_then(|known| known.get(INJECT)).and_then(Node::text) == Some("disabled") {
            return Ok(Outcome::Left("its annotation croupier/inject is disabled"));
        }
        let Some(spec) = self.node.get("spec").filter(|spec| !spec.entries().is_empty()) else {
            return Err(wrong(self.node, "the pod template has no spec"));
        };
        let Some(worker) = self.worker(spec, worker)? else { return Ok(Outcome::Left(NO_SUCH_CONTAINER)) };
        check(spec, worker.1, sidecar)?;
        check_claims(self.claims, sidecar)?;
        self.check_mounts(spec, sidecar)?;
        self.add(editor, sidecar, spec, worker.0);
        let port = sidecar.admin_port;
        let scraped = has_scrape(annotations)
            .then(|| format!("keeps the worker's prometheus.io annotations; scrape port {port} by other means"));
        let on_host = is_on_host(spec).then(|| {
            format!(
                "with hostNetwork, /metrics takes port {port} of the node: run one such pod per node, or give each its own --admin-port"
            )
        });
        Ok(Outcome::Injected(scraped.into_iter().chain(on_host).collect()))
    }

    /// Handles a template that was injected before. It may have the same sidecar or one to replace, or somebody has to
    /// act by hand.
    fn known(
        &self,
        editor: &mut Editor<'_>,
        mark: &Node,
        sidecar: &Sidecar,
        replace: bool,
    ) -> Result<Outcome, Mistake> {
        let containers = self.node.at(&["spec", "initContainers"]).map(Node::items).unwrap_or_default();
        let name_of = |container: &Node| container.get("name").and_then(Node::text) == Some(sidecar.name());
        let Some((at, container)) = containers.iter().enumerate().find(|(_, container)| name_of(container)) else {
            let name = sidecar.name();
            let problem = format!(
                "{INJECTED} says that it was injected, but there is no container {name}; remove the annotation"
            );
            return Err(wrong(mark, &problem));
        };
        let wanted = sidecar.container();
        // With `replace`, settings that are no longer wanted, such as a limit, must be removed too.
        if container.says(&wanted) && (!replace || wanted.says(container)) {
            return Ok(Outcome::Left("already injected"));
        }
        if !replace {
            return Err(wrong(
                container,
                "was injected with another image or other settings, or by another version; give --replace to replace it, or \
                 inject the original manifest",
            ));
        }
        self.check_replaced(container, at, sidecar)?;
        self.put_in_place(editor, container, at, sidecar);
        Ok(Outcome::Replaced(mark.text().unwrap_or_default().to_owned()))
    }

    /// Checks that everything except the sidecar itself can stay as it is.
    fn check_replaced(&self, old: &Node, at: usize, sidecar: &Sidecar) -> Result<(), Mistake> {
        let Some(spec) = self.node.get("spec") else { return Ok(()) };
        check_merged(self.node, &["spec", "containers", "env"])?;
        check_merged(spec, &["volumes"])?;
        for list in CONTAINERS {
            ["ports", "volumeMounts"].iter().try_for_each(|key| check_merged(spec, &[list, key]))?;
        }
        let containers = spec.get("containers").map(Node::items).unwrap_or_default();
        let has = |container: &Node, list, item: &Node| {
            container.get(list).map(Node::items).unwrap_or_default().iter().any(|own| own.says(item))
        };
        let is_worker = |container: &&Node| has(container, "env", &sidecar.env());
        let finds = |container: &Node| has(container, "volumeMounts", &sidecar.mount());
        let volume = |own: &Node| own.get("name").and_then(Node::text) == Some(sidecar.volume_name());
        let volumes = spec.get("volumes").map(Node::items).unwrap_or_default();
        if !containers.iter().find(is_worker).is_some_and(finds) || !volumes.iter().any(volume) {
            return Err(wrong(
                old,
                "no container has the variable and the mount that it needs to find the new sidecar; inject the original \
                 manifest",
            ));
        }
        for key in CONTAINERS {
            let others = spec.get(key).map(Node::items).unwrap_or_default().iter();
            let others = others.filter(|other| other.place.start != old.place.start);
            others.into_iter().try_for_each(|other| check_ports(spec, other, sidecar))?;
        }
        self.check_mounts(spec, sidecar)?;
        if at < sidecar.place(spec) {
            return Err(wrong(
                old,
                "a later init container may write what the sidecar reads, so each would wait for the other; inject the \
                 original manifest",
            ));
        }
        Ok(())
    }

    fn put_in_place(&self, editor: &mut Editor<'_>, old: &Node, at: usize, sidecar: &Sidecar) {
        let under = |steps: &[PathStep]| [&self.path[..], steps].concat();
        editor.replace(
            under(&[PathStep::Key("spec"), PathStep::Key("initContainers"), PathStep::Item(at)]),
            sidecar.container(),
        );
        let annotation = |key| under(&[PathStep::Key("metadata"), PathStep::Key("annotations"), PathStep::Key(key)]);
        editor.replace(annotation(INJECTED), Node::string(env!("CARGO_PKG_VERSION")));
        // The worker's own annotation, if it has one, names another port. It must stay.
        let port = old.get("ports").and_then(|ports| ports.items().first()?.get("containerPort")?.text());
        let told = self.node.at(&["metadata", "annotations", SCRAPE_PORT]).and_then(Node::text);
        if port.is_some() && port == told {
            editor.replace(annotation(SCRAPE_PORT), Node::string(sidecar.admin_port.to_string()));
        }
    }

    /// The worker's container: the one with this name, or without a name the only one.
    fn worker<'n>(&self, spec: &'n Node, name: Option<&str>) -> Result<Option<(usize, &'n Node)>, Mistake> {
        let containers = spec.get("containers").map(Node::items).unwrap_or_default();
        let name_of = |container: &'n Node| container.get("name").and_then(Node::text).unwrap_or_default();
        // Other containers may use merge keys, but it must be certain that they are not the worker.
        let nameless = containers.iter().filter(|container| container.get("name").is_none());
        nameless.into_iter().try_for_each(|container| check_merged(container, &[]))?;
        match (name, containers) {
            (_, []) => Err(wrong(spec, "the pod template has no containers")),
            (Some(name), all) => Ok(all.iter().enumerate().find(|(_, container)| name_of(container) == name)),
            (None, [only]) => Ok(Some((0, only))),
            (None, several) => {
                let names: Vec<&str> = several.iter().map(name_of).collect();
                let problem =
                    format!("there are several containers; name the worker's with --container {}", names.join("|"));
                Err(wrong(spec, &problem))
            }
        }
    }

    /// Checks that the volumes that the sidecar reads exist.
    fn check_mounts(&self, spec: &Node, sidecar: &Sidecar) -> Result<(), Mistake> {
        let volumes = spec.get("volumes").map(Node::items).unwrap_or_default().iter();
        let claims = self.claims.iter().filter_map(|claim| claim.at(&["metadata", "name"]));
        let names: Vec<&str> =
            volumes.filter_map(|volume| volume.get("name")).chain(claims).filter_map(Node::text).collect();
        if sidecar.mounts().iter().any(|(_, path)| path == sidecar.directory()) {
            return Err(wrong(
                spec,
                &format!("--mount: {} is taken by the socket; choose another path", sidecar.directory()),
            ));
        }
        let there = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        match sidecar.mounts().iter().find(|(name, _)| !names.contains(&name.as_str())) {
            Some((name, _)) => Err(wrong(spec, &format!("--mount: the pod has no volume {name}; it has {there}"))),
            None => Ok(()),
        }
    }

    fn add(&self, editor: &mut Editor<'_>, sidecar: &Sidecar, spec: &Node, worker: usize) {
        let under = |keys: &[&'static str]| {
            [&self.path[..], &keys.iter().map(|key| PathStep::Key(key)).collect::<Vec<_>>()].concat()
        };
        let (pod, of_spec) = (under(&[]), under(&["spec"]));
        let annotations = sidecar.annotations(self.node.at(&["metadata", "annotations"]));
        if self.node.get("metadata").is_some_and(|metadata| !metadata.is_null()) {
            editor.entries(&under(&["metadata"]), "labels", sidecar.labels());
            editor.entries(&under(&["metadata"]), "annotations", annotations);
        } else {
            let metadata = [("labels", Node::map(sidecar.labels())), ("annotations", Node::map(annotations))];
            editor.entries(&pod, "metadata", metadata.map(|(key, value)| (key.to_owned(), value)).to_vec());
        }
        if spec.at(&["securityContext", "fsGroup"]).is_none() {
            let mut group = vec![("fsGroup".to_owned(), sidecar.fs_group())];
            if spec.at(&["securityContext", "fsGroupChangePolicy"]).is_none() {
                // The group applies to all volumes. The kubelet is to change the files of a large one only once.
                group.push(("fsGroupChangePolicy".to_owned(), Node::string("OnRootMismatch")));
            }
            editor.entries(&of_spec, "securityContext", group);
        }
        editor.items_before(&of_spec, "initContainers", sidecar.place(spec), vec![sidecar.container()]);
        editor.items(&of_spec, "volumes", vec![sidecar.volume()]);
        let worker = [of_spec, vec![PathStep::Key("containers"), PathStep::Item(worker)]].concat();
        editor.items(&worker, "env", vec![sidecar.env()]);
        editor.items(&worker, "volumeMounts", vec![sidecar.mount()]);
    }
}

/// Checks that the sidecar would not conflict with anything in the pod.
fn check(spec: &Node, worker: &Node, sidecar: &Sidecar) -> Result<(), Mistake> {
    check_read(spec, worker)?;
    let os = [["nodeSelector", "kubernetes.io/os"], ["os", "name"]].into_iter().find_map(|path| spec.at(&path));
    if let Some(os) = os.filter(|os| os.text() == Some("windows")) {
        return Err(wrong(os, "the pod is for Windows, which Croupier does not support"));
    }
    for container in CONTAINERS.iter().flat_map(|key| spec.get(key).map(Node::items).unwrap_or_default()) {
        if let Some(name) = container.get("name").filter(|name| name.text() == Some(sidecar.name())) {
            return Err(wrong(
                name,
                &format!("there is already a container {}, and it was not injected", sidecar.name()),
            ));
        }
        check_ports(spec, container, sidecar)?;
    }
    let names = |node: &Node, list, key, name: &str| {
        let items = node.get(list).map(Node::items).unwrap_or_default();
        items
            .iter()
            .find_map(|item| item.get(key).filter(|value| value.text() == Some(name)))
            .map(|found| found.place.line)
    };
    let taken =
        |what: &str, name: &str, line| Err(Mistake { line, problem: format!("there is already {what} {name}") });
    if let Some(line) = names(spec, "volumes", "name", sidecar.volume_name()) {
        return taken("a volume", sidecar.volume_name(), line);
    }
    if let Some(line) = names(worker, "volumeMounts", "mountPath", sidecar.directory()) {
        return taken("a mount at", sidecar.directory(), line);
    }
    let variable = sidecar.variable().0;
    names(worker, "env", "name", variable).map_or(Ok(()), |line| taken("a variable", variable, line))
}

/// Checks that everything which is read or added to is visible, and not hidden by merge keys.
fn check_read(spec: &Node, worker: &Node) -> Result<(), Mistake> {
    ["securityContext", "nodeSelector", "os", "volumes"].iter().try_for_each(|key| check_merged(spec, &[key]))?;
    for list in CONTAINERS {
        ["ports", "volumeMounts"].iter().try_for_each(|key| check_merged(spec, &[list, key]))?;
    }
    check_merged(worker, &["env"])
}

/// Checks the volume claims, because a claim replaces the pod's volume of the same name.
fn check_claims(claims: &[Node], sidecar: &Sidecar) -> Result<(), Mistake> {
    let name = |claim| Node::at(claim, &["metadata", "name"]);
    match claims.iter().filter_map(name).find(|name| name.text() == Some(sidecar.volume_name())) {
        Some(name) => Err(wrong(name, &format!("there is already a volume {}", sidecar.volume_name()))),
        None => Ok(()),
    }
}

/// Checks ports. Containers of a pod share its network, and with hostNetwork they share the node's.
fn check_ports(spec: &Node, container: &Node, sidecar: &Sidecar) -> Result<(), Mistake> {
    let own = sidecar.admin_port.to_string();
    let ports = container.get("ports").map(Node::items).unwrap_or_default();
    let taken = ports.iter().flat_map(|port| ["containerPort", "hostPort"].into_iter().filter_map(|key| port.get(key)));
    let Some(port) = taken.into_iter().find(|port| port.text() == Some(&own)) else { return Ok(()) };
    let whose = if is_on_host(spec) { "the node (hostNetwork)" } else { "the pod" };
    Err(wrong(port, &format!("port {own} of {whose} is taken; choose another with --admin-port")))
}

fn is_on_host(spec: &Node) -> bool {
    spec.get("hostNetwork").and_then(Node::text).is_some_and(|text| text.eq_ignore_ascii_case("true"))
}

fn wrong(node: &Node, problem: &str) -> Mistake {
    Mistake { line: node.place.line, problem: problem.to_owned() }
}
