//! A look at a request before it is decoded.
//!
//! Two bytes on the wire can be an empty sub-message that takes hundreds once decoded, so a message within
//! the size limit could still take hundreds of times its size. The look counts sub-messages without
//! decoding anything, and holds lists to their limits. It also lets a message that is not protobuf end in INVALID_ARGUMENT,
//! where tonic's own codec would call that an internal fault.

use crate::error::Error;
use crate::limits::Limits;

/// Most sub-messages of one request, of all kinds together.
const MAX_SUB_MESSAGES: usize = 1 << 18;

/// Which fields of a message are sub-messages, with their names, `[]` behind those of which there may be more than one, and
/// theirs.
#[derive(Debug)]
pub(crate) struct Shape(&'static [(u64, &'static str, &'static Shape)]);

pub(super) static LEAF: Shape = Shape(&[]);
static PARAMS: Shape = Shape(&[
    (8, "logit_bias[]", &LEAF),
    (11, "bad_words[]", &LEAF),
    (17, "logprobs", &LEAF),
    (18, "acceptance", &LEAF),
    (19, "proposer", &LEAF),
    (20, "draft_length", &LEAF),
    (54, "dry_sequence_breakers[]", &LEAF),
    (59, "no_repeat_ngram", &LEAF),
    (60, "length_penalty", &LEAF),
    (61, "sequence_bias[]", &LEAF),
    (62, "token_ban_ranges[]", &LEAF),
    (65, "repetition_detection", &LEAF),
    (66, "thinking_budget", &LEAF),
    (68, "report", &LEAF),
    (90, "watermark", &WATERMARK),
]);
static WATERMARK: Shape = Shape(&[(1, "kgw", &LEAF), (2, "synthid", &LEAF), (3, "gumbel", &LEAF)]);
static CONFIG: Shape = Shape(&[(5, "default_params", &PARAMS), (110, "vocab_shards", &LEAF)]);
static OPEN: Shape = Shape(&[(2, "params", &PARAMS), (5, "sampler_state", &LEAF)]);
static SCORE: Shape = Shape(&[(2, "logprobs", &LEAF)]);
static VERIFY: Shape =
    Shape(&[(3, "kept", &LEAF), (4, "dense", &LEAF), (5, "sparse", &LEAF), (6, "deterministic", &LEAF)]);
static WORK: Shape = Shape(&[(3, "sample", &LEAF), (4, "draft", &LEAF), (5, "score", &SCORE), (6, "verify", &VERIFY)]);
static SHARDED: Shape = Shape(&[(1, "inline", &LEAF), (2, "region", &LEAF)]);
static STEP: Shape = Shape(&[
    (3, "open[]", &OPEN),
    (4, "work[]", &WORK),
    (5, "inline", &LEAF),
    (6, "region", &LEAF),
    (9, "token_slots", &LEAF),
    (110, "sharded", &SHARDED),
    (120, "top_n", &LEAF),
]);
pub(super) static DECODE_REQUEST: Shape = Shape(&[(1, "config", &CONFIG), (2, "step", &STEP)]);
static SHARD: Shape = Shape(&[(2, "inline", &LEAF), (3, "region", &LEAF)]);
pub(super) static ATTACH_REQUEST: Shape = Shape(&[(1, "rank", &LEAF), (2, "shard", &SHARD)]);
static ROW: Shape = Shape(&[(1, "params", &PARAMS), (5, "sampler_state", &LEAF)]);
pub(super) static SAMPLE_REQUEST: Shape =
    Shape(&[(5, "default_params", &PARAMS), (6, "rows[]", &ROW), (7, "logits", &LEAF), (120, "top_n", &LEAF)]);

pub(super) fn malformed(error: prost::DecodeError) -> Error {
    Error::Malformed(error.to_string())
}

/// What a message may still have.
struct Room<'a> {
    sub_messages: usize,
    open: usize,
    /// Works of a step, and rows of a batch: either takes a row at least.
    rows: usize,
    limits: &'a Limits,
}

impl<'a> Room<'a> {
    fn new(limits: &'a Limits) -> Self {
        let (open, rows) = (limits.max_sequences_per_stream, limits.max_rows_per_step);
        Self { sub_messages: MAX_SUB_MESSAGES, open, rows, limits }
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
}

/// Counts the sub-messages of a request.
pub(super) fn look(message: &[u8], shape: &Shape, limits: &Limits) -> Result<(), Error> {
    count(message, shape, &mut Room::new(limits))
}

/// Counts down `room` for each sub-message in `message`. The depth is that of the shape.
fn count(message: &[u8], shape: &Shape, room: &mut Room<'_>) -> Result<(), Error> {
    let mut bytes = message;
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        match tag & 7 {
            0 => drop(varint(&mut bytes)?),
            1 => drop(take(&mut bytes, 8)?),
            5 => drop(take(&mut bytes, 4)?),
            2 => {
                let len = varint(&mut bytes)?;
                let field = take(&mut bytes, len)?;
                if let Some((_, name, inner)) = shape.0.iter().find(|(number, ..)| *number == tag >> 3) {
                    room.take(name)?;
                    count(field, inner, room).map_err(|e| within(e, name, message, tag, bytes.len()))?;
                } else if std::ptr::eq(shape, &WATERMARK) {
                    // Decoded it would be a message without a scheme, which asks for no mark.
                    return Err(Error::invalid("scheme", "is none that this server knows; see GetServerInfo"));
                }
            }
            // Groups are older than proto3 and would hide what is in them.
            _ => return Err(Error::Malformed("groups are not part of this protocol".to_owned())),
        }
    }
    Ok(())
}

/// An error in a field of `message`, behind which there are `left` bytes.
fn within(error: Error, name: &str, message: &[u8], tag: u64, left: usize) -> Error {
    let Some(name) = name.strip_suffix("[]") else { return error.within(name) };
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
    error.within(&format!("{name}[{before}]"))
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
    use super::super::codec::Looked;
    use super::*;
    use crate::proto;
    use proptest::prelude::*;
    use prost::Message;
    use prost_types::field_descriptor_proto::{Label, Type};
    use prost_types::{DescriptorProto, FileDescriptorSet};
    use std::collections::HashMap;

    /// Adds what differs between a message of the schema and its shape.
    fn compare(schema: &HashMap<String, DescriptorProto>, name: &str, shape: &Shape, found: &mut Vec<String>) {
        let fields: Vec<_> = schema[name].field.iter().filter(|field| field.r#type() == Type::Message).collect();
        for field in &fields {
            match shape.0.iter().find(|(number, ..)| i64::from(field.number()) == *number as i64) {
                Some((_, named, inner)) => {
                    let several = if field.label() == Label::Repeated { "[]" } else { "" };
                    if *named != format!("{}{several}", field.name()) {
                        found.push(format!("{name}.{} is called {named}", field.name()));
                    }
                    compare(schema, field.type_name().trim_start_matches('.'), inner, found);
                }
                None => found.push(format!("{name}.{} is not counted", field.name())),
            }
        }
        if shape.0.len() != fields.len() {
            found.push(format!("{name} has {} sub-messages, its shape {}", fields.len(), shape.0.len()));
        }
    }

    #[test]
    fn every_sub_message_of_the_schema_is_counted() {
        let set = FileDescriptorSet::decode(proto::FILE_DESCRIPTOR_SET).expect("descriptors");
        let file = set.file.into_iter().find(|file| file.package() == "croupier.v1").expect("the schema");
        let schema: HashMap<String, DescriptorProto> =
            file.message_type.iter().map(|m| (format!("croupier.v1.{}", m.name()), m.clone())).collect();
        let shapes = HashMap::from([
            (".croupier.v1.DecodeRequest", proto::DecodeRequest::SHAPE),
            (".croupier.v1.SampleRequest", proto::SampleRequest::SHAPE),
            (".croupier.v1.AttachRequest", proto::AttachRequest::SHAPE),
            (".croupier.v1.GetServerInfoRequest", proto::GetServerInfoRequest::SHAPE),
        ]);
        let mut found = Vec::new();
        for method in &file.service[0].method {
            let name = method.input_type();
            compare(&schema, &name[1..], shapes[name], &mut found);
        }
        assert!(found.is_empty(), "{found:#?}");
        compare(&schema, "croupier.v1.ScoreWork", &LEAF, &mut found);
        assert_eq!(found.len(), 2, "what is forgotten is found");
    }

    fn step(step: proto::Step) -> Vec<u8> {
        proto::DecodeRequest { request: Some(proto::decode_request::Request::Step(step)) }.encode_to_vec()
    }

    /// Limits that no list reaches.
    fn many() -> Limits {
        Limits { max_sequences_per_stream: usize::MAX, max_rows_per_step: usize::MAX, ..Limits::default() }
    }

    fn looked(message: &[u8], shape: &Shape) -> Result<(), Error> {
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

    /// A scheme of a newer schema is refused, not taken for no mark.
    #[test]
    fn an_unknown_scheme_is_a_field_at_fault() {
        // Field 9 of a WatermarkParams, as field 90 of SamplingParams.
        let mark = [0xD2, 0x05, 3, 0x4A, 1, 0];
        let params = |bytes: &[u8]| [&[0x12, bytes.len() as u8], bytes].concat();
        let open = |bytes: &[u8]| [&[0x1A, bytes.len() as u8], bytes].concat();
        let step = [open(&[8, 1]), open(&[8, 2]), open(&params(&mark))].concat();
        let message = [&[0x12, step.len() as u8], &step[..]].concat();
        let fault = |message: &[u8], shape| looked(message, shape).unwrap_err().to_string();
        let said = fault(&message, &DECODE_REQUEST);
        assert!(said.starts_with("step.open[2].params.watermark.scheme: "), "{said}");
        let config = [&[0x0A, 8, 0x2A, 6], &mark[..]].concat();
        let said = fault(&config, &DECODE_REQUEST);
        assert!(said.starts_with("config.default_params.watermark.scheme: "), "{said}");
        let rows = [&[0x32, 0, 0x32, 8, 0x0A, 6], &mark[..]].concat();
        let said = fault(&rows, &SAMPLE_REQUEST);
        assert!(said.starts_with("rows[1].params.watermark.scheme: "), "{said}");
        // None at all is no mark.
        assert_eq!(looked(&[0x0A, 5, 0x2A, 3, 0xD2, 0x05, 0], &DECODE_REQUEST), Ok(()));
    }

    #[test]
    fn too_many_are_refused_before_they_are_decoded() {
        let full = |count| step(proto::Step { work: vec![proto::Work::default(); count], ..Default::default() });
        assert_eq!(looked(&full(MAX_SUB_MESSAGES - 1), &DECODE_REQUEST), Ok(()));
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
        let limits = Limits { max_sequences_per_stream: 3, max_rows_per_step: 2, ..Limits::default() };
        let said = |message: &[u8], shape| look(message, shape, &limits).map_err(|error| error.to_string());
        let opens = |count| proto::Step { open: vec![Default::default(); count], ..Default::default() };
        let works = |count| proto::Step { work: vec![Default::default(); count], ..Default::default() };
        for fits in [opens(3), works(2)] {
            assert_eq!(said(&step(fits), &DECODE_REQUEST), Ok(()));
        }
        let refused = said(&step(opens(4)), &DECODE_REQUEST).unwrap_err();
        assert!(refused.starts_with("step.open: ") && refused.contains("max_sequences_per_stream is 3"), "{refused}");
        let refused = said(&step(works(3)), &DECODE_REQUEST).unwrap_err();
        assert!(refused.starts_with("step.work: ") && refused.contains("max_rows_per_step is 2"), "{refused}");
        // A field that is there twice is one, with the items of both.
        let twice = [step(opens(2)), step(opens(2))].concat();
        assert!(said(&twice, &DECODE_REQUEST).unwrap_err().starts_with("step.open: "));
        let rows = |count| proto::SampleRequest { rows: vec![Default::default(); count], ..Default::default() };
        assert_eq!(said(&rows(2).encode_to_vec(), &SAMPLE_REQUEST), Ok(()));
        assert!(said(&rows(3).encode_to_vec(), &SAMPLE_REQUEST).unwrap_err().starts_with("rows: "));
    }
}
