//! `croupier detect`: reads texts, and writes a table or lines of JSON.

use super::texts::{TextError, Texts};
use super::{Detector, Evidence, Found};
use crate::files;
use crate::output;
use crate::params::watermark::Watermark;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// The arguments of `croupier detect`.
#[derive(Debug, Clone, PartialEq)]
pub struct DetectArgs {
    /// The file of texts. `None`: standard input.
    pub file: Option<PathBuf>,
    /// The mark to look for. It has been validated.
    pub mark: Watermark,
    /// Texts with a smaller p-value are reported as marked.
    pub alpha: f64,
    /// Write lines of JSON instead of a table.
    pub json: bool,
    /// Longest line that is read.
    pub max_line_bytes: usize,
}

/// The result for one text: a line of JSON, or a row of the table.
#[derive(serde::Serialize)]
struct TextLine<'a> {
    line: u64,
    tokens: usize,
    #[serde(flatten)]
    found: &'a Found,
    marked: bool,
}

/// With smaller tables, SynthID finds marks in unmarked texts more often than the p-value says (docs/watermarks.md).
const SAFE_TABLE_BITS: u32 = 256;

/// A warning if the p-values of this mark cannot be trusted.
fn doubt(mark: &Watermark) -> Option<String> {
    match mark {
        Watermark::Synthid(params) if params.sampling_table_size < SAFE_TABLE_BITS => Some(format!(
            "with a table of {} bits, similar n-grams give nearly the same evidence, so texts without a mark get small p-values \
             too often; mark texts with a table of at least {SAFE_TABLE_BITS}",
            params.sampling_table_size
        )),
        _ => None,
    }
}

/// The subcommand `detect`. The exit code is 0 if all texts were examined, marked or not, and 1 if something could not
/// be read.
#[must_use]
pub fn main(args: &DetectArgs) -> ExitCode {
    if let Some(doubt) = doubt(&args.mark) {
        output::complain(&format!("croupier detect: {doubt}"));
    }
    let from: Box<dyn BufRead> = match &args.file {
        None => Box::new(files::standard_input()),
        Some(path) => match File::open(path) {
            Ok(file) => Box::new(BufReader::new(file)),
            Err(error) => {
                output::complain(&format!("croupier detect: {}: {error}", path.display()));
                return ExitCode::FAILURE;
            }
        },
    };
    match run(args, from, &mut io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        // A reader that closes the pipe wants no more output. That is no failure.
        Err(TextError::Unwritten(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error @ TextError::Unwritten(_)) => {
            output::complain(&format!("croupier detect: {error}"));
            ExitCode::FAILURE
        }
        Err(error) => {
            let whence = args.file.as_ref().map_or_else(|| "standard input".into(), |path| path.display().to_string());
            output::complain(&format!("croupier detect: {whence}: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Examines all texts. Each result is written as soon as it is known.
///
/// # Errors
/// [`TextError`]. Earlier results have been written.
pub fn run(args: &DetectArgs, from: impl BufRead, to: &mut impl Write) -> Result<(), TextError> {
    let (detector, mut texts) = (Detector::new(&args.mark), Texts::new(from, args.max_line_bytes));
    let (mut looked_at, mut marked) = (0u64, 0u64);
    while let Some((line, text)) = texts.next_text()? {
        let found = detector.look(&text.text());
        let looked = TextLine { line, tokens: text.tokens.len(), marked: found.p_value < args.alpha, found: &found };
        looked_at += 1;
        marked += u64::from(looked.marked);
        write_line(args, to, looked_at == 1, &looked).map_err(TextError::Unwritten)?;
    }
    if !args.json {
        let texts = output::counted(looked_at, "text");
        let alpha = limit(args.alpha);
        writeln!(to, "{texts}, {marked} marked (p-value below {alpha})").map_err(TextError::Unwritten)?;
    }
    Ok(())
}

/// The largest p-value of a mark, without a row of zeros if it is small.
fn limit(alpha: f64) -> String {
    if alpha < 1e-4 { format!("{alpha:e}") } else { alpha.to_string() }
}

/// Writes what was found of a text, behind the table's head if it is the first.
fn write_line(args: &DetectArgs, to: &mut impl Write, is_first: bool, looked: &TextLine<'_>) -> io::Result<()> {
    if args.json {
        serde_json::to_writer(&mut *to, looked)?;
        return writeln!(to);
    }
    if is_first {
        writeln!(to, "{}", table_head(&looked.found.evidence))?;
    }
    writeln!(to, "{}", table_row(looked))
}

fn table_head(evidence: &Evidence) -> String {
    let own = match evidence {
        Evidence::Greens { .. } => format!("{:>8} {:>10}", "green", "expected"),
        Evidence::Layers { .. } => format!("{:>8} {:>10}", "mean g", "weighted"),
        Evidence::Sum { .. } => format!("{:>10}", "sum"),
    };
    format!("{:>6} {:>8} {:>8} {own} {:>8} {:>10}  mark", "line", "tokens", "scored", "z", "p-value")
}

fn table_row(text: &TextLine<'_>) -> String {
    let Found { scored, evidence, z, p_value } = text.found;
    let mut row = format!("{:>6} {:>8} {scored:>8}", text.line, text.tokens);
    let written = match evidence {
        Evidence::Greens { green, expected } => write!(row, " {green:>8} {expected:>10.1}"),
        Evidence::Layers { mean_g, weighted_mean_g } => write!(row, " {mean_g:>8.4} {weighted_mean_g:>10.4}"),
        Evidence::Sum { sum } => write!(row, " {sum:>10.1}"),
    };
    let written = written.and_then(|()| {
        let mark = if text.marked { "yes" } else { "no" };
        write!(row, " {z:>+8.2} {p_value:>10.2e}  {mark}")
    });
    debug_assert!(written.is_ok(), "a string takes all that is written");
    row
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::watermark::KgwParams;

    fn args(json: bool) -> DetectArgs {
        let mark = Watermark::Kgw(KgwParams::default());
        DetectArgs { file: None, mark, alpha: 1e-3, json, max_line_bytes: 99 }
    }

    fn told(json: bool, texts: &str) -> (String, Option<String>) {
        let mut to = Vec::new();
        let error = run(&args(json), texts.as_bytes(), &mut to).err().map(|e| e.to_string());
        (String::from_utf8(to).unwrap(), error)
    }

    #[test]
    fn a_table_and_json() {
        let (table, error) = told(false, "[1]\n[1, 2, 3]\n");
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!((lines.len(), error), (4, None));
        assert!(lines[0].contains("green") && lines[0].ends_with("p-value  mark"), "{table}");
        assert!(lines[1].ends_with("1.00e0  no"), "{table}");
        assert_eq!(lines[3], "2 texts, 0 marked (p-value below 0.001)");
        let (json, _) = told(true, "\n[1]");
        let expected =
            r#"{"line":2,"tokens":1,"scored":0,"green":0,"expected":0.0,"z":0.0,"p_value":1.0,"marked":false}"#;
        assert_eq!(json.trim_end(), expected);
    }

    #[test]
    fn small_limits_are_powers_of_ten() {
        assert_eq!([0.05, 1e-3, 1e-4].map(limit), ["0.05", "0.001", "0.0001"]);
        assert_eq!([1e-5, 1.5e-7, 1e-60].map(limit), ["1e-5", "1.5e-7", "1e-60"]);
    }

    #[test]
    fn nothing_found_is_zero_without_a_sign() {
        use crate::params::watermark::{GumbelParams, SynthidParams};
        for mark in [Watermark::Gumbel(GumbelParams::new(1)), Watermark::Synthid(SynthidParams::new(vec![1]))] {
            for json in [false, true] {
                let args = DetectArgs { file: None, mark: mark.clone(), alpha: 1e-3, json, max_line_bytes: 99 };
                let mut to = Vec::new();
                run(&args, "[]\n[1]\n".as_bytes(), &mut to).unwrap();
                let told = String::from_utf8(to).unwrap();
                assert!(told.contains("0.0") && !told.contains("-0"), "{told}");
            }
        }
    }

    #[test]
    fn a_small_table_is_doubted() {
        use crate::params::watermark::SynthidParams;
        let of = |bits| {
            let params = SynthidParams { sampling_table_size: bits, ..SynthidParams::new(vec![1]) };
            doubt(&Watermark::Synthid(params))
        };
        assert!(of(8).unwrap().starts_with("with a table of 8 bits"));
        assert_eq!((of(SAFE_TABLE_BITS), doubt(&Watermark::Kgw(KgwParams::default()))), (None, None));
    }

    #[test]
    fn what_was_found_before_a_mistake_is_told() {
        let (told, error) = told(true, "[1, 2]\nno");
        assert_eq!(told.lines().count(), 1);
        assert!(error.unwrap().starts_with("line 2: "));
    }

    /// The input is not at fault.
    #[test]
    fn what_cannot_be_written_is_told_as_that() {
        for (json, room) in [(false, 0), (true, 0), (false, 100)] {
            let error = run(&args(json), "[1]\n".as_bytes(), &mut &mut vec![0; room][..]).unwrap_err();
            assert!(matches!(error, TextError::Unwritten(_)), "{error:?}");
        }
    }
}
