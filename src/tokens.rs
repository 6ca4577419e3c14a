//! Bearer tokens (RFC 6750) that let a client in. The file has one token on each line. Blank lines and lines that begin
//! with `#` are ignored.

use crate::reload::File;
use ring::digest::{self, SHA256, SHA256_OUTPUT_LEN};
use subtle::{Choice, ConstantTimeEq};

/// Fewest characters of a token. Shorter tokens can be guessed.
const SHORTEST: usize = 16;
/// Most characters of a token. Longer tokens do not fit into the headers that a call may have.
const LONGEST: usize = 4096;
/// Most tokens, because each is compared with each token that arrives.
const MAX_TOKENS: usize = 1024;

/// The tokens in a file, with their line numbers.
pub fn lines(bytes: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let lines = (1..).zip(bytes.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii));
    lines.filter(|(_, line)| !line.is_empty() && !line.starts_with(b"#"))
}

/// The valid tokens.
pub struct Tokens {
    /// Digests are compared instead of tokens: they all have the same length, and hold nothing worth stealing.
    digests: Vec<[u8; SHA256_OUTPUT_LEN]>,
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokens").field("count", &self.digests.len()).finish_non_exhaustive()
    }
}

impl Tokens {
    /// Reads the tokens of some files.
    ///
    /// # Errors
    /// Every mistake, by line, without the line's content.
    pub fn make(files: &[File]) -> Result<Self, Vec<String>> {
        let (mut digests, mut problems) = (Vec::new(), Vec::new());
        for file in files {
            let (path, before) = (file.path.display(), (digests.len(), problems.len()));
            for (number, token) in lines(&file.bytes) {
                match mistake(token) {
                    Some(mistake) => problems.push(format!("{path}: line {number}: {mistake}")),
                    None => digests.push(digest(token)),
                }
            }
            if before == (digests.len(), problems.len()) {
                problems.push(format!("{path}: has no token, so nobody could connect"));
            }
            if digests.len() > MAX_TOKENS {
                problems.push(format!("{path}: has {} tokens, at most {MAX_TOKENS} are allowed", digests.len()));
            }
        }
        if problems.is_empty() { Ok(Self { digests }) } else { Err(problems) }
    }

    /// Whether `token` is one of the tokens. The time this takes depends on their number and on the length of `token`,
    /// but not on which token matches or how far one matches.
    #[must_use]
    pub fn contains(&self, token: &[u8]) -> bool {
        let digest = digest(token);
        self.digests.iter().fold(Choice::from(0), |found, known| found | known.ct_eq(&digest)).into()
    }

    /// How many tokens there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.digests.len()
    }
}

fn mistake(token: &[u8]) -> Option<String> {
    let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(byte);
    if token.len() < SHORTEST {
        Some(format!("a token must have at least {SHORTEST} characters; make one with: openssl rand -hex 32"))
    } else if token.len() > LONGEST {
        Some(format!("a token must have at most {LONGEST} characters"))
    } else if !token.iter().all(allowed) {
        Some("a token may have only letters, digits and -._~+/=".to_owned())
    } else {
        None
    }
}

fn digest(token: &[u8]) -> [u8; SHA256_OUTPUT_LEN] {
    let mut bytes = [0; SHA256_OUTPUT_LEN];
    bytes.copy_from_slice(digest::digest(&SHA256, token).as_ref());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make(text: &str) -> Result<Tokens, Vec<String>> {
        Tokens::make(&[File { path: "tokens".into(), bytes: text.as_bytes().to_vec() }])
    }

    #[test]
    fn tokens_are_found_whole_and_no_other_way() {
        let tokens = make("# workers\n\n  first-token-of-all \r\nsecond+token/of=them\n").expect("two");
        assert_eq!(tokens.count(), 2);
        for known in ["first-token-of-all", "second+token/of=them"] {
            assert!(tokens.contains(known.as_bytes()), "{known}");
        }
        for other in ["", "first-token-of-al", "first-token-of-all ", "# workers", "FIRST-TOKEN-OF-ALL"] {
            assert!(!tokens.contains(other.as_bytes()), "{other:?}");
        }
    }

    #[test]
    fn every_mistake_is_told_without_the_token() {
        let problems = make(&format!("short\ntoken with a space in it\n{}\n", "x".repeat(5000))).expect_err("three");
        for (problem, part) in problems.iter().zip(["line 1: a token must have at least 16", "line 2: ", "line 3: "]) {
            assert!(problem.contains(part), "{problem}");
        }
        assert_eq!(problems.len(), 3);
        assert!(!problems.concat().contains("short"));
        assert!(make("# nobody\n").expect_err("none")[0].contains("has no token"));
        let many: String = (0..=MAX_TOKENS).map(|i| format!("token-number-{i:08}\n")).collect();
        assert!(make(&many).expect_err("too many")[0].contains("at most 1024"));
    }

    #[test]
    fn tokens_are_not_shown() {
        assert_eq!(format!("{:?}", make("first-token-of-all").expect("one")), "Tokens { count: 1, .. }");
    }
}
