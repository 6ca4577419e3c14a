//! Names that other programs have for parameters and samplers, so that a mistake names what is meant, and not a
//! parameter that is merely spelt alike: `typ_p` is not `top_p`. `docs/engines.md` has the tables. The Python client
//! knows more names (`python/croupier/_meant.py`), and `python/tests/test_meant.py` compares these with them.

/// What is meant, and the other names for it.
type Names = &'static [(&'static str, &'static str)];

/// Keys of `[defaults]`, each with other programs' names.
const PARAMETERS: Names = &[
    ("temperature", "temp"),
    ("dynatemp_low", "dynatemp_min min_temp"),
    ("dynatemp_high", "dynatemp_max max_temp"),
    ("dynatemp_exponent", "temp_exponent"),
    ("typical_p", "typ_p typical"),
    ("tfs", "tfs_z"),
    ("top_n_sigma", "nsigma top_nsigma"),
    ("mirostat", "mirostat_mode"),
    ("mirostat_tau", "mirostat_ent"),
    ("mirostat_eta", "mirostat_lr"),
    ("min_keep", "min_tokens_to_keep"),
    ("xtc_ignore_token_ids", "xtc_special_tokens"),
    ("sampler_order", "samplers sampler_priority temperature_last"),
    ("repetition_penalty", "repeat_penalty rep_pen token_repetition_penalty"),
    ("frequency_penalty", "token_frequency_penalty"),
    ("presence_penalty", "token_presence_penalty"),
    (
        "penalty_last_n",
        "repeat_last_n repetition_penalty_range rep_pen_range token_repetition_range repetition_context_size",
    ),
    ("penalty_decay_n", "token_repetition_decay repetition_decay"),
    ("dry_penalty_last_n", "dry_range"),
    ("no_repeat_ngram", "no_repeat_ngram_size encoder_no_repeat_ngram_size"),
    ("length_penalty", "exponential_decay_length_penalty"),
    ("logit_bias", "token_bias embedding_bias"),
    ("allowed_token_ids", "allow_tokens"),
    ("banned_token_ids", "disallow_tokens custom_token_bans suppress_tokens ban_eos_token"),
    ("bad_words", "bad bad_words_ids"),
    ("token_ban_ranges", "begin_suppress_tokens"),
    ("forced_first_token", "forced_bos_token_id"),
    ("forced_last_token", "forced_eos_token_id"),
    ("repetition_detection", "loop_detect_window"),
    (
        "thinking_budget",
        "thinking_token_budget reasoning_budget reasoning_budget_tokens budget_tokens max_thinking_tokens",
    ),
    ("watermark", "watermarking_config watermark_config"),
    ("min_tokens", "min_new_tokens"),
    ("max_tokens", "n_predict num_predict max_new_tokens max_completion_tokens max_output_tokens"),
    ("stop_token_ids", "eos_token_id end_id"),
    ("logprobs", "n_probs logprob_token_ids"),
    ("report", "return_sampling_mask"),
    (
        "grammar",
        "json_schema regex lark gbnf structured_outputs response_format guided_decoding guided_json guided_regex \
         guided_choice guided_grammar structural_tag",
    ),
];

/// Entries of `sampler_order`, each with other programs' names.
const SAMPLERS: Names = &[
    ("temperature", "temp"),
    ("dynamic_temperature", "dynatemp"),
    ("smoothing", "quadratic_sampling"),
    ("top_n_sigma", "nsigma top_nsigma"),
    ("typical_p", "typ_p typical"),
    ("tfs", "tfs_z"),
    ("top_p", "nucleus"),
];

/// How a parameter differs from another program's, where the same number says something else.
const DIFFERS: Names = &[
    ("dry_range", "In it -1 means the whole text, and 0 turns DRY off."),
    ("repeat_last_n", "In it 0 means the whole text, not that there is no penalty."),
    ("rep_pen_range", "In it 0 means the whole text."),
    ("repetition_penalty_range", "In it 0 means the whole text. DRY has a window of its own, dry_penalty_last_n."),
];

/// Names of parameters for which no parameter has the same meaning, and what to give.
const INSTEAD: Names = &[
    ("dynatemp_range", "give both ends, dynatemp_low and dynatemp_high"),
    ("dynamic_temperature", "give both ends, dynatemp_low and dynatemp_high"),
    ("do_sample", "temperature = 0 is greedy, and any other temperature draws"),
];

/// What other programs' orders of samplers contain and orders here do not.
const BEFORE: [&str; 9] = [
    "penalties",
    "dry",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "presence_frequency_penalty",
    "encoder_repetition_penalty",
    "no_repeat_ngram",
    "logit_bias",
];

/// What to say about a key that is no parameter, if another program has it: which parameter is meant, or what to give.
pub(super) fn parameter(key: &str) -> Option<String> {
    let told = |names: Names| names.iter().find(|(name, _)| *name == key).map(|(_, told)| *told);
    if let Some(instead) = told(INSTEAD) {
        return Some(instead.to_owned());
    }
    let hint = format!("did you mean {}?", meant(PARAMETERS, key)?);
    Some(match told(DIFFERS) {
        Some(differs) => format!("{hint} {differs}"),
        None => hint,
    })
}

/// What to say about an entry of an order that is no sampler, if another program has it.
pub(super) fn sampler(name: &str) -> Option<String> {
    if BEFORE.contains(&name) {
        return Some("it always comes before the samplers, so leave it out".to_owned());
    }
    meant(SAMPLERS, name).map(|sampler| format!("did you mean {sampler}?"))
}

fn meant(names: Names, name: &str) -> Option<&'static str> {
    names.iter().find(|(_, others)| others.split(' ').any(|other| other == name)).map(|(meant, _)| *meant)
}

#[cfg(test)]
mod tests {
    use super::super::defaults::{self, NEVER};
    use super::*;
    use crate::params::Sampler;

    /// The other names, each with what is meant.
    fn others(names: Names) -> impl Iterator<Item = (&'static str, &'static str)> {
        names.iter().flat_map(|(meant, others)| others.split(' ').map(move |other| (other, *meant)))
    }

    #[test]
    fn what_is_meant_is_a_parameter_and_the_other_name_is_none() {
        let known = |key: &str| defaults::parameter(key).is_some() || NEVER.iter().any(|(never, _)| *never == key);
        for (other, meant) in others(PARAMETERS) {
            assert!(defaults::parameter(meant).is_some() && !known(other), "{other} for {meant}");
        }
        assert!(DIFFERS.iter().all(|(name, _)| meant(PARAMETERS, name).is_some()));
        assert!(INSTEAD.iter().all(|(name, _)| meant(PARAMETERS, name).is_none() && !known(name)));
    }

    #[test]
    fn what_is_meant_is_a_sampler_and_the_other_name_is_none() {
        let known = |name: &str| Sampler::ALL.iter().any(|sampler| sampler.kind_name() == name);
        for (other, meant) in others(SAMPLERS) {
            assert!(known(meant) && !known(other), "{other} for {meant}");
        }
        assert!(!BEFORE.iter().any(|name| known(name)));
    }

    #[test]
    fn no_name_means_two_things() {
        for names in [PARAMETERS, SAMPLERS] {
            let all: Vec<&str> = others(names).map(|(other, _)| other).collect();
            let different: std::collections::BTreeSet<&str> = all.iter().copied().collect();
            assert_eq!(all.len(), different.len());
        }
    }

    #[test]
    fn it_is_told() {
        assert_eq!(parameter("typ_p").as_deref(), Some("did you mean typical_p?"));
        let told = "did you mean penalty_last_n? In it 0 means the whole text, not that there is no penalty.";
        assert_eq!(parameter("repeat_last_n").as_deref(), Some(told));
        let instead = "give both ends, dynatemp_low and dynatemp_high";
        assert_eq!(parameter("dynatemp_range").as_deref(), Some(instead));
        assert_eq!(sampler("typ_p").as_deref(), Some("did you mean typical_p?"));
        assert_eq!([parameter("top_q"), sampler("topk")], [None, None]);
    }
}
