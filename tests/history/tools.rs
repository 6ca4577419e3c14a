//! Parameters with one tool each, and with all of them.

use croupier::proto::*;

/// Some tokens in a row.
pub fn pattern(token_ids: &[u32]) -> TokenSequence {
    TokenSequence { token_ids: token_ids.to_vec() }
}

/// Each tool with settings that change short texts of few tokens.
pub fn tools() -> Vec<(&'static str, SamplingParams)> {
    let p = SamplingParams::default;
    vec![
        ("DRY", SamplingParams { dry_multiplier: Some(0.8), dry_allowed_length: Some(1), ..p() }),
        (
            "DRY in a window, with breakers",
            SamplingParams {
                dry_multiplier: Some(1.5),
                dry_base: Some(1.2),
                dry_penalty_last_n: Some(12),
                dry_sequence_breakers: vec![pattern(&[4]), pattern(&[1, 2, 5])],
                ..p()
            },
        ),
    ]
}

/// All tools at once.
pub fn together() -> SamplingParams {
    let mut all = SamplingParams {
        temperature: Some(1.2),
        repetition_penalty: Some(1.1),
        frequency_penalty: Some(0.1),
        logit_bias: vec![LogitBias { token_id: 2, bias: 0.5 }],
        ..Default::default()
    };
    // A message merges as protobuf does: what is set in the later one wins, lists are put together.
    for (_, tool) in tools() {
        let bytes = prost::Message::encode_to_vec(&tool);
        prost::Message::merge(&mut all, bytes.as_slice()).unwrap();
    }
    all
}
