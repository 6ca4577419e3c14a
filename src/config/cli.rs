//! The command line.

use super::flags::{Reader, flag, option, option_with, switch};
use super::resolve::{CONFIG, Env, resolve, source_of_grammars};
use super::settings::SETTINGS;
use super::{
    Config, EXIT_CONFIG, LogFormat, access, bench, check, compare, detect, explain, inject, secrets, top, values,
};
use crate::bench::Address;
use crate::dial::Access;
use crate::{admin_client, output, telemetry};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgMatches};
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

const SERVE: &str = "serve";
/// A flag of `serve`.
const CHECK: &str = "check";
const HEALTHCHECK: &str = "healthcheck";
/// How long `healthcheck` waits for an answer by default.
const PATIENCE: Duration = Duration::from_secs(1);

/// The command to run.
#[derive(Debug)]
pub enum Command {
    /// Run the server.
    Serve(Box<Config>),
    /// Ask a running server about its health.
    Healthcheck(HealthcheckArgs),
    /// Measure a server.
    Bench(crate::bench::BenchArgs),
    /// Serve the bare gRPC stream that the server is compared with.
    BenchBaseline(crate::bench::BaselineArgs),
    /// Write one rank's columns to the server being measured.
    BenchWriter(crate::bench::WriterArgs),
    /// Show a running server's metrics.
    Top(crate::top::TopArgs),
    /// Add the sidecar to manifests.
    Inject(crate::inject::InjectArgs),
    /// Take a row of logits through the samplers and explain the result.
    Explain(Box<crate::explain::ExplainArgs>),
    /// Compare rows with those of a plain forward pass.
    Compare(Box<crate::compare::CompareArgs>),
    /// Look for watermarks in texts.
    Detect(Box<crate::watermark::command::DetectArgs>),
}

/// Whom `croupier healthcheck` asks, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// The gRPC health service at an address: `host:port` or `unix:PATH`.
    Grpc(String),
    /// `/readyz` of the admin port at `http://host:port`, or `/livez` for the service `liveness`.
    Admin(String),
}

/// Arguments of `croupier healthcheck`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthcheckArgs {
    /// The target to ask.
    pub target: Target,
    /// TLS and token for the connection.
    pub access: Access,
    /// The health service name to ask about. Empty: the whole server.
    pub service: String,
    /// How long to wait for an answer.
    pub timeout: Duration,
}

/// Why no command is run: help or a check was requested, or there are mistakes.
#[derive(Debug)]
pub struct Stop {
    /// The text to print.
    pub text: String,
    /// The exit code.
    pub code: u8,
    /// The mistakes as log lines, for a server whose logs are parsed by a program.
    lines: Vec<String>,
}

impl Stop {
    /// The text of what was requested. It is not a mistake.
    fn told(text: &str) -> Self {
        Self { text: text.to_owned(), code: 0, lines: Vec::new() }
    }

    fn mistakes(problems: &[String]) -> Self {
        let list: String = problems.iter().map(|p| format!("  {p}\n")).collect();
        let text = format!("croupier: {}, nothing was done:\n{list}", counted(problems));
        Self { text, code: EXIT_CONFIG, lines: Vec::new() }
    }

    /// The mistakes of a server, in the log format that it was to use.
    fn logged(problems: &[String], format: LogFormat) -> Self {
        let stop = Self::mistakes(problems);
        match format {
            LogFormat::Text => stop,
            LogFormat::Json => Self { lines: problems.to_vec(), ..stop },
        }
    }

    /// Prints the text and returns the exit code.
    #[must_use]
    pub fn report(&self) -> ExitCode {
        if self.code == 0 {
            let is_written = output::said("croupier", &self.text);
            return if is_written { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        }
        // The default log level is used, because the configured one may be among the mistakes.
        let logs = (!self.lines.is_empty()).then(|| telemetry::init(LogFormat::Json, "info"));
        let Some(Ok(_guard)) = logs else {
            output::complain(self.text.trim_end());
            return ExitCode::from(self.code);
        };
        self.lines.iter().for_each(|problem| tracing::error!("wrong configuration: {problem}"));
        tracing::error!("{}, nothing was done", counted(&self.lines));
        ExitCode::from(self.code)
    }
}

fn counted(problems: &[String]) -> String {
    output::counted(problems.len() as u64, "mistake")
}

/// The clap definition of the whole command line.
#[must_use]
pub fn command_line() -> clap::Command {
    let about = "A gRPC sampling sidecar for LLM inference";
    let sources = "Each setting is taken from its flag, else its environment variable, else the TOML file, else its \
                   default. `croupier` alone is `croupier serve`.";
    let config = option(
        CONFIG,
        "PATH",
        "TOML file with settings and the table [defaults] of sampling parameters [env: CROUPIER_CONFIG]",
    );
    let serve = clap::Command::new(SERVE).about("Run the server").after_help(sources).arg(config.clone());
    let checks = "Check the settings and the files they name, print the result and exit: 0 if all are valid, 2 with every mistake if not";
    let serve = serve.arg(switch(CHECK, checks));
    let serve = SETTINGS.iter().fold(serve, |command, s| {
        let arg = option(s.name, s.value, s.help);
        let help = format!("{} [default: {}] [env: {}]", s.help, s.default(), s.env());
        let is_switch = s.value == "BOOL";
        let arg = if is_switch { arg.num_args(0..=1).default_missing_value("true") } else { arg };
        command.arg(arg.help(help))
    });
    clap::Command::new("croupier")
        .about(about)
        .version(env!("CARGO_PKG_VERSION"))
        .propagate_version(true)
        .subcommand_required(true)
        .override_usage("croupier [COMMAND]")
        .after_help("Without a command, it runs `serve`. `croupier COMMAND --help` has the details.")
        .subcommand(serve)
        .subcommand(healthcheck_command(config.clone()))
        .subcommand(top::command())
        .subcommand(inject::command())
        .subcommand(explain::command(config))
        .subcommand(compare::command())
        .subcommand(detect::command())
        .subcommand(bench::command())
        .subcommand(bench::baseline_command())
        .subcommand(bench::writer_command())
}

fn healthcheck_command(config: Arg) -> clap::Command {
    clap::Command::new(HEALTHCHECK)
        .about("Ask a running server whether it is serving: exit 0 if it is, 1 if not, 2 for wrong flags")
        .after_help(
            "Without --addr and --admin, it asks the address where `croupier serve` would listen with the same environment and file. If \
             TCP speaks TLS there, it asks the Unix socket or the admin port; with --tls-ca, it asks TCP.",
        )
        .arg(config)
        .arg(option("addr", "ADDR", "gRPC address of the server: HOST:PORT or unix:PATH").conflicts_with("admin"))
        .arg(option("admin", "URL", "Ask the admin port instead, such as http://127.0.0.1:9464: /readyz, or /livez with --service=liveness"))
        .args(access::tls_flags())
        .arg(option("service", "NAME", "Health service name, such as liveness or readiness [default: the whole server]"))
        .arg(option_with("timeout", "TIME", "How long to wait for the answer", &values::show_duration(PATIENCE)))
}

/// Parses the arguments and the environment of this process.
///
/// # Errors
/// What to print instead of running a command.
pub fn parse_process() -> Result<Command, Stop> {
    parse(std::env::args_os(), &|name| std::env::var_os(name))
}

/// Parses arguments. The first one is the program's name.
///
/// # Errors
/// What to print instead of running a command.
pub fn parse(args: impl IntoIterator<Item = OsString>, env: Env<'_>) -> Result<Command, Stop> {
    let args = with_subcommand(args.into_iter().collect());
    let (matches, problems) = matches(args)?;
    let wrong = |problems: Vec<String>| Stop::mistakes(&problems);
    match matches.subcommand() {
        Some((HEALTHCHECK, sub)) => healthcheck(sub, env, problems).map(Command::Healthcheck),
        Some((bench::BENCH, sub)) => bench::args(sub, problems).map(Command::Bench).map_err(wrong),
        Some((top::TOP, sub)) => top::args(sub, problems).map(Command::Top).map_err(wrong),
        Some((inject::INJECT, sub)) => inject::args(sub, problems).map(Command::Inject).map_err(wrong),
        Some((explain::EXPLAIN, sub)) => {
            explain::args(sub, env, problems).map(Box::new).map(Command::Explain).map_err(wrong)
        }
        Some((compare::COMPARE, sub)) => {
            compare::args(sub, problems).map(Box::new).map(Command::Compare).map_err(wrong)
        }
        Some((detect::DETECT, sub)) => detect::args(sub, problems).map(Box::new).map(Command::Detect).map_err(wrong),
        Some((bench::BASELINE, sub)) => bench::baseline_args(sub, problems).map(Command::BenchBaseline).map_err(wrong),
        Some((bench::WRITER, sub)) => bench::writer_args(sub, problems).map(Command::BenchWriter).map_err(wrong),
        Some((_, sub)) => serve(sub, env, problems),
        None => Err(wrong(problems)),
    }
}

/// The configuration of a server, with everything read and checked that can be checked before it starts.
fn serve(sub: &ArgMatches, env: Env<'_>, problems: Vec<String>) -> Result<Command, Stop> {
    let flags = |name: &str| flag(sub, name);
    let (mut config, mut problems) = resolve(&flags, env, problems);
    secrets::check(&config, &mut problems);
    config.read_vocabulary(&mut problems);
    config.check_grammars(|| source_of_grammars(&flags, env), &mut problems);
    if !problems.is_empty() {
        return Err(Stop::logged(&problems, config.log_format));
    }
    if sub.get_flag(CHECK) {
        return Err(check::told(&config).map_or_else(|problem| Stop::mistakes(&[problem]), |text| Stop::told(&text)));
    }
    Ok(Command::Serve(Box::new(config)))
}

/// `croupier` and `croupier --flag` mean `croupier serve`, so that an image needs no command.
fn with_subcommand(mut args: Vec<OsString>) -> Vec<OsString> {
    const ABOUT_ITSELF: [&str; 4] = ["-h", "--help", "-V", "--version"];
    let first = args.get(1).and_then(|a| a.to_str());
    if first.is_none_or(|a| a.starts_with('-') && !ABOUT_ITSELF.contains(&a)) {
        args.insert(1.min(args.len()), SERVE.into());
    }
    args
}

/// Lets clap parse the arguments. clap stops at the first mistake. So that further mistakes are found too, an unknown
/// argument is noted and removed, and the rest is parsed again.
fn matches(mut args: Vec<OsString>) -> Result<(ArgMatches, Vec<String>), Stop> {
    let mut problems = Vec::new();
    loop {
        let error = match command_line().try_get_matches_from(&args) {
            Ok(matches) => return Ok((matches, problems)),
            Err(error) => error,
        };
        if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
            return Err(Stop::told(&error.render().to_string()));
        }
        problems.push(one_line(&error));
        if error.kind() != ErrorKind::UnknownArgument || !take_out(&error, &mut args) {
            return match command_line().ignore_errors(true).try_get_matches_from(&args) {
                Ok(matches) if matches.subcommand().is_some() => Ok((matches, problems)),
                _ => Err(Stop::mistakes(&problems)),
            };
        }
    }
}

/// clap's message without its usage lines.
fn one_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let about = text.lines().take_while(|l| !l.starts_with("Usage:") && !l.starts_with("For more"));
    let lines = about.map(str::trim).filter(|line| !line.is_empty());
    // clap puts a list of arguments on the lines after a colon.
    lines.collect::<Vec<_>>().join("; ").replace(":; ", ": ").trim_start_matches("error: ").to_owned()
}

/// Removes the argument that `error` is about from `args`, together with the value that follows it.
fn take_out(error: &clap::Error, args: &mut Vec<OsString>) -> bool {
    let Some(ContextValue::String(bad)) = error.get(ContextKind::InvalidArg) else { return false };
    let is_bad = |arg: &str| arg == bad || arg.strip_prefix(bad.as_str()).is_some_and(|rest| rest.starts_with('='));
    let Some(at) = args.iter().position(|arg| arg.to_str().is_some_and(is_bad)) else { return false };
    let value_follows =
        bad.starts_with('-') && args.get(at + 1).is_some_and(|next| !next.to_string_lossy().starts_with('-'));
    args.drain(at..=at + usize::from(value_follows && args[at] == bad.as_str()));
    true
}

fn healthcheck(sub: &ArgMatches, env: Env<'_>, problems: Vec<String>) -> Result<HealthcheckArgs, Stop> {
    let only_file = |name: &str| (name == CONFIG).then(|| flag(sub, CONFIG)).flatten();
    let (config, problems) = resolve(&only_file, env, problems);
    let mut reader = Reader::new(sub, problems);
    let range = Duration::from_millis(10)..=Duration::from_secs(600);
    let timeout = reader.read("timeout", PATIENCE, |t| values::duration(t, range));
    let access = access::read(&mut reader);
    let target = match (flag(sub, "addr"), flag(sub, "admin")) {
        (Some(addr), _) => {
            addr.parse().map(|addr: Address| Target::Grpc(addr.to_string())).map_err(|e| format!("--addr: {e}"))
        }
        (None, Some(url)) => {
            admin_client::authority(&url).map(|_| Target::Admin(url.clone())).map_err(|e| format!("--admin: {e}"))
        }
        (None, None) => own_address(&config, access.tls.is_some()),
    };
    let suits = |target: Target| {
        let checked = match &target {
            Target::Grpc(address) => access.suits(address),
            Target::Admin(url) => access.suits(&format!("http://{}", url.trim_start_matches("http://"))),
        };
        checked.map(|()| target)
    };
    let target = target.and_then(suits).unwrap_or_else(|problem| {
        reader.note(problem);
        Target::Grpc(String::new())
    });
    let service = flag(sub, "service").unwrap_or_default();
    reader.end(HealthcheckArgs { target, access, service, timeout }).map_err(|problems| Stop::mistakes(&problems))
}

/// Where a server with this configuration can be reached from its own host, by a client that speaks TLS or does not.
fn own_address(config: &Config, tls: bool) -> Result<Target, String> {
    let known = |a: &SocketAddr| a.port() != 0;
    let understood = config.listen.filter(known).filter(|_| tls == config.tls.cert.is_some());
    let tcp = understood.map(|a| Target::Grpc(reachable(a).to_string()));
    if tls {
        // The other targets do not speak TLS. A caller that asks for TLS must not get a healthy answer without it.
        return tcp.ok_or_else(|| {
            "--tls-ca is given, but with this environment and file the server does not speak TLS; give --addr"
                .to_owned()
        });
    }
    let uds = || config.uds.as_ref().map(|path| Target::Grpc(format!("unix:{}", path.display())));
    let admin = || config.admin.filter(known).map(|a| Target::Admin(format!("http://{}", reachable(a))));
    let nobody = match [config.listen, config.admin].into_iter().flatten().find(|a| !known(a)) {
        Some(address) => format!("{address} gets another port each time the server starts; give --addr"),
        None => "plain TCP, uds and admin are all off, so there is nothing to ask; give --addr, and --tls-ca for TLS"
            .to_owned(),
    };
    tcp.or_else(uds).or_else(admin).ok_or(nobody)
}

/// An unspecified address can be listened on, but not connected to. The loopback address is used instead.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}
