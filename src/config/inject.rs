//! The command line of `croupier inject`.

use super::file;
use super::flags::{Reader, option, switch};
use super::resolve::resolve;
use super::settings::SETTINGS;
use super::values;
use crate::inject::{DEFAULT_IMAGE, InjectArgs, memory};
use clap::{Arg, ArgAction, ArgMatches};
use std::path::Path;

pub(super) const INJECT: &str = "inject";
/// Settings that cannot be given, because they follow from where the sidecar is put.
const OWN_SETTINGS: [&str; 5] = ["listen", "uds", "admin", "lame-duck", "drain-timeout"];

/// The clap definition of `croupier inject`.
pub(super) fn command() -> clap::Command {
    let version = env!("CARGO_PKG_VERSION");
    clap::Command::new(INJECT)
        .about("Add the sidecar to the pods of Kubernetes manifests; everything else stays as it was")
        .after_help(
            "kubectl get deployment worker -o yaml | croupier inject --image=REGISTRY/croupier | kubectl apply -f -\n\n\
             It handles the pods of Deployments, StatefulSets, DaemonSets, ReplicaSets, ReplicationControllers, Jobs and CronJobs, \
             and bare pods, in documents or a List. Pods with the annotation croupier/inject: disabled are left alone, \
             and so are pods that were injected with the same flags. A pod that was injected with other flags is refused, unless \
             --replace is given.",
        )
        .arg(Arg::new("file").value_name("FILE").help("The manifests [default: standard input]"))
        .arg(option(
            "container",
            "NAME",
            "The worker's container [default: the only one]; pods without it are left alone",
        ))
        .arg(option("image", "IMAGE", "").help(format!(
            "The image, with or without a tag; none is published, build it with the Dockerfile [default: {DEFAULT_IMAGE}]"
        )))
        .arg(option("tag", "TAG", "").help(format!("The image's tag, if --image has none [default: {version}]")))
        .arg(option("admin-port", "PORT", "Port of /metrics in the pod [default: 9464, as in the chart]"))
        .arg(switch("ipv6", "Listen on [::] for /metrics, in IPv6-only clusters"))
        .arg(switch(
            "replace",
            "Replace a sidecar that was injected with another image, with other settings or by another version",
        ))
        .arg(
            option(
                "setting",
                "NAME=VALUE",
                "A setting of the server, such as threads=2; repeatable [default: the chart's]",
            )
            .action(ArgAction::Append),
        )
        .arg(
            option(
                "mount",
                "VOLUME=PATH",
                "A volume of the pod for the sidecar to read, such as models=/models, for settings that name a file \
                 (vocabulary, presets); repeatable",
            )
            .action(ArgAction::Append),
        )
        .arg(option("cpu-request", "QUANTITY", "CPUs that the sidecar asks for, such as 2 or 500m"))
        .arg(option("cpu-limit", "QUANTITY", "CPUs that it may use; it starts as many threads"))
        .arg(option("memory-request", "QUANTITY", "Memory that the sidecar asks for, such as 1Gi"))
        .arg(option("memory-limit", "QUANTITY", "Memory that it may use; docs/deployment.md has the arithmetic"))
}

/// Makes the arguments from what clap parsed.
///
/// # Errors
/// Every mistake, including those found before.
pub(super) fn args(matches: &ArgMatches, mut problems: Vec<String>) -> Result<InjectArgs, Vec<String>> {
    let settings = settings(matches, &mut problems);
    let mounts = mounts(matches, &settings, &mut problems);
    let mut reader = Reader::new(matches, problems);
    let word = |t: &str| if t.is_empty() { Err("is empty".to_owned()) } else { Ok(Some(t.to_owned())) };
    let quantity = |t: &str| quantity(t).map(Some);
    let args = InjectArgs {
        file: reader.read("file", None, |t| Ok(Some(t.into()))),
        container: reader.read("container", None, word),
        image: reader.read("image", None, word),
        tag: reader.read("tag", None, word),
        admin_port: reader.read("admin-port", None, |t| values::count(t, 1..=u16::MAX).map(Some)),
        ipv6: matches.get_flag("ipv6"),
        replace: matches.get_flag("replace"),
        settings,
        mounts,
        cpu_request: reader.read("cpu-request", None, quantity),
        cpu_limit: reader.read("cpu-limit", None, quantity),
        memory_request: reader.read("memory-request", None, quantity),
        memory_limit: reader.read("memory-limit", None, quantity),
    };
    if args.tag.is_some() && args.image.as_deref().is_some_and(InjectArgs::is_complete) {
        let image = args.image.clone().unwrap_or_default();
        reader.note(format!("--tag: the image {image} has a tag or a digest already; leave one of them out"));
    }
    for (what, request, limit) in
        [("cpu", &args.cpu_request, &args.cpu_limit), ("memory", &args.memory_request, &args.memory_limit)]
    {
        if let (Some(request), Some(limit)) = (request, limit)
            && memory::quantity(request) > memory::quantity(limit)
        {
            reader.note(format!(
                "--{what}-request: {request} is above --{what}-limit {limit}; Kubernetes rejects such a pod"
            ));
        }
    }
    reader.end(args)
}

/// Reads the settings as `croupier serve` itself would, so that everything it would refuse is refused here.
fn settings(matches: &ArgMatches, problems: &mut Vec<String>) -> Vec<(String, String)> {
    let mut settings: Vec<(String, String)> = Vec::new();
    for text in matches.get_many::<String>("setting").into_iter().flatten() {
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        let name = name.replace('_', "-");
        let known = SETTINGS.iter().any(|setting| setting.name == name);
        match name.as_str() {
            _ if value.is_empty() => problems.push(format!("--setting: \"{text}\" is not NAME=VALUE")),
            own if OWN_SETTINGS.contains(&own) => {
                problems.push(format!("--setting: {own} is set by inject itself; leave it out"))
            }
            _ if !known => {
                let near = file::nearest(&name, SETTINGS.iter().map(|setting| setting.name));
                let hint = near.map_or_else(String::new, |near| format!("; did you mean {near}?"));
                problems.push(format!("--setting: unknown setting {name}{hint}"));
            }
            _ => settings.push((name, value.to_owned())),
        }
    }
    let flag = |name: &str| match name {
        // Some settings are valid only together with these, which the injected sidecar sets itself.
        "listen" => Some("none".to_owned()),
        "uds" => Some("/croupier.sock".to_owned()),
        _ => settings.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone()),
    };
    let found = resolve(&flag, &|_| None, Vec::new()).1;
    // They name flags of `serve`.
    let told = |problem: String| problem.strip_prefix("--").map(|of| format!("--setting {of}")).unwrap_or(problem);
    problems.extend(found.into_iter().map(told));
    settings
}

/// The volumes to mount. A setting that names a file must find it in one of these volumes, because the image has no
/// such files.
fn mounts(matches: &ArgMatches, settings: &[(String, String)], problems: &mut Vec<String>) -> Vec<(String, String)> {
    let mut mounts: Vec<(String, String)> = Vec::new();
    for text in matches.get_many::<String>("mount").into_iter().flatten() {
        let (volume, path) = text.split_once('=').unwrap_or((text, ""));
        let path = path.trim_end_matches('/');
        let is_taken = || mounts.iter().any(|(_, other)| other == path);
        match path {
            _ if volume.is_empty() || path.is_empty() => {
                problems.push(format!("--mount: \"{text}\" is not VOLUME=PATH, such as models=/models"));
            }
            _ if !path.starts_with('/') || path.contains([':', ',']) || path.split('/').any(|part| part == "..") => {
                problems.push(format!("--mount: \"{path}\" is not an absolute path without \":\", \",\" and \"..\""));
            }
            _ if is_taken() => problems.push(format!("--mount: {path} is given twice")),
            _ => mounts.push((volume.to_owned(), path.to_owned())),
        }
    }
    for (name, value) in settings {
        let file = SETTINGS.iter().find(|setting| setting.name == name).and_then(|setting| setting.file(value));
        let is_in = |(_, path): &(String, String)| Path::new(value).starts_with(path);
        if file.is_some() && !mounts.iter().any(is_in) {
            problems.push(format!(
                "--setting: {name}: {value} is not in any --mount; give the pod's volume that has it, --mount=VOLUME=PATH"
            ));
        }
    }
    mounts
}

/// A Kubernetes quantity.
fn quantity(text: &str) -> Result<String, String> {
    match memory::quantity(text) {
        Some(number) if number > 0.0 && number.is_finite() => Ok(text.to_owned()),
        _ => Err(format!("\"{text}\" is not a quantity; write for example 2, 500m or 1Gi")),
    }
}
