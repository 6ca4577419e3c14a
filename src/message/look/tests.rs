//! What the check of a request finds, and what it refuses.

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

fn looked(message: &[u8], shape: &Shape) -> Result<AllDropped, Error> {
    look(message, shape, &many())
}

/// The field of an opening or a work that the schema does not have.
fn unknown(dropped: Dropped) -> String {
    match dropped {
        Dropped::Unknown(field) => field.field,
        Dropped::Together(_) => panic!("{dropped:?}"),
    }
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
        thinking_budget: Some(proto::ThinkingBudgetParams {
            other_ends: vec![proto::TokenSequence::default(); 2],
            ..Default::default()
        }),
        report: Some(proto::ReportParams::default()),
        grammar: Some(proto::GrammarParams {
            start_sequences: vec![proto::TokenSequence::default(); 2],
            ..Default::default()
        }),
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
    assert_eq!(counted(&message, &DECODE_REQUEST), 1 + 2 * (1 + 1 + 28 + 1) + 5 * 3 + 1);
    let row = proto::SampleRow { params: Some(params), sampler_state, ..Default::default() };
    let message = proto::SampleRequest { rows: vec![row; 3], logits: Some(Default::default()), ..Default::default() };
    assert_eq!(counted(&message.encode_to_vec(), &SAMPLE_REQUEST), 3 * 31 + 1);
}

/// A field of wire type 2, with this number and content.
fn field(number: u32, content: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    prost::encoding::encode_key(number, prost::encoding::WireType::LengthDelimited, &mut bytes);
    prost::encoding::encode_varint(content.len() as u64, &mut bytes);
    [bytes, content.to_vec()].concat()
}

/// A field that contains `fields`, one after the other.
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
    let opens = [open(&[]), open(&[newer(), count.clone()]), open(&[with(17, &[newer()])]), open(&[scheme]), open(&[])];
    let message = with(2, &[opens.concat(), works.concat()]);
    let mut dropped = looked(&message, &DECODE_REQUEST).expect("the message itself is well formed");
    let paths = [1, 2, 3].map(|at| dropped.of_opening(at).map(unknown).expect("one"));
    assert_eq!(paths, ["params.91", "params.logprobs.91", "params.watermark.9"]);
    let paths = [1, 2].map(|at| dropped.of_work(at).map(unknown).expect("one"));
    assert_eq!(paths, ["draft.3", "9"]);
    assert_eq!(dropped, AllDropped::default(), "and no others");
    // A step that comes twice counts as one, with the items of both.
    let twice = [with(2, &[open(&[])]), with(2, &[open(&[]), open(&[count])])].concat();
    let mut dropped = looked(&twice, &DECODE_REQUEST).expect("well formed");
    assert_eq!(dropped.of_opening(2).map(unknown).expect("one"), "params.95");
    let rows = [with(6, &[]), with(6, &[with(1, &[newer()])]), with(6, &[newer()])].concat();
    let mut dropped = looked(&rows, &SAMPLE_REQUEST).expect("well formed");
    assert_eq!([1, 2].map(|at| dropped.of_opening(at).map(unknown).expect("one")), ["params.91", "91"]);
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
    // A client of any schema may ask what this server knows.
    assert_eq!(looked(&field(9, &[]), &ANY), Ok(AllDropped::default()));
}

#[test]
fn a_number_that_no_field_can_have_makes_no_message() {
    let tagged = |tag: u64| {
        let mut bytes = Vec::new();
        prost::encoding::encode_varint(tag, &mut bytes);
        [bytes, vec![0]].concat()
    };
    for (message, shape) in [
        (tagged(0), &DECODE_REQUEST),
        (tagged(0), &ANY),
        (with(2, &[tagged(2)]), &DECODE_REQUEST),
        (tagged(1 << 32), &SAMPLE_REQUEST),
    ] {
        assert!(matches!(looked(&message, shape), Err(Error::Malformed(_))), "{message:?}");
    }
    // The largest number that a field can have is only unknown.
    assert!(matches!(looked(&tagged(u64::from(u32::MAX) - 7), &DECODE_REQUEST), Err(Error::Unimplemented(_))));
}

#[test]
fn a_request_is_of_one_kind() {
    let (first, second) = (with(1, &[]), with(2, &[]));
    for shape in [&DECODE_REQUEST, &ATTACH_REQUEST] {
        for one in [&first, &second] {
            assert_eq!(looked(&one.repeat(2), shape), Ok(AllDropped::default()), "protobuf merges them");
        }
        let both = [&*second, &first, &second].concat();
        let refused = looked(&both, shape).unwrap_err().to_string();
        assert!(refused.contains("send only one of them"), "{refused}");
    }
}

/// Of two, decoding would keep the last, and the other would be neither done nor reported.
#[test]
fn only_one_of_a_choice_is_set() {
    let works = [
        with(4, &[field(3, &[]), field(5, &[])]),
        with(4, &[with(6, &[field(3, &[]), field(5, &[]), field(3, &[])])]),
        with(4, &[with(6, &[field(6, &[]), field(6, &[])])]),
    ];
    let grammar = with(81, &[field(1, b"{}"), field(2, b"a")]);
    let opens = [with(3, &[with(2, &[grammar])]), with(3, &[with(2, &[with(90, &[field(3, &[]), field(1, &[])])])])];
    let message = with(2, &[works.concat(), opens.concat()]);
    let mut dropped = looked(&message, &DECODE_REQUEST).expect("the message itself is well formed");
    let told = |dropped: Option<Dropped>| match dropped {
        Some(Dropped::Together(field)) => field.to_string(),
        other => panic!("{other:?}"),
    };
    let is_set = |field: &str, other: &str| format!("{field}: is set together with {other}; send only one of them");
    assert_eq!(told(dropped.of_work(0)), is_set("score", "sample"));
    assert_eq!(told(dropped.of_work(1)), is_set("verify.sparse", "kept"));
    assert_eq!(told(dropped.of_opening(0)), is_set("params.grammar.regex", "json_schema"));
    assert_eq!(told(dropped.of_opening(1)), is_set("params.watermark.kgw", "gumbel"));
    assert_eq!(dropped, AllDropped::default(), "protobuf merges what is set twice");
    let logits = with(2, &[field(5, &[]), field(6, &[])]);
    let refused = looked(&logits, &DECODE_REQUEST);
    assert_eq!(refused, Err(Error::invalid("step.region", "is set together with inline; send only one of them")));
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
    assert_eq!(looked(&full(MAX_SUB_MESSAGES - 1), &DECODE_REQUEST), Ok(AllDropped::default()));
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

/// Two bytes on the wire must not become an item of hundreds of bytes before its list is refused.
#[test]
fn lists_past_their_limits_are_refused_before_they_are_decoded() {
    let limits = Limits { max_sequences: 4, max_sequences_per_stream: 3, max_rows_per_step: 2, ..Limits::default() };
    let said = |message: &[u8], shape| look(message, shape, &limits).map_err(|error| error.to_string());
    let opens = |count| proto::Step { open: vec![Default::default(); count], ..Default::default() };
    let works = |count| proto::Step { work: vec![Default::default(); count], ..Default::default() };
    for fits in [opens(3), works(2)] {
        assert_eq!(said(&step(fits), &DECODE_REQUEST), Ok(AllDropped::default()));
    }
    let refused = said(&step(opens(4)), &DECODE_REQUEST).unwrap_err();
    assert!(refused.starts_with("step.open: ") && refused.contains("max_sequences_per_stream is 3"), "{refused}");
    let refused = said(&step(works(3)), &DECODE_REQUEST).unwrap_err();
    assert!(refused.starts_with("step.work: ") && refused.contains("max_rows_per_step is 2"), "{refused}");
    // This holds whether the list is packed or not, and however long each number is.
    let closes = |ids: &[u64]| proto::Step { close_sequence_ids: ids.to_vec(), ..Default::default() };
    assert_eq!(said(&step(closes(&[1, u64::MAX, 300, 0])), &DECODE_REQUEST), Ok(AllDropped::default()));
    let refused = said(&step(closes(&[0; 5])), &DECODE_REQUEST).unwrap_err();
    assert!(refused.starts_with("step.close_sequence_ids: ") && refused.contains("max_sequences is 4"), "{refused}");
    let unpacked = with(2, &[[0x10, 1].repeat(4)]);
    assert_eq!(said(&unpacked, &DECODE_REQUEST), Ok(AllDropped::default()));
    let unpacked = with(2, &[[0x10, 1].repeat(5)]);
    assert!(said(&unpacked, &DECODE_REQUEST).unwrap_err().starts_with("step.close_sequence_ids: "));
    // A field that comes twice counts as one, with the items of both.
    let twice = [step(opens(2)), step(opens(2))].concat();
    assert!(said(&twice, &DECODE_REQUEST).unwrap_err().starts_with("step.open: "));
    let rows = |count| proto::SampleRequest { rows: vec![Default::default(); count], ..Default::default() };
    assert_eq!(said(&rows(2).encode_to_vec(), &SAMPLE_REQUEST), Ok(AllDropped::default()));
    assert!(said(&rows(3).encode_to_vec(), &SAMPLE_REQUEST).unwrap_err().starts_with("rows: "));
}
