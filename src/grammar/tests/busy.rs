//! What holds while all threads of a server's grammars are busy.

use super::*;
use crate::grammar::propose::{PendingDrafts, Proposed, ToDraft};
use crate::grammar::queue::{Pace, SLOW, Why};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, mpsc};

/// Runs `work` while no thread works on a text.
pub(crate) fn while_busy<T>(grammars: &Grammars, work: impl FnOnce() -> T) -> T {
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

/// Keeps all threads from what they are given from now on, until the result is dropped. What they were given before they
/// do first.
pub(crate) fn hold_up(grammars: &Grammars) -> mpsc::Sender<()> {
    let pool = &grammars.tokens.get().expect("they are made").pool;
    let (held, hold) = mpsc::channel::<()>();
    let hold = Arc::new(Mutex::new(hold));
    for _ in 0..pool.current_num_threads() {
        let hold = Arc::clone(&hold);
        pool.spawn(move || _ = lock(&hold).recv());
    }
    held
}

/// A server's grammars over "a" and "b", one of them, and texts of that.
fn over_two(regex: &str) -> (Grammars, impl Fn(&[u32]) -> GrammarText) {
    let vocabulary = Vocabulary::new(&[Some(b"a".to_vec()), Some(b"b".to_vec())], b"");
    let grammars = Grammars::new(Arc::new(vocabulary));
    let compiled = grammars.compile(&params(GrammarKind::Regex, regex), &room(), &CompileDeadline::default());
    let grammar = Grammar::new(compiled.expect("it is right"), &GrammarStart::default(), Vec::new());
    let grammar = Arc::new(grammar);
    (grammars, move |output: &[u32]| {
        GrammarText::open(Arc::clone(&grammar), &Arc::default(), 2, output).expect("it matches")
    })
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

/// Whoever has nothing else to do may park until the last of the masks is there.
#[test]
fn a_thread_is_woken_by_the_last_mask() {
    let (grammars, text) = over_two("[ab]*");
    let texts = [text(&[0]), text(&[1])];
    let (parks, parked) = mpsc::channel();
    let long = Duration::from_secs(120);
    let waiting = while_busy(&grammars, || {
        texts.iter().for_each(|text| lock(&text.place().unread).push(0));
        let mut pending = Pending::begin(texts.iter().map(|text| Wanted::new(text, Ahead::default())).collect());
        let waiting = std::thread::spawn(move || {
            pending.wakes(std::thread::current());
            let started = Instant::now();
            while !pending.wait(Duration::ZERO) {
                let _ = parks.send(());
                std::thread::park_timeout(long);
            }
            (started.elapsed(), pending.masks())
        });
        parked.recv().expect("it waits");
        waiting
    });
    let (took, masks) = waiting.join().expect("no panic");
    assert!(took < long, "nobody woke the thread");
    assert!(masks.len() == 2 && masks.iter().all(Result::is_ok));
}

/// What was asked is not computed for nobody.
#[test]
fn masks_that_nobody_waits_for_any_more_are_not_begun() {
    let (grammars, text) = over_two("[ab]*");
    let text = text(&[0]);
    while_busy(&grammars, || {
        lock(&text.place().unread).push(0);
        let mut pending = Pending::begin(vec![Wanted::new(&text, Ahead::default())]);
        assert!(!pending.wait(Duration::from_millis(1)));
        assert!(text.place().somebody_waits(), "and looking ahead would end for it");
        drop(pending);
    });
    // What was asked first runs first.
    let pool = &grammars.tokens.get().expect("they are made").pool;
    (0..pool.current_num_threads() * 4).for_each(|_| pool.install(|| ()));
    assert_eq!(lock(&text.place().unread).len(), 1, "nobody has read it");
    assert!(!text.place().somebody_waits(), "looking ahead goes on");
}

/// Whoever does other things meanwhile may look only once the time is over.
#[test]
fn what_is_there_is_taken_however_late_one_looks() {
    let (grammars, text) = over_two("aab");
    let texts = [text(&[0]), text(&[0])];
    let most = Duration::from_millis(30);
    let mut pending = while_busy(&grammars, || {
        let asked = texts.iter().map(|text| ToDraft { text, own: vec![1], most: 4 }).collect();
        PendingDrafts::within(asked, most)
    });
    // The threads are busy only once they have done what they were given before.
    while_busy(&grammars, || ());
    std::thread::sleep(2 * most);
    assert!(pending.wait(Duration::ZERO));
    let forced = Proposed { tokens: vec![0, 1], is_forced: true };
    assert_eq!(pending.drafts(), [forced.clone(), forced]);
}

/// However much is asked about a text, one thread at a time works on it, and the others on other texts.
#[test]
fn a_slow_text_keeps_one_thread() {
    let (grammars, text) = over_two("[ab]*");
    let (slow, other) = (text(&[0]), text(&[0]));
    let threads = grammars.tokens.get().expect("they are made").pool.current_num_threads();
    let (held, hold) = mpsc::channel::<()>();
    slow.place().spawn(Why::Asked, move || _ = hold.recv());
    lock(&slow.place().unread).push(0);
    let wanted = (0..2 * threads).map(|_| Wanted::new(&slow, Ahead::default())).collect();
    let mut pending = Pending::begin(wanted);
    if threads > 1 {
        lock(&other.place().unread).push(0);
        assert_eq!(waited(&other), Ok(vec![Some(vec![0, 1])]));
    }
    assert!(!pending.wait(Duration::from_millis(50)), "it has to wait for its turn");
    assert!(slow.place().somebody_waits());
    drop(held);
    assert!(pending.masks().iter().all(Result::is_ok));
}

/// A stream waits for one piece of another's work, and not for all of it.
#[test]
fn a_stream_with_many_slow_texts_does_not_hold_up_another() {
    let (grammars, text) = over_two("[ab]*");
    let (slow, other) = (Arc::new(Flow::default()), text(&[0]));
    let (tokens, pace, done) =
        (grammars.tokens.get().expect("they are made"), Arc::new(Pace::default()), Arc::new(AtomicUsize::new(0)));
    let works = 100 * tokens.pool.current_num_threads();
    for _ in 0..works {
        let done = Arc::clone(&done);
        let work = move || {
            std::thread::sleep(Duration::from_millis(3));
            done.fetch_add(1, Ordering::Relaxed);
        };
        tokens.give(&slow, &pace, Why::Asked, Box::new(work));
    }
    lock(&other.place().unread).push(0);
    assert_eq!(waited(&other), Ok(vec![Some(vec![0, 1])]));
    let done = done.load(Ordering::Relaxed);
    assert!(done < works / 2, "{done} of {works} were done before");
}

/// What waits because it is slow is done in the end, whoever else asks, and also behind a panic.
#[test]
fn slow_texts_have_their_turns_in_the_end() {
    let (grammars, text) = over_two("[ab]*");
    let (flow, slow, other) = (Arc::new(Flow::default()), Arc::new(Pace::default()), text(&[0]));
    let tokens = grammars.tokens.get().expect("they are made");
    slow.note(2 * SLOW, &flow);
    let (sender, done) = mpsc::channel();
    for at in 0..20 {
        let sender = sender.clone();
        let work = move || {
            std::thread::sleep(Duration::from_millis(1));
            assert!(at % 2 == 0, "a panic on purpose");
            let _ = sender.send(());
        };
        tokens.give(&flow, &slow, Why::Asked, Box::new(work));
        lock(&other.place().unread).push(0);
        assert_eq!(waited(&other), Ok(vec![Some(vec![0, 1])]));
    }
    drop(sender);
    assert_eq!(done.iter().count(), 10);
}
