//! The period in which a certificate is valid. It is read from the few bytes of DER that contain it (RFC 5280, section
//! 4.1), because rustls checks the period but does not expose it.

use std::time::{SystemTime, UNIX_EPOCH};

const INTEGER: u8 = 0x02;
const SEQUENCE: u8 = 0x30;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
/// The tag `[0] EXPLICIT` of the version.
const VERSION: u8 = 0xa0;

/// A period of validity, in seconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// The first valid second.
    pub starts: i64,
    /// The last valid second.
    pub ends: i64,
}

impl Validity {
    /// The period of a certificate: its `notBefore` and `notAfter`. `None`: the bytes are not a certificate.
    pub(super) fn of(certificate: &[u8]) -> Option<Self> {
        let (body, _) = expect(SEQUENCE, certificate)?;
        let (mut fields, _) = expect(SEQUENCE, body)?;
        if let Some((_, rest)) = expect(VERSION, fields) {
            fields = rest;
        }
        // Skip the serial number, the signature algorithm and the issuer.
        for tag in [INTEGER, SEQUENCE, SEQUENCE] {
            (_, fields) = expect(tag, fields)?;
        }
        let (validity, _) = expect(SEQUENCE, fields)?;
        let (of_start, starts, rest) = element(validity)?;
        let (of_end, ends, _) = element(rest)?;
        Some(Self { starts: seconds(of_start, starts)?, ends: seconds(of_end, ends)? })
    }

    /// The period in which both are valid.
    pub(super) fn and(self, other: Self) -> Self {
        Self { starts: self.starts.max(other.starts), ends: self.ends.min(other.ends) }
    }

    /// What clients would object to now, if anything.
    #[must_use]
    pub fn complaint(self) -> Option<String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
        self.complaint_at(i64::try_from(now).unwrap_or(i64::MAX))
    }

    fn complaint_at(self, now: i64) -> Option<String> {
        let Self { starts, ends } = self;
        if now > ends {
            Some(format!("expired {} seconds ago", now.saturating_sub(ends)))
        } else if now < starts {
            let wait = starts.saturating_sub(now);
            Some(format!("is not valid for another {wait} seconds; is the clock right?"))
        } else {
            None
        }
    }
}

/// The content of an element with this tag, and the bytes after it.
fn expect(tag: u8, bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (found, content, rest) = element(bytes)?;
    (found == tag).then_some((content, rest))
}

/// Tag and content of the first element, and the bytes after it.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        // The low bits say how many bytes of length follow. Four are enough for anything.
        0x81..=0x84 => {
            let (length, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (length.iter().fold(0, |sum, &byte| sum << 8 | usize::from(byte)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

/// Parses `YYMMDDhhmmssZ`, or the same with a year of four digits.
fn seconds(tag: u8, text: &[u8]) -> Option<i64> {
    let (year, rest) = match tag {
        UTC_TIME => {
            let (year, rest) = digits(text, 2)?;
            // RFC 5280, section 4.1.2.5.1.
            (if year >= 50 { 1900 + year } else { 2000 + year }, rest)
        }
        GENERALIZED_TIME => digits(text, 4)?,
        _ => return None,
    };
    let mut parts = [0; 5];
    let mut rest = rest;
    for part in &mut parts {
        (*part, rest) = digits(rest, 2)?;
    }
    let [month, day, hour, minute, second] = parts;
    let valid = (1..=12).contains(&month) && (1..=31).contains(&day) && hour < 24 && minute < 60 && second < 61;
    (valid && rest == b"Z").then(|| ((days(year, month, day) * 24 + hour) * 60 + minute) * 60 + second)
}

fn digits(text: &[u8], count: usize) -> Option<(i64, &[u8])> {
    let (number, rest) = text.split_at_checked(count)?;
    let number =
        number.iter().try_fold(0, |sum, byte| byte.is_ascii_digit().then(|| sum * 10 + i64::from(byte - b'0')))?;
    Some((number, rest))
}

/// Days from 1970-01-01 to a day of the Gregorian calendar. Here years begin in March, so that the leap day comes last.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (tag, text, expected) in [
            (UTC_TIME, "700101000000Z", Some(0)),
            (UTC_TIME, "491231235959Z", Some(2_524_607_999)),
            (UTC_TIME, "500101000000Z", Some(-631_152_000)),
            (GENERALIZED_TIME, "20240229120000Z", Some(1_709_208_000)),
            (GENERALIZED_TIME, "20500101000000Z", Some(2_524_608_000)),
            (GENERALIZED_TIME, "99991231235959Z", Some(253_402_300_799)),
            (GENERALIZED_TIME, "20241301000000Z", None),
            (GENERALIZED_TIME, "20240101000000", None),
            (GENERALIZED_TIME, "2024010100000xZ", None),
            (INTEGER, "700101000000Z", None),
        ] {
            assert_eq!(seconds(tag, text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn what_is_wrong_with_the_time_is_told() {
        let valid = Validity { starts: 100, ends: 200 };
        assert_eq!([100, 150, 200].map(|now| valid.complaint_at(now)), [None, None, None]);
        assert_eq!(valid.complaint_at(201).as_deref(), Some("expired 1 seconds ago"));
        assert_eq!(valid.complaint_at(90).as_deref(), Some("is not valid for another 10 seconds; is the clock right?"));
        let (early, late) = (Validity { starts: 50, ends: 150 }, Validity { starts: 120, ends: 300 });
        assert_eq!(early.and(late), Validity { starts: 120, ends: 150 });
        let most = Validity { starts: i64::MIN, ends: i64::MIN }.complaint_at(i64::MAX);
        assert!(most.is_some_and(|told| told.contains(&i64::MAX.to_string())));
    }

    #[test]
    fn certificates_are_read_and_anything_cut_or_changed_is_none_or_another_time() {
        let mut params = rcgen::CertificateParams::new(vec!["a.example".to_owned()]).expect("a name");
        for (year, expected) in [(2031, 1_924_992_000), (2061, 2_871_763_200)] {
            params.not_before = rcgen::date_time_ymd(2024, 2, 29);
            params.not_after = rcgen::date_time_ymd(year, 1, 1);
            let key = rcgen::KeyPair::generate().expect("a key");
            let certificate = params.self_signed(&key).expect("a certificate");
            let der: &[u8] = certificate.der();
            assert_eq!(Validity::of(der), Some(Validity { starts: 1_709_164_800, ends: expected }));
            (0..der.len()).for_each(|length| assert_eq!(Validity::of(&der[..length]), None, "{length}"));
            for at in 0..der.len() {
                for bit in 0..8 {
                    let mut changed = der.to_vec();
                    changed[at] ^= 1 << bit;
                    // The test only requires that nothing panics.
                    let _ = Validity::of(&changed);
                }
            }
        }
    }
}
