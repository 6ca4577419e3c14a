//! `croupier inject`: adds the sidecar to the pods of Kubernetes manifests.
//!
//! The text changes only where something is added. Comments, order, quotes and every other document come out byte for
//! byte as they went in. The additions are the same as those of the chart. Nothing is written before everything is
//! known to be correct.

mod edit;
pub(crate) mod memory;
mod pod;
mod shared;
mod sidecar;
mod written;
mod yaml;

use crate::{files, output};
use pod::Outcome;
use sidecar::Sidecar;
use std::path::PathBuf;
use std::process::ExitCode;
use yaml::Mistake;

/// The default name of the image. No image is published: it is built with the Dockerfile.
pub const DEFAULT_IMAGE: &str = "croupier";

/// The arguments of `croupier inject`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InjectArgs {
    /// The file of manifests. `None`: standard input.
    pub file: Option<PathBuf>,
    /// The name of the worker's container. `None`: the pod's only container.
    pub container: Option<String>,
    /// The image, with or without a tag or digest. `None`: [`DEFAULT_IMAGE`].
    pub image: Option<String>,
    /// The image's tag, if `image` has none. `None`: this program's version.
    pub tag: Option<String>,
    /// Port of `/metrics`. `None`: the chart's port.
    pub admin_port: Option<u16>,
    /// Listen on IPv6, for clusters that have only that.
    pub ipv6: bool,
    /// Replace a sidecar that was injected before and differs.
    pub replace: bool,
    /// Settings of the server, under the names of its flags.
    pub settings: Vec<(String, String)>,
    /// Volumes of the pod that the sidecar reads, and the paths at which it finds them.
    pub mounts: Vec<(String, String)>,
    /// Kubernetes quantities, such as `500m` and `1Gi`.
    pub cpu_request: Option<String>,
    #[allow(missing_docs)]
    pub cpu_limit: Option<String>,
    #[allow(missing_docs)]
    pub memory_request: Option<String>,
    #[allow(missing_docs)]
    pub memory_limit: Option<String>,
}

impl InjectArgs {
    /// Whether an image has a tag or a digest.
    pub(crate) fn is_complete(image: &str) -> bool {
        image.rsplit('/').next().unwrap_or_default().contains([':', '@'])
    }

    fn image(&self) -> String {
        let image = self.image.as_deref().unwrap_or(DEFAULT_IMAGE);
        match &self.tag {
            None if Self::is_complete(image) => image.to_owned(),
            tag => format!("{image}:{}", tag.as_deref().unwrap_or(env!("CARGO_PKG_VERSION"))),
        }
    }
}

/// Manifests with the sidecar added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Injected {
    /// The manifests.
    pub text: String,
    /// The outcome for each pod template, one per line.
    pub notes: Vec<String>,
}

/// The largest input, in bytes.
const LARGEST: u64 = 64 << 20;

/// Why nothing was injected.
#[derive(Debug, thiserror::Error)]
pub enum InjectError {
    /// A manifest cannot be read, or cannot be changed without harm.
    #[error("line {line}: {problem}")]
    Manifest {
        /// The number of the line, from 1.
        line: usize,
        /// What is wrong there, and what to do about it.
        problem: String,
    },
    /// No pod template is there to inject into.
    #[error("{0}")]
    Nothing(String),
    /// The input cannot be read, or is not text.
    #[error("{0}")]
    Unreadable(String),
}

impl From<Mistake> for InjectError {
    fn from(Mistake { line, problem }: Mistake) -> Self {
        Self::Manifest { line, problem }
    }
}

/// Adds the sidecar to every pod template in `text`.
///
/// # Errors
/// The first reason against it. If there is one, nothing is injected anywhere.
pub fn inject(text: &str, args: &InjectArgs) -> Result<Injected, InjectError> {
    let sidecar = Sidecar::new(args);
    let documents = yaml::parse(text)?;
    let (mut edits, mut meant, mut found) = (Vec::new(), Vec::new(), Found::default());
    for document in &documents {
        let mut editor = edit::Editor::new(text, document);
        for template in pod::templates(document)? {
            let outcome = template.inject(&mut editor, &sidecar, (args.container.as_deref(), args.replace));
            let named = |Mistake { line, problem }| Mistake { line, problem: format!("{}: {problem}", template.name) };
            found.add(&template.name, &outcome.map_err(named)?);
        }
        let (own, with_them) = editor.finish()?;
        edits.extend(own);
        meant.push(with_them);
    }
    if found.only_others {
        return Err(InjectError::Nothing(nothing(args, &found.notes)));
    }
    let changed = edit::apply(text, edits);
    if !edit::says(&changed, &meant) {
        let line = documents.first().map_or(1, |document| document.place.line);
        let problem = "its layout cannot be changed safely; write it as `kubectl ... -o yaml` does".to_owned();
        return Err(InjectError::Manifest { line, problem });
    }
    let warning = args.memory_limit.as_deref().and_then(|limit| memory::warning(&sidecar, limit));
    found.notes.extend(warning);
    Ok(Injected { text: changed, notes: found.notes })
}

/// The outcomes of the pod templates so far.
struct Found {
    notes: Vec<String>,
    /// Whether all templates so far were without the worker's container.
    only_others: bool,
}

impl Default for Found {
    fn default() -> Self {
        Self { notes: Vec::new(), only_others: true }
    }
}

impl Found {
    fn add(&mut self, name: &str, outcome: &Outcome) {
        self.notes.push(match outcome {
            Outcome::Injected(notes) => {
                notes.iter().fold(format!("{name}: injected"), |told, note| format!("{told}; {note}"))
            }
            Outcome::Replaced(version) => format!("{name}: replaced the sidecar injected by {version}"),
            Outcome::Left(reason) => format!("{name}: unchanged, {reason}"),
        });
        self.only_others &= matches!(outcome, Outcome::Left(reason) if *reason == pod::NO_SUCH_CONTAINER);
    }
}

fn nothing(args: &InjectArgs, notes: &[String]) -> String {
    match &args.container {
        Some(name) if !notes.is_empty() => format!("no pod template has a container {name}"),
        _ => "there is no pod template: no Deployment, StatefulSet, DaemonSet, ReplicaSet, ReplicationController, Job, CronJob or Pod"
            .to_owned(),
    }
}

/// The subcommand `inject`. Manifests go to standard output, and the outcomes to standard error. If there is a reason
/// against an injection, the exit code is 1 and nothing is output.
#[must_use]
pub fn main(args: &InjectArgs) -> ExitCode {
    match run(args) {
        Ok(injected) if output::said("croupier inject", &injected.text) => {
            injected.notes.iter().for_each(|note| output::complain(&format!("croupier inject: {}", visible(note))));
            ExitCode::SUCCESS
        }
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            let whence = args.file.as_ref().map_or_else(|| "standard input".into(), |path| path.display().to_string());
            output::complain(&format!("croupier inject: {}", visible(&format!("{whence}: {error}"))));
            ExitCode::FAILURE
        }
    }
}

/// Escapes control characters: names in manifests may contain anything, and this goes to a terminal.
fn visible(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { c.escape_default().to_string() } else { c.to_string() }).collect()
}

fn run(args: &InjectArgs) -> Result<Injected, InjectError> {
    let read = match &args.file {
        Some(path) => files::read(path, LARGEST),
        None => files::at_most(files::standard_input(), LARGEST),
    };
    let text = String::from_utf8(read.map_err(InjectError::Unreadable)?);
    inject(&text.map_err(|_| InjectError::Unreadable("is not UTF-8".to_owned()))?, args)
}

#[cfg(test)]
mod tests;
