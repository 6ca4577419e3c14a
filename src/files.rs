//! Reads whole files, up to a limit: a file that is longer is an error and is not read further.

use crate::output::complain;
use std::fs::File;
use std::io::{self, IsTerminal, Read, StdinLock};
use std::path::Path;

/// The bytes of a file, which may have at most `most`.
///
/// # Errors
/// A message for people, to be put after the file's name.
pub fn read(path: &Path, most: u64) -> Result<Vec<u8>, String> {
    at_most(File::open(path).map_err(|error| cannot(&error))?, most)
}

/// The bytes of `from`, which may have at most `most`. So even a source without a length, such as a pipe, is not read
/// without end.
///
/// # Errors
/// As above.
pub fn at_most(from: impl Read, most: u64) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    from.take(most.saturating_add(1)).read_to_end(&mut bytes).map_err(|error| cannot(&error))?;
    if bytes.len() as u64 > most {
        Err(format!("has more than {most} bytes, the most that is allowed"))
    } else {
        Ok(bytes)
    }
}

/// Standard input. If it is a terminal, a line says that it is read: nothing else would show what the command waits for.
pub fn standard_input() -> StdinLock<'static> {
    let stdin = io::stdin();
    if stdin.is_terminal() {
        complain("reading from the terminal; end with Ctrl-D");
    }
    stdin.lock()
}

fn cannot(error: &io::Error) -> String {
    format!("cannot be read: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_longer_than_it_may_be_is_not_read_on() {
        assert_eq!(at_most(&b"four"[..], 4).as_deref(), Ok(&b"four"[..]));
        assert_eq!(at_most(&b"four"[..], 3), Err("has more than 3 bytes, the most that is allowed".to_owned()));
        assert!(at_most(std::io::repeat(0), 9).is_err());
        assert!(read(Path::new("/nowhere"), 9).expect_err("no file").starts_with("cannot be read: No such file"));
    }
}
