//! What subcommands print. Nothing here panics where a standard stream is closed or its disk full, as `println!` does.

use std::io::{self, Write};

/// Writes `text` to standard output. Whoever reads may stop when it has seen enough, as `head` does: that is no mistake.
///
/// # Errors
/// It cannot be written for another reason.
pub(crate) fn say(text: &str) -> io::Result<()> {
    let mut to = io::stdout().lock();
    match to.write_all(text.as_bytes()).and_then(|()| to.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

/// Writes a line to standard error, where that can be written.
pub(crate) fn complain(line: &str) {
    let _ = io::stderr().lock().write_all(format!("{line}\n").as_bytes());
}

/// 1234567 as "1,234,567".
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
