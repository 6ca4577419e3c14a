//! The command line of `croupier top`.

use super::flags::{Reader, option_with, switch};
use super::values;
use crate::admin_client;
use crate::top::TopArgs;
use clap::ArgMatches;
use std::time::Duration;

pub(super) const TOP: &str = "top";

/// The clap definition of `croupier top`. The defaults in the help are those of [`TopArgs`].
pub(super) fn command() -> clap::Command {
    let d = TopArgs::default();
    let with = |name, value, help, default: String| option_with(name, value, help, &default);
    let url = format!("http://{}", d.authority);
    clap::Command::new(TOP)
        .about(
            "Show what a running server does: tokens, latency, load, bounds, drafts, errors; live, or once as a table",
        )
        .after_help("Exit codes: 1 no answer, 2 wrong flags or no terminal, 3 the answer is not Croupier's")
        .arg(with("admin", "URL", "The server's admin port", url))
        .arg(with("interval", "TIME", "Time between two readings of its metrics", values::show_duration(d.interval)))
        .arg(switch("once", "Read the metrics twice, an interval apart, print a table and exit"))
        .arg(switch("json", "With --once: print one JSON object instead of the table").requires("once"))
}

/// Makes the arguments from what clap parsed.
///
/// # Errors
/// Every mistake, including those found before.
pub(super) fn args(matches: &ArgMatches, problems: Vec<String>) -> Result<TopArgs, Vec<String>> {
    let d = TopArgs::default();
    let mut reader = Reader::new(matches, problems);
    let range = Duration::from_millis(100)..=Duration::from_secs(3600);
    let args = TopArgs {
        authority: reader.read("admin", d.authority, |t| admin_client::authority(t).map(str::to_owned)),
        interval: reader.read("interval", d.interval, |t| values::duration(t, range)),
        once: matches.get_flag("once"),
        json: matches.get_flag("json"),
    };
    reader.end(args)
}
