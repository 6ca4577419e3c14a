//! Combines the four sources into one checked configuration.

use super::settings::{SETTINGS, Setting, env_name};
use super::{Config, file, given, presets};
use crate::dial::LONGEST_SOCKET_PATH;
use crate::grammar::{CompileDeadline, CompileError, Grammars};
use crate::params::SamplingParams;
use crate::permits::Counter;
use crate::vocabulary::Vocabulary;
use metrics::Gauge;
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

/// The flag that names the file.
pub(super) const CONFIG: &str = "config";
/// A per-stream limit. Unless it is set itself, it follows the server-wide limit down.
const PER_STREAM: &str = "max-sequences-per-stream";

/// The switch that requires a vocabulary.
const GRAMMARS: &str = "grammars";

/// Looks up an environment variable.
pub(super) type Env<'a> = &'a dyn Fn(&str) -> Option<OsString>;
/// Looks up a flag by its name.
pub(super) type Flags<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The configuration from flags, environment and file, and every mistake in these. It does not look into the files of
/// certificates and tokens: a running server keeps the ones it has when new ones are wrong, so commands that only ask
/// for the server's state must not fail because of them.
pub(super) fn resolve(flags: Flags<'_>, env: Env<'_>, mut problems: Vec<String>) -> (Config, Vec<String>) {
    let path = config_file(flags, env).unwrap_or_else(|problem| {
        problems.push(problem);
        None
    });
    let file = path.as_deref().map(|p| file::read(Path::new(p), &mut problems)).unwrap_or_default();
    let mut config = Config::default();
    let mut unread = Vec::new();
    let mut has_per_stream = false;
    for setting in SETTINGS {
        let found = flags(setting.name)
            .map(|text| (format!("--{}", setting.name), Ok(text)))
            .or_else(|| variable(env, &setting.env()).map(|text| (setting.env(), text)))
            .or_else(|| file.values.get(&setting.key()).map(|text| (in_file(&path, setting), text.clone())));
        let Some((origin, text)) = found else { continue };
        has_per_stream |= setting.name == PER_STREAM;
        if let Err(message) = text.and_then(|text| (setting.set)(&mut config, &text)) {
            problems.push(format!("{origin}: {message}"));
            unread.push(setting.name);
        }
    }
    if !has_per_stream {
        let limits = &mut config.limits;
        limits.max_sequences_per_stream = limits.max_sequences_per_stream.min(limits.max_sequences);
    }
    let defaults = path.iter().map(|path| format!("{path}: ")).chain([file::DEFAULTS.to_owned()]).collect::<String>();
    config.defaults = given::read(&defaults, &file.defaults, &config.limits, &mut problems).params;
    config.defaults_written = given::written(&file.defaults);
    let told = problems.len();
    config.presets = presets::read(config.presets_file.as_deref(), &config.limits, &mut problems);
    problems[told..].iter_mut().for_each(|problem| problem.insert_str(0, "--presets: "));
    cross_check(&config, &unread, &mut problems);
    (config, problems)
}

/// Where the grammars setting comes from, in a configuration that has it.
pub(super) fn source_of_grammars(flags: Flags<'_>, env: Env<'_>) -> String {
    let (flag, name) = (format!("--{GRAMMARS}"), env_name(GRAMMARS));
    match config_file(flags, env) {
        _ if flags(GRAMMARS).is_some() => flag,
        _ if variable(env, &name).is_some() => name,
        Ok(Some(path)) => format!("{path}: {GRAMMARS}"),
        _ => flag,
    }
}

/// The file that the flag or the variable names, or what is wrong with its name.
fn config_file(flags: Flags<'_>, env: Env<'_>) -> Result<Option<String>, String> {
    match flags(CONFIG) {
        Some(path) if path.is_empty() => Err(format!("--{CONFIG}: is empty; name a file, or leave it out")),
        Some(path) => Ok(Some(path)),
        None => {
            let name = env_name(CONFIG);
            variable(env, &name).transpose().map_err(|problem| format!("{name}: {problem}"))
        }
    }
}

/// The value of an environment variable, or what is wrong with it. An empty variable counts as unset, because templates
/// often leave empty ones behind.
fn variable(env: Env<'_>, name: &str) -> Option<Result<String, String>> {
    let value = env(name).filter(|value| !value.is_empty())?;
    // This must be an error. If the variable counted as unset, a server that should ask for tokens could be left open.
    Some(value.into_string().map_err(|value| format!("{value:?} is not UTF-8; set it again, or unset it")))
}

impl Config {
    /// Reads the texts of tokens and adds every mistake to `problems`. Only a server does this, because it may take a
    /// while.
    pub(super) fn read_vocabulary(&mut self, problems: &mut Vec<String>) {
        let read = self.vocabulary_file.as_deref().map(Vocabulary::read).transpose();
        let read = read.map_err(|problem| problems.push(format!("--vocabulary: {problem}")));
        self.vocabulary = read.ok().flatten().map(Arc::new);
    }

    /// Compiles the grammars of defaults and presets, which takes a while, and adds every mistake to `problems`. Only a
    /// server does this: commands that ask for the server's state may not know its vocabulary.
    pub(super) fn check_grammars(&self, source: impl FnOnce() -> String, problems: &mut Vec<String>) {
        if self.grammars && self.vocabulary_file.is_none() {
            problems.push(format!("{}: needs the texts of the tokens; set vocabulary", source()));
        }
        let file = self.presets_file.as_deref().map_or("shipped".into(), Path::to_string_lossy);
        let presets = self.presets.iter().map(|preset| {
            let mut params = SamplingParams::default();
            preset.apply(&mut params);
            (format!("--presets: {file}: {}", preset.name), params)
        });
        let may_compile = self.grammars && self.vocabulary_file.is_some();
        let grammars = self.vocabulary.clone().filter(|_| may_compile).map(Grammars::new);
        let room = Counter::new(usize::MAX, Gauge::noop());
        for (place, params) in std::iter::once(("defaults".to_owned(), self.defaults.clone())).chain(presets) {
            let Some(grammar) = &params.history.grammar else { continue };
            let compiled =
                grammars.as_ref().map(|grammars| grammars.compile(grammar, &room, &CompileDeadline::default()));
            match compiled {
                Some(Err(CompileError::Invalid(field))) => problems.push(format!("{place}.grammar.{field}")),
                Some(Err(CompileError::Busy)) => {
                    problems.push(format!("{place}.grammar: could not be compiled in time; is there too little CPU?"));
                }
                // If grammars may be compiled but there are none, reading the vocabulary has reported why.
                None if !may_compile => {
                    problems.push(format!(
                        "{place}.grammar: needs a server that compiles grammars; set grammars and vocabulary"
                    ));
                }
                _ => {}
            }
        }
    }
}

fn in_file(path: &Option<String>, setting: &Setting) -> String {
    format!("{}: {}", path.as_deref().unwrap_or_default(), setting.key())
}

/// Environment variables that look like misspelt settings, each with the setting that it resembles. They are not
/// mistakes, because Kubernetes makes variables such as `CROUPIER_PORT_50051_TCP` for a service of this name.
pub fn unknown_variables(names: impl Iterator<Item = String>) -> Vec<(String, String)> {
    let known: Vec<String> = SETTINGS.iter().map(Setting::env).chain([env_name(CONFIG)]).collect();
    let prefix = env_name("");
    let ours = names.filter(|name| name.starts_with(&prefix) && !known.contains(name));
    let alike = ours.filter_map(|name| {
        let rests = known.iter().filter_map(|k| k.strip_prefix(&prefix));
        let near = file::nearest(&name[prefix.len()..], rests).map(|rest| format!("{prefix}{rest}"))?;
        Some((name, near))
    });
    alike.collect()
}

/// A rule about several settings together: whether it is broken, and the message.
type Together = (bool, &'static str);

/// Checks what no setting can check alone. `unread` are the settings that have a mistake of their own.
fn cross_check(config: &Config, unread: &[&str], problems: &mut Vec<String>) {
    let wrong = addresses(config, unread).into_iter().chain(bounds(config)).chain(credentials(config));
    problems.extend(wrong.filter(|(is, _)| *is).map(|(_, message)| message.to_owned()));
}

fn addresses(config: &Config, unread: &[&str]) -> [Together; 4] {
    let is_closed = config.listen.is_none() && config.uds.is_none();
    [
        (
            is_closed && !unread.iter().any(|name| ["listen", "uds"].contains(name)),
            "listen and uds are both off, so nobody could connect; set one of them",
        ),
        (
            config.listen.is_some_and(|a| a.port() != 0 && config.admin == Some(a)),
            "listen and admin are the same address; give them different ports",
        ),
        (
            config.region_socket().is_some_and(|path| path.as_os_str().len() > LONGEST_SOCKET_PATH),
            "the path of uds is too long to append .region to it; shorten it, or set region-socket",
        ),
        (
            config.uds.is_some() && config.region_socket() == config.uds,
            "uds and region-socket are the same path; give them different ones",
        ),
    ]
}

/// The rules about sizes and counts are also in the chart, in helm/croupier/files/relations.yaml.
fn bounds(config: &Config) -> [Together; 6] {
    let limits = &config.limits;
    [
        (
            config.http2.connection_window < config.http2.stream_window,
            "http2-connection-window is below http2-stream-window; raise it",
        ),
        (
            limits.max_sequences_per_stream > limits.max_sequences,
            "max-sequences-per-stream is above max-sequences; lower it, or raise max-sequences",
        ),
        (
            limits.max_message_bytes > limits.max_bytes_in_flight,
            "max-message-bytes is above max-bytes-in-flight, so the largest message could never be accepted; lower it, or raise max-bytes-in-flight",
        ),
        (
            limits.max_message_bytes > limits.max_row_bytes_per_step,
            "max-message-bytes is above max-row-bytes-per-step, so the rows of the largest message could never be sampled; lower it, or raise max-row-bytes-per-step",
        ),
        (
            limits.max_bytes_per_region > limits.max_region_bytes,
            "max-bytes-per-region is above max-region-bytes, so the largest region could never be leased; lower it, or raise max-region-bytes",
        ),
        (config.lame_duck > config.drain_timeout, "lame-duck is above drain-timeout, which includes it; lower it"),
    ]
}

fn credentials(config: &Config) -> [Together; 5] {
    [
        (
            config.tls.cert.is_some() != config.tls.key.is_some(),
            "tls-cert and tls-key belong together; give both or neither",
        ),
        (config.tls.client_ca.is_some() && config.tls.cert.is_none(), "tls-client-ca needs tls-cert and tls-key"),
        (
            config.listen.is_none() && config.tls.cert.is_some(),
            "tls-cert applies only to listen, which is off; leave it out, since the Unix socket is never encrypted",
        ),
        (
            config.listen.is_none() && config.auth_token_file.is_some(),
            "auth-token-file applies only to listen, which is off; leave it out, since the Unix socket is guarded by its file permissions",
        ),
        (
            config.traces.ca.is_some() != config.traces.endpoint.as_ref().is_some_and(|url| url.starts_with("https:")),
            "otlp-ca and an https otlp-endpoint belong together; give both or neither",
        ),
    ]
}
