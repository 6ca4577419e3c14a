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

    /// Whether the message may have only one of its parts. Of two, decoding would keep the last, and their items would
    /// be counted together.
    pub(super) fn is_one(&self) -> bool {
        [&DECODE_REQUEST, &ATTACH_REQUEST, &REGION_REQUEST].into_iter().any(|one| std::ptr::eq(self, one))
    }

    /// The name and shape of a field that is a message.
    pub(super) fn part(&self, number: u64) -> Option<(&'static str, &'static Self)> {
        self.parts.iter().find(|(of, ..)| *of == number).map(|(_, name, inner)| (*name, *inner))
    }
}

/// A message without sub-messages.
const fn leaf(last: u64) -> Shape {
    Shape { last, more: &[], parts: &[] }
}

/// A message whose fields do not matter: a client of any schema may ask what this server knows.
pub(super) static ANY: Shape = leaf(u64::MAX);
static LOGPROBS: Shape = leaf(3);
static TOKENS: Shape = leaf(1);
static PARAMS: Shape = Shape {
    last: 82,
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
};
static THINKING: Shape = Shape { last: 9, more: &[], parts: &[(5, "other_ends[]", &TOKENS)] };
static GRAMMAR: Shape = Shape { last: 8, more: &[], parts: &[(7, "start_sequences[]", &TOKENS)] };
static WATERMARK: Shape =
    Shape { last: 3, more: &[], parts: &[(1, "kgw", &leaf(5)), (2, "synthid", &leaf(6)), (3, "gumbel", &leaf(3))] };
static CONFIG: Shape =
    Shape { last: 6, more: &[110], parts: &[(5, "default_params", &PARAMS), (110, "vocab_shards", &leaf(1))] };
static STATE: Shape = leaf(3);
static OPEN: Shape = Shape { last: 5, more: &[], parts: &[(2, "params", &PARAMS), (5, "sampler_state", &STATE)] };
static SCORE: Shape = Shape { last: 2, more: &[], parts: &[(2, "logprobs", &LOGPROBS)] };
static VERIFY: Shape = Shape {
    last: 7,
    more: &[],
    parts: &[(3, "kept", &leaf(0)), (4, "dense", &leaf(2)), (5, "sparse", &leaf(3)), (6, "deterministic", &leaf(0))],
};
static WORK: Shape = Shape {
    last: 7,
    more: &[],
    parts: &[(3, "sample", &leaf(0)), (4, "draft", &leaf(2)), (5, "score", &SCORE), (6, "verify", &VERIFY)],
};
static INLINE: Shape = leaf(2);
static REGION: Shape = leaf(5);
static TOP_N: Shape = leaf(6);
static SHARDED: Shape = Shape { last: 2, more: &[], parts: &[(1, "inline", &INLINE), (2, "region", &REGION)] };
static STEP: Shape = Shape {
    last: 9,
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
};
pub(super) static DECODE_REQUEST: Shape =
    Shape { last: 2, more: &[], parts: &[(1, "config", &CONFIG), (2, "step", &STEP)] };
static SHARD: Shape = Shape { last: 3, more: &[], parts: &[(2, "inline", &INLINE), (3, "region", &REGION)] };
pub(super) static ATTACH_REQUEST: Shape =
    Shape { last: 2, more: &[], parts: &[(1, "rank", &leaf(5)), (2, "shard", &SHARD)] };
pub(super) static REGION_REQUEST: Shape = Shape {
    last: 3,
    more: &[110, 130],
    parts: &[
        (1, "hello", &leaf(1)),
        (2, "lease", &Shape { last: 1, more: &[130], parts: &[(130, "device", &leaf(1))] }),
        (3, "release", &leaf(2)),
        (110, "attach", &leaf(2)),
        (130, "lend", &leaf(4)),
    ],
};
static ROW: Shape = Shape { last: 6, more: &[], parts: &[(1, "params", &PARAMS), (5, "sampler_state", &STATE)] };
pub(super) static SAMPLE_REQUEST: Shape = Shape {
    last: 7,
    more: &[120],
    parts: &[(5, "default_params", &PARAMS), (6, "rows[]", &ROW), (7, "logits", &INLINE), (120, "top_n", &TOP_N)],
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
