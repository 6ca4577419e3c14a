//! Counts of a server's answers to spoiled messages: a test whose messages are all refused for one reason would prove little.

use croupier::proto::{OpenStatus, RowStatus};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Formatter};

#[derive(Debug, Default)]
pub struct Told {
    /// The vocabulary of the current stream.
    pub vocab: u32,
    pub calls: u32,
    /// Calls with a spoiled message, and those of them that still went on to their end.
    pub spoiled: u32,
    pub unharmed: u32,
    /// By reason and field, without the numbers in brackets.
    statuses: BTreeMap<(String, String), u32>,
    opens: BTreeMap<String, u32>,
    open_fields: BTreeMap<String, u32>,
    works: BTreeMap<String, u32>,
    sides: BTreeMap<String, u32>,
}

impl Told {
    pub fn vocabulary(&mut self, vocab: u32) {
        self.vocab = vocab;
    }

    pub fn status(&mut self, reason: &str, field: &str) {
        *self.statuses.entry((reason.to_owned(), plain(field))).or_default() += 1;
    }

    pub fn open(&mut self, status: OpenStatus, field: &str) {
        *self.opens.entry(status.as_str_name().replace("OPEN_STATUS_", "")).or_default() += 1;
        if !field.is_empty() {
            *self.open_fields.entry(plain(field)).or_default() += 1;
        }
    }

    pub fn work(&mut self, status: RowStatus) {
        *self.works.entry(status.as_str_name().replace("ROW_STATUS_", "")).or_default() += 1;
    }

    /// Counts an answer on the side socket.
    pub fn side(&mut self, what: &str) {
        *self.sides.entry(what.to_owned()).or_default() += 1;
    }

    /// Fails if so many calls reached too little to prove anything.
    pub fn hold(&self, calls: u32) {
        let reasons: BTreeSet<_> = self.statuses.keys().map(|(reason, _)| reason).collect();
        let named = |fields: &mut dyn Iterator<Item = &String>| fields.filter(|field| is_known(field)).count();
        let (in_calls, in_opens) =
            (named(&mut self.statuses.keys().map(|(_, field)| field)), named(&mut self.open_fields.keys()));
        let ok = |counts: &BTreeMap<String, u32>| counts.get("OK").copied().unwrap_or(0);
        assert!(self.spoiled * 2 >= calls && self.unharmed * 20 >= calls, "{self}");
        assert!(ok(&self.works) >= calls && ok(&self.opens) * 2 >= calls, "{self}");
        assert!(reasons.len() >= 6 && in_calls >= 40, "{self}");
        assert!(in_opens >= 30 && self.opens.len() >= 4, "{self}");
        assert!(self.works.len() >= 8 && self.sides.len() >= 7, "{self}");
    }
}

impl Display for Told {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { calls, spoiled, unharmed, statuses, opens, open_fields, works, sides, .. } = self;
        writeln!(f, "{calls} calls, {spoiled} of them with something spoiled, {unharmed} of those ended with OK")?;
        writeln!(f, "openings: {opens:?}\nworks: {works:?}\nside socket: {sides:?}")?;
        writeln!(f, "{} fields of openings named: {open_fields:?}", open_fields.len())?;
        writeln!(f, "{} reasons and fields of calls:", statuses.len())?;
        for ((reason, field), count) in statuses {
            writeln!(f, "  {count:5} {reason} {field}")?;
        }
        Ok(())
    }
}

/// A path without the indices of its lists.
fn plain(field: &str) -> String {
    let outside = field.split('[').map(|part| part.split_once(']').map_or(part, |(_, behind)| behind));
    outside.collect()
}

/// Whether a path ends with a name. Fields that no schema has are known only by their numbers.
fn is_known(field: &str) -> bool {
    field.ends_with(|last: char| !last.is_ascii_digit())
}
