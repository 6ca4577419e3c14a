//! What is added to a pod. It is the same as what the chart's templates `croupier.sidecar.*` make of the chart's
//! values.
//!
//! The values are read from the chart itself, so that security context, probes, names and paths are defined in one
//! place.

use super::InjectArgs;
use super::yaml::{self, Mistake, Node};

/// The chart's values. Every key that is used here exists there: `tests::the_sidecar_is_the_charts` uses them all.
const VALUES: &str = include_str!("../../helm/croupier/values.yaml");
/// The name of the port with `/metrics`. The chart's PodMonitor refers to it.
const ADMIN_PORT: &str = "croupier-admin";
/// The label that the chart's templates give to pods with a sidecar.
pub(super) const LABEL: &str = "croupier/sidecar";
/// The annotation of an injected pod. Its value is the version that injected it.
pub(super) const INJECTED: &str = "croupier/injected";
/// The annotation in which Prometheus without its operator looks for the port.
pub(super) const SCRAPE_PORT: &str = "prometheus.io/port";
/// All annotations that it looks at.
const SCRAPE: [&str; 3] = ["prometheus.io/scrape", SCRAPE_PORT, "prometheus.io/path"];

/// The sidecar to add.
#[derive(Debug)]
pub(super) struct Sidecar {
    values: Node,
    /// Port of `/metrics`.
    pub(super) admin_port: u16,
    /// Whether the sidecar listens on IPv6.
    ipv6: bool,
    image: String,
    settings: Vec<(String, String)>,
    mounts: Vec<(String, String)>,
    resources: Node,
}

impl Sidecar {
    pub(super) fn new(args: &InjectArgs) -> Self {
        let documents: Result<Vec<Node>, Mistake> = yaml::parse(VALUES);
        let values = documents.ok().and_then(|mut all| all.pop()).unwrap_or_else(|| Node::list([]));
        Self {
            admin_port: args
                .admin_port
                .unwrap_or_else(|| text(&values, &["ports", "admin"]).parse().unwrap_or_default()),
            ipv6: args.ipv6,
            image: args.image(),
            settings: settings(&values, &args.settings),
            mounts: args.mounts.clone(),
            resources: resources(args),
            values,
        }
    }

    fn value(&self, path: &[&str]) -> &str {
        text(&self.values, path)
    }

    fn node(&self, path: &[&str]) -> Node {
        self.values.at(path).cloned().unwrap_or_else(|| Node::map::<String>([]))
    }

    /// The name of the container.
    pub(super) fn name(&self) -> &str {
        self.value(&["sidecar", "containerName"])
    }

    /// The name of the volume with the socket.
    pub(super) fn volume_name(&self) -> &str {
        self.value(&["sidecar", "socketVolume"])
    }

    /// The path at which that volume is mounted.
    pub(super) fn directory(&self) -> &str {
        self.value(&["sidecar", "socketDirectory"])
    }

    /// The value of a server setting, by the name of its flag. `None`: it has its default.
    pub(super) fn setting(&self, name: &str) -> Option<&str> {
        self.settings.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    fn socket(&self) -> String {
        format!("{}/croupier.sock", self.directory())
    }

    /// The name and the value of the worker's environment variable with the address.
    pub(super) fn variable(&self) -> (&'static str, String) {
        ("CROUPIER_TARGET", format!("unix:{}", self.socket()))
    }

    /// The group that owns the socket.
    pub(super) fn fs_group(&self) -> Node {
        Node::plain(self.value(&["sidecar", "fsGroup"]))
    }

    /// The sidecar's entry in initContainers.
    pub(super) fn container(&self) -> Node {
        // The worker's connections may take all places at the socket. Then the sidecar is not ready, but it has started
        // and is alive. So startup and liveness are asked at the admin port.
        let loopback = if self.ipv6 { "[::1]" } else { "127.0.0.1" };
        let (socket, admin) =
            (format!("--addr={}", self.variable().1), format!("--admin=http://{loopback}:{}", self.admin_port));
        let port = Node::map([("name", Node::string(ADMIN_PORT)), ("containerPort", Node::plain(self.admin_port))]);
        let mut entries = vec![
            ("name", Node::string(self.name())),
            ("restartPolicy", Node::string("Always")),
            ("image", Node::string(&self.image)),
            ("imagePullPolicy", Node::string(self.value(&["image", "pullPolicy"]))),
            ("args", Node::list(self.args().into_iter().map(Node::string))),
        ];
        if !self.resources.entries().is_empty() {
            entries.push(("resources", self.resources.clone()));
        }
        entries.extend([
            ("securityContext", self.node(&["securityContext"])),
            ("terminationMessagePolicy", Node::string("FallbackToLogsOnError")),
            ("ports", Node::list([port])),
            ("startupProbe", self.probe("startup", &admin, None)),
            ("livenessProbe", self.probe("liveness", &admin, Some("--service=liveness"))),
            ("readinessProbe", self.probe("readiness", &socket, Some("--service=readiness"))),
            ("volumeMounts", Node::list(std::iter::once(self.mount()).chain(self.reading()))),
        ]);
        Node::map(entries)
    }

    fn args(&self) -> Vec<String> {
        let mut args = vec!["serve".to_owned()];
        args.extend(self.settings.iter().map(|(name, value)| format!("--{name}={value}")));
        let bind = if self.ipv6 { "[::]" } else { self.value(&["bindAddress"]) };
        args.push(format!("--admin={bind}:{}", self.admin_port));
        args.push(format!("--drain-timeout={}s", self.value(&["drainTimeoutSeconds"])));
        args.extend(["--listen=none".to_owned(), format!("--uds={}", self.socket()), "--lame-duck=0s".to_owned()]);
        args
    }

    /// `whom` is the flag with the target of the health check.
    fn probe(&self, kind: &str, whom: &str, service: Option<&str>) -> Node {
        let times = self.node(&["probes", kind]);
        // The health check waits as long as the kubelet does.
        let timeout = format!("--timeout={}s", text(&times, &["timeoutSeconds"]));
        let words = ["croupier", "healthcheck", whom].into_iter().chain(service).chain([timeout.as_str()]);
        let command = Node::map([("command", Node::list(words.map(Node::string)))]);
        let mut entries = vec![("exec".to_owned(), command)];
        entries.extend(
            times.entries().iter().map(|(key, value)| (key.text().unwrap_or_default().to_owned(), value.clone())),
        );
        Node::map(entries)
    }

    /// The entry in volumes. The volume is on disk, because a socket contains no data.
    pub(super) fn volume(&self) -> Node {
        Node::map([("name", Node::string(self.volume_name())), ("emptyDir", Node::map::<String>([]))])
    }

    /// The entry in volumeMounts of both containers.
    pub(super) fn mount(&self) -> Node {
        Node::map([("name", Node::string(self.volume_name())), ("mountPath", Node::string(self.directory()))])
    }

    /// The pod's own volumes that the sidecar reads: names and paths.
    pub(super) fn mounts(&self) -> &[(String, String)] {
        &self.mounts
    }

    /// The sidecar's index among the initContainers. It is the first one, unless others may write the volumes that the
    /// sidecar reads. Then it comes after these: otherwise it would wait for them, and they for it.
    pub(super) fn place(&self, spec: &Node) -> usize {
        let writes = |mount: &Node| {
            let name = mount.get("name").and_then(Node::text);
            self.mounts.iter().any(|(volume, _)| name == Some(volume))
                && mount.get("readOnly").and_then(Node::text) != Some("true")
        };
        let containers = spec.get("initContainers").map(Node::items).unwrap_or_default();
        let mut writers = containers
            .iter()
            .map(|container| container.get("volumeMounts").map(Node::items).unwrap_or_default().iter().any(writes));
        writers.rposition(|is_writer| is_writer).map_or(0, |last| last + 1)
    }

    /// Further entries in volumeMounts, for the sidecar only.
    fn reading(&self) -> impl Iterator<Item = Node> {
        self.mounts.iter().map(|(volume, path)| {
            Node::map([
                ("name", Node::string(volume)),
                ("mountPath", Node::string(path)),
                ("readOnly", Node::plain("true")),
            ])
        })
    }

    /// The entry in the worker's env.
    pub(super) fn env(&self) -> Node {
        let (name, value) = self.variable();
        Node::map([("name", Node::string(name)), ("value", Node::string(value))])
    }

    /// Labels of the pod.
    pub(super) fn labels(&self) -> Vec<(String, Node)> {
        vec![(LABEL.to_owned(), Node::string("injected"))]
    }

    /// Annotations of the pod. Those for Prometheus are added only if the worker has none, because a pod can name only
    /// one port there.
    pub(super) fn annotations(&self, known: Option<&Node>) -> Vec<(String, Node)> {
        let mut annotations = vec![(INJECTED.to_owned(), Node::string(env!("CARGO_PKG_VERSION")))];
        if !has_scrape(known) {
            let values = ["true".to_owned(), self.admin_port.to_string(), "/metrics".to_owned()];
            annotations.extend(SCRAPE.iter().zip(values).map(|(key, value)| ((*key).to_owned(), Node::string(value))));
        }
        annotations
    }
}

/// Whether there are already annotations for Prometheus.
pub(super) fn has_scrape(annotations: Option<&Node>) -> bool {
    annotations.is_some_and(|known| SCRAPE.iter().any(|key| known.get(key).is_some()))
}

fn text<'a>(values: &'a Node, path: &[&str]) -> &'a str {
    values.at(path).and_then(Node::text).unwrap_or_default()
}

/// The chart's settings with those of the command line, under the names of flags.
fn settings(values: &Node, own: &[(String, String)]) -> Vec<(String, String)> {
    let chart = values.get("config").map(Node::entries).unwrap_or_default();
    let chart = chart.iter().filter_map(|(key, value)| Some((key.text()?.replace('_', "-"), value.text()?.to_owned())));
    let mut settings: Vec<(String, String)> =
        chart.filter(|(name, _)| own.iter().all(|(other, _)| other != name)).collect();
    settings.extend(own.iter().cloned());
    settings
}

fn resources(args: &InjectArgs) -> Node {
    let part = |cpu: &Option<String>, memory: &Option<String>| {
        let given =
            [("cpu", cpu), ("memory", memory)].into_iter().filter_map(|(name, amount)| Some((name, amount.as_ref()?)));
        Node::map(given.map(|(name, amount)| (name, Node::string(amount))))
    };
    let parts = [
        ("requests", part(&args.cpu_request, &args.memory_request)),
        ("limits", part(&args.cpu_limit, &args.memory_limit)),
    ];
    Node::map(parts.into_iter().filter(|(_, amounts)| !amounts.entries().is_empty()))
}
