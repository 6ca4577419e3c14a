//! The grammar of structured output, which a text has to match.

use super::check::{check_len, check_sequences, check_tokens};
use super::{FieldError, MAX_STOP_TOKEN_IDS};

/// Longest text of a grammar, in bytes. It also bounds how deep compilation recurses.
pub const MAX_GRAMMAR_BYTES: usize = 1 << 16;

/// Most optional or repeated parts of a grammar. A chain of such parts is searched at each place, which takes time that
/// grows with the square of their number and cannot be interrupted. 2,048 take 25 ms and 10 MB, 12,000 take a second
/// and 300 MB.
pub const MAX_GRAMMAR_REPEATS: usize = 2048;

/// Most `start_sequences`.
pub const MAX_START_SEQUENCES: usize = 8;

/// How a grammar is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GrammarKind {
    /// A JSON schema, as JSON.
    JsonSchema,
    /// A regular expression, in the syntax of Rust's regex crate.
    Regex,
    /// The Lark syntax of llguidance.
    Lark,
    /// llama.cpp's GBNF.
    Gbnf,
    /// A list of texts, one per line, of which one has to match.
    Choices,
}

impl GrammarKind {
    /// All kinds.
    pub const ALL: [Self; 5] = [Self::JsonSchema, Self::Regex, Self::Lark, Self::Gbnf, Self::Choices];

    /// Name of the kind's field on the wire and in files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::JsonSchema => "json_schema",
            Self::Regex => "regex",
            Self::Lark => "lark",
            Self::Gbnf => "gbnf",
            Self::Choices => "choices",
        }
    }
}

/// The grammar that a text has to match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrammarParams {
    /// How the grammar is written.
    pub kind: GrammarKind,
    /// The grammar; 1 ..= [`MAX_GRAMMAR_BYTES`] bytes.
    pub text: String,
    /// Where in the output the grammar begins.
    pub start: GrammarStart,
}

/// Where a grammar begins in the output. By default it begins with the first token.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GrammarStart {
    /// The grammar begins after the first occurrence of one of these tokens, or of one of the sequences.
    pub token_ids: Vec<u32>,
    /// Token sequences after which the grammar begins, too.
    pub sequences: Vec<Vec<u32>>,
    /// The grammar begins after this many tokens, whatever they are. Cannot be combined with the fields above.
    pub position: u32,
}

impl GrammarParams {
    /// Checks everything that can be checked without compiling the grammar.
    ///
    /// # Errors
    /// The field at fault, relative to the message.
    pub fn validate(&self, vocab_size: u32) -> Result<(), FieldError> {
        let (field, bytes) = (self.kind.name(), self.text.len());
        if bytes == 0 {
            return Err(FieldError::new(field, "is empty; give the grammar, or leave it out for no grammar"));
        }
        if bytes > MAX_GRAMMAR_BYTES {
            let message = format!("has {bytes} bytes, at most {MAX_GRAMMAR_BYTES} are allowed");
            return Err(FieldError::new(field, message));
        }
        if self.kind == GrammarKind::Choices
            && let Some(line) = self.choices().position(str::is_empty)
        {
            return Err(FieldError::new(field, format!("line {} is empty; each line is one choice", line + 1)));
        }
        let repeats = self.repeats();
        if repeats > MAX_GRAMMAR_REPEATS {
            let message = format!(
                "has {repeats} operators for optional or repeated parts (?, *, +, {{0,n}} and the like), at most \
                 {MAX_GRAMMAR_REPEATS} are allowed; write a repeated part once, as (...){{m,n}}"
            );
            return Err(FieldError::new(field, message));
        }
        self.start.validate(vocab_size)
    }

    /// The lines of [`GrammarKind::Choices`].
    pub fn choices(&self) -> impl Iterator<Item = &str> {
        let lines = self.text.strip_suffix('\n').unwrap_or(&self.text).split('\n');
        lines.map(|line| line.strip_suffix('\r').unwrap_or(line))
    }

    /// An upper bound of how many of the grammar's parts are optional or repeated.
    fn repeats(&self) -> usize {
        let brackets = match self.kind {
            GrammarKind::Lark => "?*+[",
            GrammarKind::Choices => return 0,
            _ => "?*+",
        };
        let signs = self.text.bytes().filter(|byte| brackets.as_bytes().contains(byte)).count();
        let empty = ["{0,", "{,", "|)", "(|", "||"].map(|sign| self.text.matches(sign).count());
        signs + empty.into_iter().sum::<usize>()
    }

    /// Bytes that the grammar takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.text.capacity() + self.start.bytes()
    }
}

impl GrammarStart {
    /// # Errors
    /// The field at fault, relative to the message of the grammar.
    fn validate(&self, vocab_size: u32) -> Result<(), FieldError> {
        check_len("start_token_ids", self.token_ids.len(), MAX_STOP_TOKEN_IDS)?;
        check_tokens("start_token_ids", &self.token_ids, vocab_size)?;
        check_sequences("start_sequences", &self.sequences, MAX_START_SEQUENCES, vocab_size)?;
        if self.position > 0
            && let Some((field, _)) = self.given().into_iter().find(|(_, is_given)| *is_given)
        {
            let message =
                format!("is {}, but {field} also says where the grammar begins; leave one of them out", self.position);
            return Err(FieldError::new("start_position", message));
        }
        Ok(())
    }

    /// Checks that no start is given. Used where there is no grammar, so that a start would have no meaning.
    ///
    /// # Errors
    /// The start field that is given, relative to the message of the grammar.
    pub fn check_none(&self) -> Result<(), FieldError> {
        let given = self.given().into_iter().chain([("start_position", self.position > 0)]);
        let Some((field, _)) = given.into_iter().find(|(_, is_given)| *is_given) else { return Ok(()) };
        let names = GrammarKind::ALL.map(GrammarKind::name).join(", ");
        Err(FieldError::new(
            field,
            format!(
                "says where a grammar begins, but none is given with it (one from defaults does not count); give one of {names}, \
                 or leave this out for none"
            ),
        ))
    }

    /// The fields that name tokens to begin after, and whether each is given.
    fn given(&self) -> [(&'static str, bool); 2] {
        [("start_token_ids", !self.token_ids.is_empty()), ("start_sequences", !self.sequences.is_empty())]
    }

    /// The token sequences that the grammar begins after. Single tokens are sequences of one token.
    pub fn starts(&self) -> impl Iterator<Item = &[u32]> {
        let single = self.token_ids.iter().map(std::slice::from_ref);
        single.chain(self.sequences.iter().map(Vec::as_slice))
    }

    /// Bytes that it takes in addition to its own size.
    fn bytes(&self) -> usize {
        let sequences = self.sequences.iter().map(|tokens| size_of_val(tokens) + tokens.capacity() * size_of::<u32>());
        self.token_ids.capacity() * size_of::<u32>() + sequences.sum::<usize>()
    }
}
