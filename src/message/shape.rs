//! The shapes of requests: the field numbers of each message, and which of its fields are messages. A test compares
//! them with the schema.

/// The shape of a message.
#[derive(Debug)]
pub(crate) struct Shape {
    /// The message has the fields from 1 to this one.
    last: u64,
    /// The message's further fields.
    more: &'static [u64],
    /// The fields that are messages, with their names and shapes. The name of a repeated field ends with `[]`.
    parts: &'static [(u64, &'static str, &'static Shape)],
    /// The fields of which only one may be set, with their names.
    choices: &'static [(u64, &'static str)],
}

impl Shape {
    /// Whether the message has a field with this number.
    pub(super) fn has(&self, number: u64) -> bool {
        (1..=self.last).contains(&number) || self.more.contains(&number)
    }

    /// The name of a list of numbers that has a limit, because a byte on the wire takes eight bytes once decoded.
    pub(super) fn list(&self, number: u64) -> Option<&'static str> {
        (std::ptr::eq(self, &STEP) && number == 2).then_some("close_sequence_ids")
    }

    /// The field's name if it is one of those of which only one may be set.
    pub(super) fn choice(&self, number: u64) -> Option<&'static str> {
        self.choices.iter().find(|(of, _)| *of == number).map(|(_, name)| *name)
    }

    /// The name and shape of a field that is a message.
    pub(super) fn part(&self, number: u64) -> Option<(&'static str, &'static Self)> {
        self.parts.iter().find(|(of, ..)| *of == number).map(|(_, name, inner)| (*name, *inner))
    }
}

/// A message without sub-messages.
const fn leaf(last: u64) -> Shape {
    Shape { last, more: &[], parts: &[], choices: &[] }
}

/// A message whose fields do not matter: a client of any schema may ask what this server knows.
pub(super) static ANY: Shape = leaf(u64::MAX);
static LOGPROBS: Shape = leaf(3);
static TOKENS: Shape = leaf(1);
static PARAMS: Shape = Shape {
    more: &[90],
    parts: &[
        (8, "logit_bias[]", &leaf(2)),
        (11, "bad_words[]", &TOKENS),
        (17, "logprobs", &LOGPROBS),
        (18, "acceptance", &leaf(7)),
        (19, "proposer", &leaf(5)),
        (20, "draft_length", &leaf(3)),
        (54, "dry_sequence_breakers[]", &TOKENS),
        (59, "no_repeat_ngram", &leaf(4)),
        (60, "length_penalty", &leaf(2)),
        (61, "sequence_bias[]", &leaf(2)),
        (62, "token_ban_ranges[]", &leaf(3)),
        (65, "repetition_detection", &leaf(3)),
        (66, "thinking_budget", &THINKING),
        (68, "report", &leaf(4)),
        (81, "grammar", &GRAMMAR),
        (82, "stop_token_sequences[]", &TOKENS),
        (90, "watermark", &WATERMARK),
    ],
    ..leaf(85)
};
static THINKING: Shape = Shape { parts: &[(5, "other_ends[]", &TOKENS)], ..leaf(9) };
static GRAMMAR: Shape = Shape {
    parts: &[(7, "start_sequences[]", &TOKENS)],
    choices: &[(1, "json_schema"), (2, "regex"), (3, "lark"), (5, "gbnf"), (6, "choices")],
    ..leaf(8)
};
static WATERMARK: Shape = Shape {
    parts: &[(1, "kgw", &leaf(5)), (2, "synthid", &leaf(6)), (3, "gumbel", &leaf(3))],
    choices: &[(1, "kgw"), (2, "synthid"), (3, "gumbel")],
    ..leaf(3)
};
static CONFIG: Shape =
    Shape { more: &[110], parts: &[(5, "default_params", &PARAMS), (110, "vocab_shards", &leaf(1))], ..leaf(7) };
static STATE: Shape = leaf(3);
static OPEN: Shape = Shape { parts: &[(2, "params", &PARAMS), (5, "sampler_state", &STATE)], ..leaf(6) };
static SCORE: Shape = Shape { parts: &[(2, "logprobs", &LOGPROBS)], ..leaf(2) };
static VERIFY: Shape = Shape {
    parts: &[(3, "kept", &leaf(0)), (4, "dense", &leaf(2)), (5, "sparse", &leaf(3)), (6, "deterministic", &leaf(0))],
    choices: &[(3, "kept"), (4, "dense"), (5, "sparse"), (6, "deterministic")],
    ..leaf(7)
};
static WORK: Shape = Shape {
    parts: &[(3, "sample", &leaf(0)), (4, "draft", &leaf(2)), (5, "score", &SCORE), (6, "verify", &VERIFY)],
    choices: &[(3, "sample"), (4, "draft"), (5, "score"), (6, "verify")],
    ..leaf(7)
};
static INLINE: Shape = leaf(2);
static REGION: Shape = leaf(5);
static TOP_N: Shape = leaf(6);
static SHARDED: Shape = Shape {
    parts: &[(1, "inline", &INLINE), (2, "region", &REGION)],
    choices: &[(1, "inline"), (2, "region")],
    ..leaf(2)
};
static STEP: Shape = Shape {
    more: &[110, 120],
    parts: &[
        (3, "open[]", &OPEN),
        (4, "work[]", &WORK),
        (5, "inline", &INLINE),
        (6, "region", &REGION),
        (9, "token_slots", &leaf(4)),
        (110, "sharded", &SHARDED),
        (120, "top_n", &TOP_N),
    ],
    choices: &[(5, "inline"), (6, "region"), (110, "sharded")],
    ..leaf(9)
};
pub(super) static DECODE_REQUEST: Shape =
    Shape { parts: &[(1, "config", &CONFIG), (2, "step", &STEP)], choices: &[(1, "config"), (2, "step")], ..leaf(2) };
static SHARD: Shape = Shape {
    parts: &[(2, "inline", &INLINE), (3, "region", &REGION)],
    choices: &[(2, "inline"), (3, "region")],
    ..leaf(3)
};
pub(super) static ATTACH_REQUEST: Shape =
    Shape { parts: &[(1, "rank", &leaf(5)), (2, "shard", &SHARD)], choices: &[(1, "rank"), (2, "shard")], ..leaf(2) };
pub(super) static REGION_REQUEST: Shape = Shape {
    last: 3,
    more: &[110, 130],
    parts: &[
        (1, "hello", &leaf(1)),
        (2, "lease", &Shape { more: &[130], parts: &[(130, "device", &leaf(1))], ..leaf(1) }),
        (3, "release", &leaf(2)),
        (110, "attach", &leaf(2)),
        (130, "lend", &leaf(4)),
    ],
    choices: &[(1, "hello"), (2, "lease"), (3, "release"), (110, "attach"), (130, "lend")],
};
static ROW: Shape = Shape { parts: &[(1, "params", &PARAMS), (5, "sampler_state", &STATE)], ..leaf(6) };
pub(super) static SAMPLE_REQUEST: Shape = Shape {
    more: &[120],
    parts: &[(5, "default_params", &PARAMS), (6, "rows[]", &ROW), (7, "logits", &INLINE), (120, "top_n", &TOP_N)],
    ..leaf(7)
};

#[cfg(test)]
mod tests {
    use super::super::codec::Looked;
    use super::*;
    use crate::proto;
    use prost::Message;
    use prost_types::field_descriptor_proto::{Label, Type};
    use prost_types::{DescriptorProto, FileDescriptorSet};
    use std::collections::HashMap;

    /// Records the differences between a message of the schema and its shape.
    fn compare(schema: &HashMap<String, DescriptorProto>, name: &str, shape: &Shape, found: &mut Vec<String>) {
        let numbers: Vec<u64> = schema[name].field.iter().map(|field| field.number() as u64).collect();
        if let Some(number) = (0..1000).find(|number| shape.has(*number) != numbers.contains(number)) {
            found.push(format!("{name} and its shape differ in field {number}"));
        }
        let fields: Vec<_> = schema[name].field.iter().filter(|field| field.r#type() == Type::Message).collect();
        for field in &fields {
            match shape.part(field.number() as u64) {
                Some((named, inner)) => {
                    let several = if field.label() == Label::Repeated { "[]" } else { "" };
                    if named != format!("{}{several}", field.name()) {
                        found.push(format!("{name}.{} is called {named}", field.name()));
                    }
                    compare(schema, field.type_name().trim_start_matches('.'), inner, found);
                }
                None => found.push(format!("{name}.{} is not counted", field.name())),
            }
        }
        let choices = schema[name].field.iter().filter(|field| field.oneof_index.is_some() && !field.proto3_optional());
        let choices: Vec<_> = choices.map(|field| (field.number() as u64, field.name().to_owned())).collect();
        if choices != shape.choices.iter().map(|(number, name)| (*number, (*name).to_owned())).collect::<Vec<_>>() {
            found.push(format!("{name} and its shape differ in what may be set together: {choices:?}"));
        }
        if shape.parts.len() != fields.len() {
            found.push(format!("{name} has {} sub-messages, its shape {}", fields.len(), shape.parts.len()));
        }
    }

    #[test]
    fn every_message_has_the_fields_of_the_schema() {
        let set = FileDescriptorSet::decode(proto::FILE_DESCRIPTOR_SET).expect("descriptors");
        let file = set.file.into_iter().find(|file| file.package() == "croupier.v1").expect("the schema");
        let schema: HashMap<String, DescriptorProto> =
            file.message_type.iter().map(|m| (format!("croupier.v1.{}", m.name()), m.clone())).collect();
        let shapes = HashMap::from([
            (".croupier.v1.DecodeRequest", proto::DecodeRequest::SHAPE),
            (".croupier.v1.SampleRequest", proto::SampleRequest::SHAPE),
            (".croupier.v1.AttachRequest", proto::AttachRequest::SHAPE),
        ]);
        let mut found = Vec::new();
        for method in &file.service[0].method {
            let Some(shape) = shapes.get(method.input_type()) else { continue };
            compare(&schema, &method.input_type()[1..], shape, &mut found);
        }
        compare(&schema, "croupier.v1.RegionRequest", &REGION_REQUEST, &mut found);
        assert!(found.is_empty(), "{found:#?}");
        for (shape, faults) in [(leaf(2), 2), (leaf(1), 3), (leaf(3), 3)] {
            compare(&schema, "croupier.v1.ScoreWork", &shape, &mut found);
            assert_eq!(std::mem::take(&mut found).len(), faults, "what is forgotten is found: {shape:?}");
        }
    }
}
