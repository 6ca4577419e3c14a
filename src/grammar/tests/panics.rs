//! What is logged where the compiler panics.

use super::*;
use std::io::{self, Write};

/// What is logged meanwhile.
fn logged(work: impl FnOnce()) -> String {
    struct Lines(Arc<Mutex<Vec<u8>>>);
    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            lock(&self.0).extend(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let lines = Arc::new(Mutex::new(Vec::new()));
    let own = Arc::clone(&lines);
    let log = tracing_subscriber::fmt().with_ansi(false).with_writer(move || Lines(Arc::clone(&own))).finish();
    tracing::subscriber::with_default(log, work);
    let bytes = lock(&lines).clone();
    String::from_utf8(bytes).expect("text")
}

/// The compiler cuts a long value in the middle of a character.
#[test]
fn a_panic_of_the_compiler_is_logged_without_the_grammar() {
    let vocabulary = Vocabulary::new(&[Some(b"a".to_vec())], b"");
    let grammars = Grammars::new(Arc::new(vocabulary));
    let asked = |letters: usize| {
        let schema = format!(r#"{{"minLength": "{}"}}"#, "é".repeat(letters));
        grammars.compile(&params(GrammarKind::JsonSchema, &schema), &room(), &CompileDeadline::default())
    };
    let log = logged(|| {
        for letters in [60, 70, 80] {
            assert!(
                matches!(asked(letters), Err(CompileError::Invalid(error)) if error.message.contains("failed on it"))
            );
        }
    });
    assert_eq!(log.lines().count(), 1, "{log}");
    assert!(log.contains("WARN") && log.contains("panicked") && log.contains("json_schema"), "{log}");
    assert!(log.contains("bytes=137") && !log.contains('é') && !log.contains("minLength"), "{log}");
}
