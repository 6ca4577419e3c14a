//! The trace that a call or a step belongs to: the header `traceparent` of W3C Trace Context
//! (<https://www.w3.org/TR/trace-context/>, section 3.2).
//!
//! `tracestate` is not read: it matters only to services that pass a trace on, and this server calls nobody.

use std::str;

/// Longer values are invalid in any version: version 00 has 55 characters, and later versions may have more.
pub const LONGEST: usize = 512;
/// Version 00: `VV-` and 32, `-` and 16, `-` and 2 digits.
const LEN: usize = 55;
/// The version number that is never valid.
const NO_VERSION: u8 = 0xff;
/// The one flag whose meaning is fixed: the caller records this trace.
const SAMPLED: u8 = 1;

/// The parent of a new span, in another process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Context {
    /// The trace.
    pub trace_id: [u8; 16],
    /// The parent span.
    pub span_id: [u8; 8],
    /// Whether the parent is recorded.
    pub sampled: bool,
}

impl Context {
    /// Reads a `traceparent`. `None` means that it is invalid and must be treated as if it were absent.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        let known = str::from_utf8(text.get(..LEN)?).ok()?;
        let mut parts = known.split('-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let ([version], [flags]) = (bytes(version)?, bytes(flags)?);
        let fits = match (version, &text[LEN..]) {
            (NO_VERSION, _) => false,
            (_, []) => true,
            (version, more) => version > 0 && more[0] == b'-' && text.len() <= LONGEST,
        };
        let context = Self { trace_id: bytes(trace)?, span_id: bytes(span)?, sampled: flags & SAMPLED != 0 };
        let is_some = context.trace_id != [0; 16] && context.span_id != [0; 8];
        (fits && is_some && parts.next().is_none()).then_some(context)
    }

    /// Reads the one value of a header; `None` without a value. Two values are invalid.
    #[must_use]
    pub fn of_header<'a>(mut values: impl Iterator<Item = &'a [u8]>) -> Option<Option<Self>> {
        let first = values.next()?;
        Some(if values.next().is_none() { Self::parse(first) } else { None })
    }
}

/// Exactly `N` bytes in lower-case hexadecimal digits.
fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |c: u8| match c {
        b'0'..=b'9' => Some(c - b'0'),
        b'a'..=b'f' => Some(c - b'a' + 10),
        _ => None,
    };
    let text = text.as_bytes();
    let mut out = [0; N];
    if text.len() != 2 * N {
        return None;
    }
    for (byte, pair) in out.iter_mut().zip(text.chunks_exact(2)) {
        *byte = (digit(pair[0])? << 4) | digit(pair[1])?;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn parse(text: &str) -> Option<Context> {
        Context::parse(text.as_bytes())
    }

    #[test]
    fn the_examples_of_the_recommendation_are_read() {
        let read = parse(GOOD).expect("a context");
        assert_eq!(read.trace_id[..3], [0x0a, 0xf7, 0x65]);
        assert_eq!(read.span_id, [0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31]);
        assert!(read.sampled);
        for (flags, sampled) in [("00", false), ("03", true), ("fe", false), ("ff", true)] {
            let read = parse(&GOOD.replace("-01", &format!("-{flags}"))).expect("a context");
            assert_eq!(read.sampled, sampled, "{flags}");
        }
    }

    #[test]
    fn a_later_version_is_read_as_far_as_it_is_known() {
        let later = GOOD.replacen("00", "cc", 1);
        assert_eq!(parse(&later), parse(GOOD));
        assert_eq!(parse(&format!("{later}-what-comes-then")), parse(GOOD));
        assert_eq!(parse(&format!("{later}.")), None, "what is added stands behind a dash");
        assert_eq!(parse(&format!("{later}-{}", "x".repeat(LONGEST))), None, "no more than {LONGEST} characters");
    }

    #[test]
    fn what_is_not_valid_is_ignored() {
        let cut = &GOOD[..54];
        for wrong in [
            "",
            "00",
            cut,
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "0-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-010",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-B7AD6B7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0x",
            "00-0af7651916cd43dd8448eb211c80319cb-7ad6b7169203331-01",
            "00 0af7651916cd43dd8448eb211c80319c b7ad6b7169203331 01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "00-ä0f7651916cd43dd8448eb211c8031c-b7ad6b7169203331-01",
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn two_headers_are_none() {
        let of = |values: &[&str]| Context::of_header(values.iter().map(|value| value.as_bytes()));
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[GOOD]), Some(parse(GOOD)));
        assert_eq!(of(&[GOOD, GOOD]), Some(None));
        assert_eq!(of(&["x"]), Some(None));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let _ = Context::parse(&bytes);
        }

        #[test]
        fn every_context_is_read_back(trace in 1..=u128::MAX, span in 1..=u64::MAX, flags in any::<u8>()) {
            let text = format!("00-{trace:032x}-{span:016x}-{flags:02x}");
            let read = parse(&text).expect("a context");
            prop_assert_eq!((read.trace_id, read.span_id), (trace.to_be_bytes(), span.to_be_bytes()));
            prop_assert_eq!(read.sampled, flags & 1 == 1);
        }
    }
}
