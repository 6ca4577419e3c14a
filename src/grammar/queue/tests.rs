//! Whose turn it is, and which threads come.

use super::*;
use std::sync::mpsc;

/// Work that waits for so many threads, and what was done so far.
struct Bench {
    waiting: Waiting,
    threads: usize,
    /// Slow work that has begun and not ended.
    running: Vec<Why>,
    done: (mpsc::Sender<char>, mpsc::Receiver<char>),
    now: Instant,
}

impl Bench {
    fn new(threads: usize) -> Self {
        let (waiting, now) = (Waiting::new(threads), Instant::now());
        Self { waiting, threads, running: vec![], done: mpsc::channel(), now }
    }

    fn push(&mut self, flow: &Arc<Flow>, why: Why, is_slow: bool, names: &str) {
        let pace = Arc::new(Pace(AtomicU8::new(if is_slow { Pace::SLOW } else { Pace::QUICK })));
        self.push_paced(flow, why, &pace, names);
    }

    fn push_paced(&mut self, flow: &Arc<Flow>, why: Why, pace: &Arc<Pace>, names: &str) {
        for name in names.chars() {
            let sender = self.done.0.clone();
            let item = Item { pace: Arc::clone(pace), work: Box::new(move || _ = sender.send(name)) };
            self.waiting.push(flow, why, item, self.now);
            self.waiting.lacks(self.threads, self.now);
        }
    }

    /// Lets threads that come do what they find, and returns its names, in order. Quick work ends at once, slow work
    /// does not.
    fn come(&mut self) -> String {
        while self.waiting.coming > 0 {
            self.waiting.coming -= 1;
            let next = self.waiting.next(self.now);
            self.waiting.lacks(self.threads, self.now);
            let Some(Piece { work, is_slow, why }) = next else { continue };
            work();
            if is_slow {
                self.running.push(why);
            } else {
                self.waiting.end(is_slow, why);
                self.waiting.lacks(self.threads, self.now);
            }
        }
        self.done.1.try_iter().collect()
    }

    /// The same once a slow piece has ended.
    fn end_slow(&mut self) -> String {
        let why = self.running.remove(0);
        self.waiting.end(true, why);
        self.waiting.lacks(self.threads, self.now);
        self.come()
    }
}

fn flows() -> [Arc<Flow>; 3] {
    std::array::from_fn(|_| Arc::default())
}

#[test]
fn streams_take_turns() {
    let (mut bench, [many, one, two]) = (Bench::new(1), flows());
    bench.push(&many, Why::Asked, false, "abcdef");
    bench.push(&one, Why::Asked, false, "1");
    bench.push(&two, Why::Asked, false, "xy");
    assert_eq!(bench.come(), "a1xbycdef");
}

#[test]
fn what_is_asked_for_comes_first() {
    let (mut bench, [one, two, _]) = (Bench::new(1), flows());
    bench.push(&one, Why::Ahead, false, "xyz");
    bench.push(&one, Why::Asked, true, "a");
    bench.push(&two, Why::Asked, false, "b");
    assert_eq!(bench.come(), "abxyz");
}

/// A thread is left for others, and slow texts have their turns on the rest.
#[test]
fn slow_texts_do_not_take_all_threads() {
    let (mut bench, [slow, quick, _]) = (Bench::new(2), flows());
    bench.push(&slow, Why::Asked, true, "ABCD");
    bench.push(&slow, Why::Ahead, true, "X");
    bench.push(&quick, Why::Asked, false, "abc");
    assert_eq!(bench.come(), "Aabc");
    bench.push(&quick, Why::Asked, false, "de");
    assert_eq!((bench.come().as_str(), bench.end_slow().as_str(), bench.end_slow().as_str()), ("de", "B", "C"));
    // Nobody else asks any more.
    bench.now += SHARED;
    assert_eq!(bench.end_slow(), "DX");
}

/// A thread that comes for quick work may do slow work that others have left. Another one comes for the quick one then.
#[test]
fn nothing_is_left_lying() {
    let (mut bench, [slow, quick, _]) = (Bench::new(2), flows());
    bench.push(&slow, Why::Asked, true, "A");
    bench.push(&quick, Why::Asked, false, "a");
    assert_eq!(bench.come(), "Aa");
    bench.push(&slow, Why::Asked, true, "B");
    assert_eq!((bench.come().as_str(), bench.waiting.coming), ("", 0), "nobody comes in vain");
    bench.now += SHARED;
    bench.push(&slow, Why::Asked, false, "b");
    assert_eq!(bench.come(), "Bb");
    assert_eq!((bench.end_slow(), bench.end_slow()), (String::new(), String::new()));
    assert_eq!((bench.waiting.slow, bench.waiting.coming), (0, 0));
}

#[test]
fn one_stream_alone_has_all_threads() {
    let (mut bench, [slow, ..]) = (Bench::new(2), flows());
    bench.push(&slow, Why::Asked, true, "ABC");
    assert_eq!(bench.come(), "ABC");
}

#[test]
fn work_given_before_its_stream_was_known_to_be_slow_is_slow() {
    let (mut bench, [slow, quick, _]) = (Bench::new(2), flows());
    let paces = [(); 3].map(|()| Arc::new(Pace::default()));
    paces.iter().zip(["A", "B", "C"]).for_each(|(pace, name)| bench.push_paced(&slow, Why::Asked, pace, name));
    bench.push(&quick, Why::Asked, false, "a");
    paces[0].note(2 * SLOW, &slow);
    assert_eq!(bench.come(), "aA");
    assert_eq!(bench.end_slow(), "B");
}

#[test]
fn looking_ahead_ends_for_what_could_begin_then() {
    let (mut bench, [slow, quick, _]) = (Bench::new(2), flows());
    let has_asked = |bench: &Bench| bench.waiting.has_asked(bench.now);
    bench.push(&quick, Why::Ahead, false, "a");
    bench.push(&slow, Why::Ahead, true, "A");
    assert_eq!((bench.come().as_str(), has_asked(&bench)), ("aA", false));
    bench.push(&slow, Why::Asked, true, "B");
    assert_eq!((bench.come().as_str(), has_asked(&bench)), ("", true));
    assert_eq!(bench.end_slow(), "B");
    bench.push(&slow, Why::Asked, true, "C");
    assert!(!has_asked(&bench), "it waits for what was asked for");
    bench.push(&quick, Why::Asked, false, "b");
    assert!(has_asked(&bench));
}

#[test]
fn new_texts_of_a_slow_stream_count_as_slow_for_a_while() {
    let (flow, slow, long) = (Flow::default(), Pace::default(), SLOW + Duration::from_micros(1));
    assert!(!slow.is_slow(&flow) && !Pace::default().is_slow(&flow));
    slow.note(long, &flow);
    assert!(slow.is_slow(&flow) && Pace::default().is_slow(&flow));
    let quick = Pace::default();
    for _ in 0..QUICK_AGAIN {
        assert!(Pace::default().is_slow(&flow));
        quick.note(SLOW, &flow);
        assert!(!quick.is_slow(&flow), "it is known");
    }
    assert!(slow.is_slow(&flow) && !Pace::default().is_slow(&flow));
    slow.note(SLOW, &flow);
    assert!(!slow.is_slow(&flow) && !Pace::default().is_slow(&flow));
}
