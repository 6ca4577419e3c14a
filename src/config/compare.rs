//! The command line of `croupier compare`.

use super::explain::{dtype, path, tokens, vocab_size};
use super::flags::{Reader, option, switch};
use crate::compare::CompareArgs;
use crate::row_files::RowFile;
use clap::{Arg, ArgMatches};

pub(super) const COMPARE: &str = "compare";

const ABOUT: &str =
    "Compare rows as a worker sends them with those of a plain forward pass, and say what was done to them";
const EXAMPLES: &str = "\
SENT and PLAIN are files of rows: arrays that numpy.save wrote (float32 or float16; the last dimension is a row), bare binary \
numbers, or numbers as text (a row on each line, or a list in brackets for each). One of them may be -, standard input. Row i of \
both files is for the same position in the same text. For SENT, save in the worker what it is about to send; for PLAIN, run the \
model once over the whole text, without a cache. The text of a node of a tree is the path to it.

In the table, likeliest says in how many of these rows the likeliest token is that of the plain row. The total variation is the \
probability that a token drawn at temperature 1 differs. A row's noise is what remains of the difference after a softcap, a \
temperature and a shift are removed: a standard deviation, in logits of the plain row. Rounding to 16 bits causes a few hundredths.

  croupier compare sent.npy plain.npy
  croupier compare sent.npy plain.npy --text 5,7,7,2    # the tokens before the rows: tells which penalties
  croupier compare sent.bf16 plain.npy --sent-dtype bf16 --vocab-size 32000 --json

Exit code 0 when every row is as the model computed it, 1 when one is not, 2 when they cannot be compared or for a mistake in \
the arguments.";

/// The clap definition of `croupier compare`.
pub(super) fn command() -> clap::Command {
    let file = |name, help| Arg::new(name).value_name(help).required(true);
    clap::Command::new(COMPARE)
        .about(ABOUT)
        .after_help(EXAMPLES)
        .arg(file("sent", "SENT").help("Rows as the worker sends them"))
        .arg(file("plain", "PLAIN").help("Rows of a plain forward pass, at least as many"))
        .arg(option(
            "text",
            "ID,ID,...",
            "Tokens of the text before the first row, prompt included: tells penalties apart [default: none]",
        ))
        .arg(option("sent-dtype", "NAME", "Format of bare binary numbers in SENT: f32, f16 or bf16, little endian"))
        .arg(option("plain-dtype", "NAME", "Format of bare binary numbers in PLAIN"))
        .arg(option("vocab-size", "N", "Logits per row, where a file does not say [default: all its numbers]"))
        .arg(option("plain-vocab-size", "N", "The same for PLAIN [default: the value of --vocab-size]"))
        .arg(switch("json", "Print a JSON object that lists every row, instead of the table"))
}

/// Makes the arguments from what clap parsed.
///
/// # Errors
/// Every mistake, including those found before.
pub(super) fn args(matches: &ArgMatches, problems: Vec<String>) -> Result<CompareArgs, Vec<String>> {
    let mut reader = Reader::new(matches, problems);
    let of_sent = reader.read("vocab-size", None, vocab_size);
    let of_plain = reader.read("plain-vocab-size", of_sent, vocab_size);
    let args = CompareArgs {
        sent: RowFile {
            path: reader.read("sent", None, path),
            dtype: reader.read("sent-dtype", None, dtype),
            vocab_size: of_sent,
            flag_prefix: "sent-",
        },
        plain: RowFile {
            path: reader.read("plain", None, path),
            dtype: reader.read("plain-dtype", None, dtype),
            vocab_size: of_plain,
            flag_prefix: "plain-",
        },
        text: reader.read("text", Vec::new(), tokens),
        json: matches.get_flag("json"),
    };
    let is_input = |name: &str| matches.get_one::<String>(name).is_some_and(|path| path == "-");
    if is_input("sent") && is_input("plain") {
        reader.note("PLAIN: is standard input, as SENT is; name a file for one of them".to_owned());
    }
    reader.end(args)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::logits::Dtype;

    fn read(arguments: &[&str]) -> Result<CompareArgs, Vec<String>> {
        args(&command().try_get_matches_from([&[COMPARE], arguments].concat()).unwrap(), Vec::new())
    }

    #[test]
    fn both_files_have_their_own_format_and_one_width() {
        let flags = ["a", "b", "--sent-dtype=bf16", "--vocab-size", "7", "--text", "5, 7", "--json"];
        let file = |path: &str, dtype, width, flag_prefix| RowFile {
            path: Some(path.into()),
            dtype,
            vocab_size: Some(width),
            flag_prefix,
        };
        let (sent, plain) = (file("a", Some(Dtype::Bf16), 7, "sent-"), |width| file("b", None, width, "plain-"));
        let expected = |width| CompareArgs { sent: sent.clone(), plain: plain(width), text: vec![5, 7], json: true };
        assert_eq!(read(&flags).unwrap(), expected(7));
        assert_eq!(read(&[&flags[..], &["--plain-vocab-size=8"]].concat()).unwrap(), expected(8));
    }

    #[test]
    fn one_of_the_files_may_be_standard_input() {
        assert_eq!(read(&["-", "b"]).unwrap().sent.path, None);
        assert_eq!(read(&["a", "-"]).unwrap().plain.path, None);
        let both = read(&["-", "-"]).unwrap_err();
        assert_eq!(both, ["PLAIN: is standard input, as SENT is; name a file for one of them"]);
        // Clap tells of files that are not given.
        let none = command().ignore_errors(true).try_get_matches_from([COMPARE]).unwrap();
        assert!(args(&none, Vec::new()).is_ok());
    }

    #[test]
    fn every_mistake_is_told() {
        let found = read(&["a", "b", "--sent-dtype=f64", "--plain-dtype=x", "--vocab-size=0", "--text=a"]).unwrap_err();
        let starts = ["--vocab-size: ", "--sent-dtype: ", "--plain-dtype: ", "--text: \"a\" is not a token id"];
        assert_eq!(found.len(), starts.len(), "{found:?}");
        for (told, start) in found.iter().zip(starts) {
            assert!(told.starts_with(start), "{told}");
        }
    }
}
