//! `croupier inject`: Kubernetes manifests with the sidecar added to their pods.
//!
//! The text is changed where something is added, and nowhere else: comments, order, quotes and every other document come
//! out byte for byte as they went in. What is added is what the chart would add. Nothing is written before everything is
//! known to be right.

mod edit;
pub(crate) mod memory;
mod pod;
mod shared;
mod sidecar;
mod written;
mod yaml;

use crate::output;
use pod::Outcome;
use sidecar::Sidecar;
use std::io::{self, Read};
use std::path::PathBuf;
use std::process::ExitCode;
use yaml::Mistake;

/// The image's name where none is given. None is published: it is built with the Dockerfile.
pub const DEFAULT_IMAGE: &str = "croupier";

/// What `croupier inject` is to do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InjectArgs {
    /// The manifests; `None`: standard input.
    pub file: Option<PathBuf>,
    /// The worker's name among the containers. `None`: the only one there is.
    pub container: Option<String>,
    /// The image, with its tag or digest, or without. `None`: [`DEFAULT_IMAGE`].
    pub image: Option<String>,
    /// Its tag, if the image has none. `None`: this program's version.
    pub tag: Option<String>,
    /// Port of `/metrics`. `None`: the chart's.
    pub admin_port: Option<u16>,
    /// It listens on IPv6, for clusters that have nothing else.
    pub ipv6: bool,
    /// A sidecar that was injected before and is another one gives way.
    pub replace: bool,
    /// Settings of the server, by the names of its flags.
    pub settings: Vec<(String, String)>,
    /// Volumes of the pod that the sidecar reads, and where it finds them.
    pub mounts: Vec<(String, String)>,
    /// Quantities of Kubernetes, such as `500m` and `1Gi`.
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

/// Manifests with the sidecar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Injected {
    /// The manifests.
    pub text: String,
    /// What came of each pod template, one a line.
    pub notes: Vec<String>,
}

/// Why nothing was injected.
#[derive(Debug, thiserror::Error)]
pub enum InjectError {
    /// A manifest cannot be read, or cannot be injected without harm.
    #[error("line {line}: {problem}")]
    Manifest {
        /// The line, from 1.
        line: usize,
        /// What is wrong there, and what to do.
        problem: String,
    },
    /// There is nothing to inject.
    #[error("{0}")]
    Nothing(String),
    /// A file cannot be read or written.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl From<Mistake> for InjectError {
    fn from(Mistake { line, problem }: Mistake) -> Self {
        Self::Manifest { line, problem }
    }
}

/// Adds the sidecar to every pod template in `text`.
///
/// # Errors
/// The first thing that stands against it; then nothing is to be used.
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

/// What came of the pod templates so far.
struct Found {
    notes: Vec<String>,
    /// There were none but those without the worker's container.
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

/// The subcommand `inject`: manifests to standard output, what came of them to standard error. Exit code 1 and no output
/// when something stands against it.
#[must_use]
pub fn main(args: &InjectArgs) -> ExitCode {
    match run(args) {
        Ok(notes) => {
            notes.iter().for_each(|note| output::complain(&format!("croupier inject: {}", visible(note))));
            ExitCode::SUCCESS
        }
        Err(error) => {
            let whence = args.file.as_ref().map_or_else(|| "standard input".into(), |path| path.display().to_string());
            output::complain(&format!("croupier inject: {}", visible(&format!("{whence}: {error}"))));
            ExitCode::FAILURE
        }
    }
}

/// Names in manifests may hold anything, and this goes to a terminal.
fn visible(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { c.escape_default().to_string() } else { c.to_string() }).collect()
}

fn run(args: &InjectArgs) -> Result<Vec<String>, InjectError> {
    let mut text = String::new();
    match &args.file {
        Some(path) => drop(std::fs::File::open(path)?.read_to_string(&mut text)?),
        None => drop(io::stdin().read_to_string(&mut text)?),
    }
    let injected = inject(&text, args)?;
    output::say(&injected.text)?;
    Ok(injected.notes)
}

#[cfg(test)]
mod tests;
