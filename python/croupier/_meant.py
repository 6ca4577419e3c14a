"""Names that other programs use for parameters, to help people who come from them. docs/engines.md has the tables.
Similar names often have different meanings: `dry_range` is not `dry_base`."""

from __future__ import annotations

_NAMES: dict[str | None, str] = {
    # The draw and its filters.
    "temperature": "temp",
    "dynatemp_low": "dynatemp_min min_temp",
    "dynatemp_high": "dynatemp_max max_temp",
    "dynatemp_exponent": "temp_exponent",
    "typical_p": "typ_p typical",
    "tfs": "tfs_z",
    "top_n_sigma": "nsigma top_nsigma",
    "mirostat": "mirostat_mode",
    "mirostat_tau": "mirostat_ent",
    "mirostat_eta": "mirostat_lr",
    "top_p_reset_token_ids": "top_p_reset_ids",
    "min_keep": "min_tokens_to_keep",
    "xtc_ignore_token_ids": "xtc_special_tokens",
    "sampler_order": "samplers sampler_priority temperature_last filter_apply_order",
    "seed": "sampling_seed sampler_seed random_seed",
    # Penalties.
    "repetition_penalty": "repeat_penalty rep_pen token_repetition_penalty",
    "frequency_penalty": "token_frequency_penalty",
    "presence_penalty": "token_presence_penalty",
    "penalty_last_n": "repeat_last_n repetition_penalty_range rep_pen_range token_repetition_range repetition_context_size "
                      "presence_context_size frequency_context_size",
    "penalty_decay_n": "token_repetition_decay repetition_decay",
    "dry_penalty_last_n": "dry_range",
    "no_repeat_ngram": "no_repeat_ngram_size encoder_no_repeat_ngram_size",
    "length_penalty": "exponential_decay_length_penalty",
    # What forbids, favours or forces tokens.
    "logit_bias": "token_bias embedding_bias",
    "allowed_token_ids": "allow_tokens prefix_allowed_tokens_fn",
    "banned_token_ids": "disallow_tokens custom_token_bans suppress_tokens ban_eos_token",
    "bad_words": "bad bad_words_ids bad_words_token_ids",
    "token_ban_ranges": "begin_suppress_tokens",
    "forced_first_token": "forced_bos_token_id",
    "forced_last_token": "forced_eos_token_id",
    "repetition_detection": "loop_detect_window stop_on_loop",
    "thinking_budget": "thinking_token_budget reasoning_budget reasoning_budget_tokens budget_tokens max_thinking_tokens post_thinking",
    "watermark": "watermarking_config watermark_config WatermarkingConfig WatermarkConfig SynthIDTextWatermarkingConfig",
    # Length, ends, and what is reported.
    "min_tokens": "min_new_tokens",
    "max_tokens": "max_new_tokens max_completion_tokens max_output_tokens n_predict num_predict",
    "stop_token_ids": "eos_token_id end_id",
    "stop_token_sequences": "stop stop_strings",
    "logprobs": "n_probs logprob_token_ids token_ids_logprob",
    "report": "return_sampling_mask",
    # Grammars, and their own fields.
    "grammar": "json_schema regex lark gbnf structured_outputs response_format guided_decoding guided_json guided_regex guided_choice guided_grammar "
               "structural_tag start_sequences start_position",
    "json_schema": "json",
    "gbnf": "ebnf",
    "choices": "choice",
    # A range around the temperature, a switch, a length that includes the prompt; and what is missing here according to
    # docs/engines.md.
    None: """dynatemp_range dynamic_temperature max_length min_length
          rep_pen_slope normalize trace_decode_token_ids filter_prefer_eos remove_invalid_values renormalize_logits guidance_scale cfg_scale
          cfg_negative_prompt negative_prompt negative_prompt_ids
          max_probability beam_search_diversity_rate diversity_penalty penalize_nl pad_token_id bos_token_id n_keep""",
}

#: For a name that is not a field: the field with the same meaning. None if there is none, because similar names mean
#: something else.
MEANT = {name: field for field, names in _NAMES.items() for name in names.split()}

#: For such a name: how the field differs, if a number means something else there or the meaning is that of a part.
DIFFERS = {
    "dry_range": "In it -1 means the whole text, and 0 turns DRY off.",
    "repeat_last_n": "In it 0 means the whole text, not that there is no penalty.",
    "rep_pen_range": "In it 0 means the whole text.",
    "repetition_penalty_range": "In it 0 means the whole text. DRY has a window of its own, dry_penalty_last_n.",
    "presence_context_size": "It holds for all three penalties.",
    "frequency_context_size": "It holds for all three penalties.",
    "loop_detect_window": "It counts how often a pattern comes, whatever its length.",
    "stop_on_loop": "It counts how often a pattern comes, whatever its length.",
    "logprob_token_ids": "Give them as its token_ids.",
    "token_ids_logprob": "Give them as its token_ids.",
    "return_sampling_mask": "Give it max_surviving_token_ids.",
    "structural_tag": "See docs/structured-output.md#tool-calls.",
    "stop": "It takes token ids; searching the output for text is up to the worker.",
    "stop_strings": "It takes token ids; searching the output for text is up to the worker.",
}

_ELSEWHERE = {
    "a sequence is one text; open several with the same prompt, or use `stream.fork`": "n best_of num_return_sequences",
    "beam search over several texts is up to the worker; `logprobs` report the likeliest tokens":
        "use_beam_search beam_search beam_width num_beams num_beam_groups",
    "use score work for the logprobs of a prompt: `pb.Work(score=pb.ScoreWork(token_ids=prompt[1:]))`, see docs/clients.md":
        "prompt_logprobs logprob_start_len",
    "the worker truncates a prompt before it opens the text": "truncate_prompt_tokens",
    "Croupier sees only tokens; turning them into text is up to the worker":
        "banned_strings token_healing detokenize skip_special_tokens spaces_between_special_tokens include_stop_str_in_output stop_regex",
    "contrastive search and DoLa need a model's inner layers, which are not sent": "penalty_alpha dola_layers",
    "texts have no time limit; the worker closes them when their time is up": "max_time t_max_predict_ms",
    "temperature=0 is greedy, any other temperature draws": "do_sample greedy",
}

#: For a name that no field has or resembles: what to use instead.
ELSEWHERE = {name: said for said, names in _ELSEWHERE.items() for name in names.split()}
