//! Reads what `/metrics` serves: Prometheus' text format 0.0.4, as
//! <https://prometheus.io/docs/instrumenting/exposition_formats/> defines it. The parser is strict: a page that is not
//! quite right was cut on its way, or is another program's.

use std::collections::BTreeMap;

/// The type of a family.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs)] // Prometheus' own names.
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
    Summary,
    #[default]
    Untyped,
}

impl Kind {
    const NAMES: [(&str, Kind); 5] = [
        ("counter", Kind::Counter),
        ("gauge", Kind::Gauge),
        ("histogram", Kind::Histogram),
        ("summary", Kind::Summary),
        ("untyped", Kind::Untyped),
    ];

    /// The type's name on the page.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize].0
    }

    /// What sample names may add to the family's name.
    fn suffixes(self) -> &'static [&'static str] {
        match self {
            Kind::Histogram => &["_bucket", "_sum", "_count"],
            Kind::Summary => &["_sum", "_count", ""],
            _ => &[""],
        }
    }
}

/// One series at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// The sample's name, with `_bucket`, `_sum` or `_count` if the family is a histogram.
    pub name: String,
    /// Names and values of the labels, in the page's order.
    pub labels: Vec<(String, String)>,
    /// The sample's value.
    pub value: f64,
}

impl Sample {
    /// The value of a label.
    #[must_use]
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(label, _)| label == name).map(|(_, value)| value.as_str())
    }
}

/// Samples that belong together.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Family {
    /// The type of its samples.
    pub kind: Kind,
    /// The help text.
    pub help: String,
    /// The samples, in the page's order.
    pub samples: Vec<Sample>,
}

/// Families by their names.
pub type Page = BTreeMap<String, Family>;

/// Where a page is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line} is {problem}")]
pub struct Mistake {
    /// The line, from 1.
    pub line: usize,
    /// What the line is instead of what it should be.
    pub problem: &'static str,
}

/// Reads a page.
///
/// # Errors
/// The first line that is wrong.
pub fn parse(text: &str) -> Result<Page, Mistake> {
    let mut reader = Reader::default();
    for (number, line) in text.lines().enumerate() {
        reader.line(line).map_err(|problem| Mistake { line: number + 1, problem })?;
    }
    if !text.is_empty() && !text.ends_with('\n') {
        return Err(Mistake { line: text.lines().count(), problem: "cut off: its end is missing" });
    }
    Ok(reader.page)
}

#[derive(Default)]
struct Reader {
    page: Page,
    /// The last family that a comment named. Its samples follow it.
    current: String,
}

impl Reader {
    fn line(&mut self, line: &str) -> Result<(), &'static str> {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("HELP"), Some(name), help) => {
                self.family(name)?.help = unescape(help.unwrap_or_default(), false)?;
                Ok(())
            }
            (Some("#"), Some("TYPE"), Some(name), Some(kind)) => {
                let known = Kind::NAMES.iter().find(|(known, _)| *known == kind).ok_or("of an unknown type")?;
                let family = self.family(name)?;
                if !family.samples.is_empty() {
                    return Err("a type after its samples");
                }
                family.kind = known.1;
                Ok(())
            }
            _ if line.trim().is_empty() || line.starts_with('#') => Ok(()),
            _ => self.sample(line),
        }
    }

    fn family(&mut self, name: &str) -> Result<&mut Family, &'static str> {
        if !is_name(name) {
            return Err("a comment that names no metric");
        }
        name.clone_into(&mut self.current);
        Ok(self.page.entry(name.to_owned()).or_default())
    }

    fn sample(&mut self, line: &str) -> Result<(), &'static str> {
        let end = line.find(['{', ' ', '\t']).ok_or("not a metric")?;
        let (name, rest) = line.split_at(end);
        if !is_name(name) {
            return Err("not a metric");
        }
        let (labels, rest) = labels(rest)?;
        let mut words = rest.split_ascii_whitespace();
        let value = words.next().and_then(|word| word.parse().ok()).ok_or("a metric without a value")?;
        let timestamp = words.next().map(str::parse::<i64>);
        if timestamp.is_some_and(|time| time.is_err()) || words.next().is_some() {
            return Err("a metric with more than a value and a timestamp");
        }
        let family = self.family_of(name).to_owned();
        let sample = Sample { name: name.to_owned(), labels, value };
        self.page.entry(family).or_default().samples.push(sample);
        Ok(())
    }

    /// The name of the family that a sample of this name belongs to.
    fn family_of<'a>(&'a self, name: &'a str) -> &'a str {
        let kind = self.page.get(&self.current).map(|family| family.kind).unwrap_or_default();
        let suffix = name.strip_prefix(self.current.as_str());
        if suffix.is_some_and(|suffix| kind.suffixes().contains(&suffix)) { &self.current } else { name }
    }
}

fn is_name(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    text.chars().all(inner) && text.starts_with(|c: char| !c.is_ascii_digit())
}

type Labels = Vec<(String, String)>;

/// The labels at the start of `text`, if there are any, and what follows them.
fn labels(text: &str) -> Result<(Labels, &str), &'static str> {
    let mut labels = Vec::new();
    let Some(mut rest) = text.strip_prefix('{') else { return Ok((labels, text)) };
    loop {
        rest = rest.trim_start();
        if let Some(behind) = rest.strip_prefix('}') {
            return Ok((labels, behind));
        }
        let (name, behind) = rest.split_once("=\"").ok_or("a metric whose labels are not closed")?;
        let end = closing_quote(behind).ok_or("a metric whose label value is not closed")?;
        if !is_name(name) {
            return Err("a metric with an unnamed label");
        }
        labels.push((name.to_owned(), unescape(&behind[..end], true)?));
        rest = behind[end + 1..].trim_start();
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
}

fn closing_quote(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.bytes().position(|c| {
        let closes = c == b'"' && !escaped;
        escaped = c == b'\\' && !escaped;
        closes
    })
}

/// Replaces the escapes `\\`, `\n` and, in labels, `\"`.
fn unescape(text: &str, quotes: bool) -> Result<String, &'static str> {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        plain.push(match c {
            '\\' => match chars.next() {
                Some('\\') => '\\',
                Some('n') => '\n',
                Some('"') if quotes => '"',
                _ => return Err("a text with an unknown escape"),
            },
            c => c,
        });
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_read_as_it_was_meant() {
        let page = parse(concat!(
            "# HELP a_total Of a \\\\ and\\nb.\n# TYPE a_total counter\n",
            "a_total{m=\"x\\\"},{\\\\\",n=\"\\n\"} 3\na_total 4.5e1 1700000000000\n\n",
            "# TYPE h histogram\nh_bucket{le=\"+Inf\"} 2\nh_sum +Inf\nh_count 2\nh_other NaN\n# a comment\nloose -1\n",
        ));
        let page = page.expect("a page");
        assert_eq!(page.keys().collect::<Vec<_>>(), ["a_total", "h", "h_other", "loose"]);
        let a = &page["a_total"];
        assert_eq!((a.kind.name(), a.help.as_str()), ("counter", "Of a \\ and\nb."));
        assert_eq!((a.samples[0].label("m"), a.samples[0].label("n")), (Some("x\"},{\\"), Some("\n")));
        assert_eq!((a.samples[0].value, a.samples[1].value), (3.0, 45.0));
        let names: Vec<&str> = page["h"].samples.iter().map(|sample| sample.name.as_str()).collect();
        assert_eq!(names, ["h_bucket", "h_sum", "h_count"]);
        assert_eq!(page["h"].samples[1].value, f64::INFINITY);
        assert!(page["h_other"].samples[0].value.is_nan());
        assert_eq!(page["loose"].kind, Kind::Untyped);
    }

    #[test]
    fn what_is_no_page_is_refused_with_its_line() {
        for (text, line, problem) in [
            ("<!DOCTYPE html>\n", 1, "not a metric"),
            ("a 1\nb\n", 2, "not a metric"),
            ("a x\n", 1, "a metric without a value"),
            ("a 1 2 3\n", 1, "a metric with more than a value and a timestamp"),
            ("a{b=\"c\" 1\n", 1, "a metric whose labels are not closed"),
            ("a{b=\"c 1\n", 1, "a metric whose label value is not closed"),
            ("a{1=\"c\"} 1\n", 1, "a metric with an unnamed label"),
            ("a{b=\"\\x\"} 1\n", 1, "a text with an unknown escape"),
            ("# TYPE a thing\n", 1, "of an unknown type"),
            ("# TYPE a gauge\na 1\n# TYPE a counter\n", 3, "a type after its samples"),
            ("a 1\nb 12", 2, "cut off: its end is missing"),
        ] {
            assert_eq!(parse(text), Err(Mistake { line, problem }), "{text}");
        }
        assert_eq!(parse(""), Ok(Page::new()));
    }

    #[test]
    fn what_this_program_writes_it_reads() {
        let info = crate::backend::BackendInfo { name: "cpu", device: "a \"b\" \\c\nd".to_owned(), parallelism: 1 };
        let metrics = super::super::Metrics::new(&crate::limits::Limits::default(), &info);
        metrics.stage(super::super::Stage::Total, std::time::Duration::from_micros(7));
        let page = parse(&metrics.render()).expect("a page");
        assert_eq!(page["croupier_build_info"].samples[0].label("device"), Some("a \"b\" \\c\nd"));
        assert_eq!(page["croupier_step_duration_seconds"].kind, Kind::Histogram);
        let total = page["croupier_step_duration_seconds"].samples.iter().filter(|s| s.label("stage") == Some("total"));
        assert_eq!(total.filter(|sample| sample.name.ends_with("_count")).map(|s| s.value).sum::<f64>(), 1.0);
    }
}
