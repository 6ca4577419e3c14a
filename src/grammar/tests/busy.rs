//! What holds while all threads of a server's grammars are busy.

use super::*;
use std::sync::{Barrier, mpsc};

/// Runs `work` while no thread works on a text.
pub(super) fn while_busy<T>(grammars: &Grammars, work: impl FnOnce() -> T) -> T {
    let pool = &grammars.tokens.get().expect("they are made").pool;
    let (held, hold) = mpsc::channel::<()>();
    let hold = Mutex::new(hold);
    let threads = pool.current_num_threads();
    let busy = Barrier::new(threads + 1);
    pool.in_place_scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|_| {
                busy.wait();
                let _ = lock(&hold).recv();
            });
        }
        busy.wait();
        let done = work();
        drop(held);
        done
    })
}

/// A server's grammars over "a" and "b", one of them, and texts of that.
fn over_two(regex: &str) -> (Grammars, impl Fn(&[u32]) -> GrammarText) {
    let vocabulary = Vocabulary::new(&[Some(b"a".to_vec()), Some(b"b".to_vec())], b"");
    let grammars = Grammars::new(Arc::new(vocabulary));
    let compiled = grammars.compile(&params(GrammarKind::Regex, regex), &room(), &CompileDeadline::default());
    let grammar = Grammar::new(compiled.expect("it is right"), &GrammarStart::default(), Vec::new());
    let grammar = Arc::new(grammar);
    (grammars, move |output: &[u32]| GrammarText::open(Arc::clone(&grammar), 2, output).expect("it matches"))
}

#[test]
fn a_copy_of_a_text_stands_where_the_text_does() {
    let (grammars, text) = over_two("aab");
    let mut text = text(&[0]);
    let copy = while_busy(&grammars, || {
        text.push(0);
        text.clone()
    });
    assert_eq!([&text, &copy].map(allowed), [[1], [1]]);
}

/// Its room is taken when it is opened, and by then no thread may have worked on it.
#[test]
fn a_text_is_counted_by_what_it_read_when_it_was_opened() {
    let (grammars, text) = over_two("[ab]*");
    let [short, long] = while_busy(&grammars, || [text(&[0]).bytes(), text(&[0; 1001]).bytes()]);
    assert!(long > short + 1000 * 96, "{short} {long}");
}
