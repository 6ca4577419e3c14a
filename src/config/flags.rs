//! What the subcommands share: defining flags, and reading them with all their mistakes.

use clap::{Arg, ArgAction, ArgMatches};

/// A flag with a value. A negative number counts as a value, not as another flag, so that a message can name the
/// allowed range.
pub(super) fn option(name: &'static str, value: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value).help(help).action(ArgAction::Set).allow_negative_numbers(true)
}

/// The same, with the default appended to the help.
pub(super) fn option_with(name: &'static str, value: &'static str, help: &'static str, default: &str) -> Arg {
    option(name, value, help).help(format!("{help} [default: {default}]"))
}

pub(super) fn switch(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).help(help).action(ArgAction::SetTrue)
}

pub(super) fn flag(matches: &ArgMatches, name: &str) -> Option<String> {
    matches.try_get_one::<String>(name).ok().flatten().cloned()
}

/// Reads flags and collects the mistakes.
pub(super) struct Reader<'a> {
    matches: &'a ArgMatches,
    problems: Vec<String>,
}

impl<'a> Reader<'a> {
    /// `problems` are the mistakes found before.
    pub(super) fn new(matches: &'a ArgMatches, problems: Vec<String>) -> Self {
        Self { matches, problems }
    }

    /// The flag's value, or `default` without it. A value that does not parse is recorded as a mistake.
    pub(super) fn read<T>(&mut self, name: &str, default: T, parse: impl FnOnce(&str) -> Result<T, String>) -> T {
        let Some(text) = flag(self.matches, name) else { return default };
        parse(&text).unwrap_or_else(|mistake| {
            self.problems.push(format!("--{name}: {mistake}"));
            default
        })
    }

    /// Records a mistake that is not about one flag alone.
    pub(super) fn note(&mut self, problem: String) {
        self.problems.push(problem);
    }

    /// The arguments that were read, or every mistake.
    pub(super) fn end<T>(self, args: T) -> Result<T, Vec<String>> {
        if self.problems.is_empty() { Ok(args) } else { Err(self.problems) }
    }
}
