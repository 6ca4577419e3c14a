//! A look at a request before it is decoded.
//!
//! Two bytes on the wire can be an empty sub-message that takes hundreds once decoded, so a message within
//! the size limit could still take hundreds of times its size. The look counts sub-messages without
//! decoding anything, and holds lists to their limits. It finds fields that the schema does not have, which decoding drops:
//! what they ask for would not be done, and nobody would know. It also lets a message that is not protobuf end in INVALID_ARGUMENT,
//! where tonic's own codec would call that an internal fault.

use super::shape::Shape;
use crate::error::Error;
use crate::limits::Limits;
use crate::params::FieldError;
use std::collections::BTreeMap;

/// Most sub-messages of one request, of all kinds together.
const MAX_SUB_MESSAGES: usize = 1 << 18;

/// Fields of openings and of works that the schema does not have, one for each that has such. Elsewhere they are errors of the
/// message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Unknown {
    openings: BTreeMap<usize, FieldError>,
    works: BTreeMap<usize, FieldError>,
}

impl Unknown {
    /// The one of an opening, or of a row of a stateless batch.
    pub(crate) fn of_opening(&mut self, at: usize) -> Option<FieldError> {
        self.openings.remove(&at)
    }

    /// The one of a work.
    pub(crate) fn of_work(&mut self, at: usize) -> Option<FieldError> {
        self.works.remove(&at)
    }
}

pub(super) fn malformed(error: prost::DecodeError) -> Error {
    Error::Malformed(error.to_string())
}

/// What a message may still have.
struct Room<'a> {
    sub_messages: usize,
    /// Sequences that may be closed: to close what is not open is no mistake, but a list longer than there may be sequences is.
    close: usize,
    open: usize,
    /// Works of a step, and rows of a batch: either takes a row at least.
    rows: usize,
    limits: &'a Limits,
    unknown: Unknown,
}

impl<'a> Room<'a> {
    fn new(limits: &'a Limits) -> Self {
        let (open, rows) = (limits.max_sequences_per_stream, limits.max_rows_per_step);
        let close = limits.max_sequences;
        Self { sub_messages: MAX_SUB_MESSAGES, close, open, rows, limits, unknown: Unknown::default() }
    }

    /// Takes room for a sub-message.
    fn take(&mut self, name: &str) -> Result<(), Error> {
        self.sub_messages = self.sub_messages.checked_sub(1).ok_or(Error::TooManyItems { limit: MAX_SUB_MESSAGES })?;
        let (left, setting, limit) = match name {
            "open[]" => (&mut self.open, "max_sequences_per_stream", self.limits.max_sequences_per_stream),
            "work[]" | "rows[]" => (&mut self.rows, "max_rows_per_step", self.limits.max_rows_per_step),
            _ => return Ok(()),
        };
        *left = left.checked_sub(1).ok_or_else(|| {
            let message = format!("has more entries than there may be, {setting} is {limit}; split it");
            Error::invalid(name.trim_end_matches("[]"), message)
        })?;
        Ok(())
    }

    /// Takes room for so many numbers of a list.
    fn take_numbers(&mut self, name: &str, count: usize) -> Result<(), Error> {
        self.close = self.close.checked_sub(count).ok_or_else(|| {
            let limit = self.limits.max_sequences;
            Error::invalid(
                name,
                format!("has more entries than there may be, max_sequences is {limit}; split the step"),
            )
        })?;
        Ok(())
    }

    /// Where unknown fields of such a sub-message belong, whose room was just taken, and which one it is.
    fn item(&mut self, name: &str) -> Option<(&mut BTreeMap<usize, FieldError>, usize)> {
        let (open, rows) = (self.limits.max_sequences_per_stream, self.limits.max_rows_per_step);
        match name {
            "open[]" => Some((&mut self.unknown.openings, open - self.open - 1)),
            "rows[]" => Some((&mut self.unknown.openings, rows - self.rows - 1)),
            "work[]" => Some((&mut self.unknown.works, rows - self.rows - 1)),
            _ => None,
        }
    }
}

/// Counts the sub-messages of a request, and finds what is unknown in its openings and works.
///
/// # Errors
/// More than there may be, a field that is unknown elsewhere, or bytes that are no message.
pub(super) fn look(message: &[u8], shape: &Shape, limits: &Limits) -> Result<Unknown, Error> {
    let mut room = Room::new(limits);
    match count(message, shape, &mut room)? {
        Some(field) => Err(Error::Unimplemented(field)),
        None => Ok(room.unknown),
    }
}

/// Counts down `room` for each sub-message in `message`, and gives the first field that is unknown outside openings and works.
/// The depth is that of the shape.
fn count(message: &[u8], shape: &Shape, room: &mut Room<'_>) -> Result<Option<FieldError>, Error> {
    let (mut bytes, mut unknown) = (message, None);
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        let number = tag >> 3;
        if !shape.has(number) {
            unknown.get_or_insert_with(|| unknown_field(number));
        }
        match tag & 7 {
            0 => {
                varint(&mut bytes)?;
                shape.list(number).map_or(Ok(()), |name| room.take_numbers(name, 1))?;
            }
            1 => drop(take(&mut bytes, 8)?),
            5 => drop(take(&mut bytes, 4)?),
            2 => {
                let len = varint(&mut bytes)?;
                let field = take(&mut bytes, len)?;
                if let Some(name) = shape.list(number) {
                    // Each number ends with a byte below 128.
                    room.take_numbers(name, field.iter().filter(|byte| **byte < 128).count())?;
                }
                let Some((name, inner)) = shape.part(number) else { continue };
                room.take(name)?;
                let place = || place(name, message, tag, bytes.len());
                let Some(error) = count(field, inner, room).map_err(|e| e.within(&place()))? else { continue };
                match room.item(name) {
                    Some((items, at)) => drop(items.insert(at, error)),
                    None => drop(unknown.get_or_insert_with(|| error.within(&place()))),
                }
            }
            // Groups are older than proto3 and would hide what is in them.
            _ => return Err(Error::Malformed("groups are not part of this protocol".to_owned())),
        }
    }
    Ok(unknown)
}

/// What is wrong with a field that only its number tells of.
fn unknown_field(number: u64) -> FieldError {
    let message = "is the number of a field that this server does not know; GetServerInfo says which version it is, and its parameters";
    FieldError::new(number.to_string(), message)
}

/// Which field of `message` it is that has this tag, and behind which there are `left` bytes.
fn place(name: &str, message: &[u8], tag: u64, left: usize) -> String {
    let Some(name) = name.strip_suffix("[]") else { return name.to_owned() };
    let (mut bytes, mut before) = (message, 0);
    while bytes.len() > left {
        // All of it was read once already.
        let Ok(next) = varint(&mut bytes) else { break };
        let skipped = match next & 7 {
            0 => varint(&mut bytes).map(drop),
            1 => take(&mut bytes, 8).map(drop),
            5 => take(&mut bytes, 4).map(drop),
            _ => varint(&mut bytes).and_then(|len| take(&mut bytes, len)).map(drop),
        };
        if skipped.is_err() {
            break;
        }
        before += usize::from(next == tag && bytes.len() > left);
    }
    format!("{name}[{before}]")
}

fn take<'a>(bytes: &mut &'a [u8], len: u64) -> Result<&'a [u8], Error> {
    let taken = usize::try_from(len).ok().and_then(|len| bytes.split_at_checked(len));
    let (field, rest) = taken.ok_or_else(|| Error::Malformed("a field ends past its message".to_owned()))?;
    *bytes = rest;
    Ok(field)
}

fn varint(bytes: &mut &[u8]) -> Result<u64, Error> {
    prost::encoding::decode_varint(bytes).map_err(malformed)
}

#[cfg(test)]
mod tests {
    use super::super::shape::{ANY, ATTACH_REQUEST, DECODE_REQUEST, SAMPLE_REQUEST};
    use super::*;
    use crate::proto;
    use proptest::prelude::*;
    use prost::Message;

    fn step(step: proto::Step) -> Vec<u8> {
        proto::DecodeRequest { request: Some(proto::decode_request::Request::Step(step)) }.encode_to_vec()
    }

    /// Limits that no list reaches.
    fn many() -> Limits {
        let (max_sequences, max_sequences_per_stream, max_rows_per_step) = (usize::MAX, usize::MAX, usize::MAX);
        Limits { max_sequences, max_sequences_per_stream, max_rows_per_step, ..Limits::default() }
    }

    fn looked(message: &[u8], shape: &Shape) -> Result<Unknown, Error> {
        look(message, shape, &many())
    }

    fn counted(bytes: &[u8], shape: &Shape) -> usize {
        let (most, limits) = (usize::MAX, many());
        let mut room = Room { sub_messages: most, ..Room::new(&limits) };
        count(bytes, shape, &mut room).expect("well formed");
        most - room.sub_messages
    }

    #[test]
    fn every_sub_message_counts() {
        let params = proto::SamplingParams {
            logit_bias: vec![proto::LogitBias::default(); 2],
            bad_words: vec![proto::TokenSequence::default(); 3],
            logprobs: Some(proto::LogprobsParams::default()),
            acceptance: Some(proto::AcceptanceParams::default()),
            proposer: Some(proto::ProposerParams::default()),
            draft_length: Some(proto::DraftLengthParams::default()),
            dry_sequence_breakers: vec![proto::TokenSequence::default(); 2],
            no_repeat_ngram: Some(proto::NoRepeatNgramParams::default()),
            length_penalty: Some(proto::LengthPenaltyParams::default()),
            sequence_bias: vec![proto::SequenceBias::default(); 2],
            token_ban_ranges: vec![proto::TokenBanRange::default(); 3],
            repetition_detection: Some(proto::RepetitionDetectionParams::default()),
            thinking_budget: Some(proto::ThinkingBudgetParams::default()),
            report: Some(proto::ReportParams::default()),
            watermark: Some(proto::WatermarkParams {
                scheme: Some(proto::watermark_params::Scheme::Kgw(Default::default())),
            }),
            ..Default::default()
        };
        let sampler_state = Some(proto::SamplerState::default());
        let open = proto::OpenSequence { params: Some(params.clone()), sampler_state, ..Default::default() };
        let score = proto::ScoreWork { logprobs: Some(proto::LogprobsParams::default()), ..Default::default() };
        let work = proto::Work { kind: Some(proto::work::Kind::Score(score)), ..Default::default() };
        let logits = Some(proto::step::Logits::Inline(proto::InlineLogits::default()));
        let message = step(proto::Step { open: vec![open; 2], work: vec![work; 5], logits, ..Default::default() });
        assert_eq!(counted(&message, &DECODE_REQUEST), 1 + 2 * (1 + 1 + 23 + 1) + 5 * 3 + 1);
        let row = proto::SampleRow { params: Some(params), sampler_state, ..Default::default() };
        let message =
            proto::SampleRequest { rows: vec![row; 3], logits: Some(Default::default()), ..Default::default() };
        assert_eq!(counted(&message.encode_to_vec(), &SAMPLE_REQUEST), 3 * 26 + 1);
    }

    /// A field of wire type 2: its number, and what is in it.
    fn field(number: u32, content: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        prost::encoding::encode_key(number, prost::encoding::WireType::LengthDelimited, &mut bytes);
        prost::encoding::encode_varint(content.len() as u64, &mut bytes);
        [bytes, content.to_vec()].concat()
    }

    /// One that holds `fields`, one after the other.
    fn with(number: u32, fields: &[Vec<u8>]) -> Vec<u8> {
        field(number, &fields.concat())
    }

    #[test]
    fn unknown_fields_are_those_of_their_opening_or_work() {
        let newer = || field(91, &[1, 2]);
        let scheme = with(90, &[field(9, &[])]);
        let count = vec![0xF8, 0x05, 3]; // Field 95, a number.
        let open = |params: &[Vec<u8>]| with(3, &[vec![8, 1], with(2, params)]);
        let works = [with(4, &[field(3, &[])]), with(4, &[field(4, &[0x18, 1])]), with(4, &[field(9, &[])])];
        let opens =
            [open(&[]), open(&[newer(), count.clone()]), open(&[with(17, &[newer()])]), open(&[scheme]), open(&[])];
        let message = with(2, &[opens.concat(), works.concat()]);
        let mut unknown = looked(&message, &DECODE_REQUEST).expect("the message itself is well formed");
        let paths = [1, 2, 3].map(|at| unknown.of_opening(at).expect("one").field);
        assert_eq!(paths, ["params.91", "params.logprobs.91", "params.watermark.9"]);
        let paths = [1, 2].map(|at| unknown.of_work(at).expect("one").field);
        assert_eq!(paths, ["draft.3", "9"]);
        assert_eq!(unknown, Unknown::default(), "and no others");
        // A step that is there twice is one, with the items of both.
        let twice = [with(2, &[open(&[])]), with(2, &[open(&[]), open(&[count])])].concat();
        let mut unknown = looked(&twice, &DECODE_REQUEST).expect("well formed");
        assert_eq!(unknown.of_opening(2).expect("one").field, "params.95");
        let rows = [with(6, &[]), with(6, &[with(1, &[newer()])]), with(6, &[newer()])].concat();
        let mut unknown = looked(&rows, &SAMPLE_REQUEST).expect("well formed");
        assert_eq!([1, 2].map(|at| unknown.of_opening(at).expect("one").field), ["params.91", "91"]);
    }

    #[test]
    fn unknown_fields_elsewhere_are_the_messages() {
        for (message, shape, path) in [
            (field(9, &[]), &DECODE_REQUEST, "9"),
            (with(2, &[field(10, &[])]), &DECODE_REQUEST, "step.10"),
            (with(2, &[with(5, &[field(7, &[])])]), &DECODE_REQUEST, "step.inline.7"),
            (with(1, &[with(5, &[with(90, &[field(4, &[])])])]), &DECODE_REQUEST, "config.default_params.watermark.4"),
            (
                with(1, &[with(5, &[with(8, &[]), with(8, &[field(3, &[])])])]),
                &DECODE_REQUEST,
                "config.default_params.logit_bias[1].3",
            ),
            (with(7, &[field(3, &[])]), &SAMPLE_REQUEST, "logits.3"),
            (with(2, &[field(4, &[])]), &ATTACH_REQUEST, "shard.4"),
        ] {
            match looked(&message, shape) {
                Err(Error::Unimplemented(field)) => assert_eq!(field.field, path),
                other => panic!("{path}: {other:?}"),
            }
        }
        // Whoever asks what this server knows may be of any schema.
        assert_eq!(looked(&field(9, &[]), &ANY), Ok(Unknown::default()));
    }

    #[test]
    fn what_follows_an_unknown_field_counts_too() {
        let params = [field(91, &[])].into_iter().chain((0..50).map(|_| field(8, &[]))).collect::<Vec<_>>();
        let message = with(2, &[with(3, &[with(2, &params)])]);
        assert_eq!(counted(&message, &DECODE_REQUEST), 1 + 1 + 1 + 50);
    }

    #[test]
    fn too_many_are_refused_before_they_are_decoded() {
        let full = |count| step(proto::Step { work: vec![proto::Work::default(); count], ..Default::default() });
        assert_eq!(looked(&full(MAX_SUB_MESSAGES - 1), &DECODE_REQUEST), Ok(Unknown::default()));
        let refused = looked(&full(MAX_SUB_MESSAGES), &DECODE_REQUEST);
        assert_eq!(refused, Err(Error::TooManyItems { limit: MAX_SUB_MESSAGES }));
    }

    #[test]
    fn what_is_not_protobuf_is_malformed() {
        for bytes in [
            &[0xFF][..],
            &[0x12, 5, 0],
            &[0x0B],
            &[0x0C],
            &[0x0F],
            &[0x09, 1],
            &[0x12, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 1],
        ] {
            assert!(matches!(looked(bytes, &DECODE_REQUEST), Err(Error::Malformed(_))), "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_looked_at_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = looked(&bytes, &DECODE_REQUEST);
            let _ = looked(&bytes, &SAMPLE_REQUEST);
        }
    }

    /// Items of hundreds of bytes each are not made of two bytes each first.
    #[test]
    fn lists_past_their_limits_are_refused_before_they_are_decoded() {
        let limits =
            Limits { max_sequences: 4, max_sequences_per_stream: 3, max_rows_per_step: 2, ..Limits::default() };
        let said = |message: &[u8], shape| look(message, shape, &limits).map_err(|error| error.to_string());
        let opens = |count| proto::Step { open: vec![Default::default(); count], ..Default::default() };
        let works = |count| proto::Step { work: vec![Default::default(); count], ..Default::default() };
        for fits in [opens(3), works(2)] {
            assert_eq!(said(&step(fits), &DECODE_REQUEST), Ok(Unknown::default()));
        }
        let refused = said(&step(opens(4)), &DECODE_REQUEST).unwrap_err();
        assert!(refused.starts_with("step.open: ") && refused.contains("max_sequences_per_stream is 3"), "{refused}");
        let refused = said(&step(works(3)), &DECODE_REQUEST).unwrap_err();
        assert!(refused.starts_with("step.work: ") && refused.contains("max_rows_per_step is 2"), "{refused}");
        // Packed or not, and however long each number is.
        let closes = |ids: &[u64]| proto::Step { close_sequence_ids: ids.to_vec(), ..Default::default() };
        assert_eq!(said(&step(closes(&[1, u64::MAX, 300, 0])), &DECODE_REQUEST), Ok(Unknown::default()));
        let refused = said(&step(closes(&[0; 5])), &DECODE_REQUEST).unwrap_err();
        assert!(
            refused.starts_with("step.close_sequence_ids: ") && refused.contains("max_sequences is 4"),
            "{refused}"
        );
        let unpacked = with(2, &[[0x10, 1].repeat(4)]);
        assert_eq!(said(&unpacked, &DECODE_REQUEST), Ok(Unknown::default()));
        let unpacked = with(2, &[[0x10, 1].repeat(5)]);
        assert!(said(&unpacked, &DECODE_REQUEST).unwrap_err().starts_with("step.close_sequence_ids: "));
        // A field that is there twice is one, with the items of both.
        let twice = [step(opens(2)), step(opens(2))].concat();
        assert!(said(&twice, &DECODE_REQUEST).unwrap_err().starts_with("step.open: "));
        let rows = |count| proto::SampleRequest { rows: vec![Default::default(); count], ..Default::default() };
        assert_eq!(said(&rows(2).encode_to_vec(), &SAMPLE_REQUEST), Ok(Unknown::default()));
        assert!(said(&rows(3).encode_to_vec(), &SAMPLE_REQUEST).unwrap_err().starts_with("rows: "));
    }
}
