"""If a program gives a parameter by another engine's name, the error names the field with the same meaning, or says that there is none."""

import pathlib
import re

import pytest

import croupier
from croupier import pb
from croupier._meant import DIFFERS, ELSEWHERE, MEANT

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "engines.md"
#: The server's names of the same kind, for files and `--set`.
SERVER = ROOT / "src" / "config" / "meant.rs"
FIELDS = set(pb.SamplingParams.DESCRIPTOR.fields_by_name)

#: Names in the tables of docs/engines.md that are not fields here.
TABLES = {
    "temp": "temperature", "dynatemp_range": None, "dynatemp_min": "dynatemp_low", "dynatemp_max": "dynatemp_high",
    "min_temp": "dynatemp_low", "max_temp": "dynatemp_high", "temp_exponent": "dynatemp_exponent",
    "samplers": "sampler_order", "temperature_last": "sampler_order", "typ_p": "typical_p", "typical": "typical_p", "nsigma": "top_n_sigma",
    "mirostat_mode": "mirostat", "top_p_reset_ids": "top_p_reset_token_ids", "min_tokens_to_keep": "min_keep",
    "repeat_penalty": "repetition_penalty", "token_repetition_penalty": "repetition_penalty",
    "token_frequency_penalty": "frequency_penalty", "token_presence_penalty": "presence_penalty", "repeat_last_n": "penalty_last_n",
    "repetition_penalty_range": "penalty_last_n", "token_repetition_range": "penalty_last_n", "token_repetition_decay": "penalty_decay_n",
    "dry_range": "dry_penalty_last_n", "no_repeat_ngram_size": "no_repeat_ngram", "encoder_no_repeat_ngram_size": "no_repeat_ngram",
    "exponential_decay_length_penalty": "length_penalty", "embedding_bias": "logit_bias", "token_bias": "logit_bias",
    "prefix_allowed_tokens_fn": "allowed_token_ids", "allow_tokens": "allowed_token_ids", "disallow_tokens": "banned_token_ids",
    "custom_token_bans": "banned_token_ids", "suppress_tokens": "banned_token_ids", "bad": "bad_words", "bad_words_ids": "bad_words",
    "min_new_tokens": "min_tokens", "begin_suppress_tokens": "token_ban_ranges", "forced_bos_token_id": "forced_first_token",
    "forced_eos_token_id": "forced_last_token", "thinking_token_budget": "thinking_budget", "WatermarkingConfig": "watermark",
    "SynthIDTextWatermarkingConfig": "watermark", "WatermarkConfig": "watermark",
}
#: Other names on that page or in an engine.
OTHERS = {
    "rep_pen_range": "penalty_last_n", "rep_pen_slope": None, "repetition_context_size": "penalty_last_n", "filter_apply_order": "sampler_order",
    "ban_eos_token": "banned_token_ids", "penalize_nl": None, "diversity_penalty": None, "trace_decode_token_ids": None,
    "max_probability": None, "guidance_scale": None, "max_length": None, "min_length": None, "dynamic_temperature": None,
    "sampling_seed": "seed", "sampler_seed": "seed", "watermarking_config": "watermark", "tfs_z": "tfs", "n_probs": "logprobs",
    "stop": "stop_token_sequences", "stop_strings": "stop_token_sequences", "bad_words_token_ids": "bad_words", "guided_decoding": "grammar",
    "topK": "top_k", "minP": "min_p", "maxTokens": "max_tokens", "bos_token_id": None, "max_new_tokens": "max_tokens", "json_schema": "grammar", "structured_outputs": "grammar",
    "budget_tokens": "thinking_budget", "max_thinking_tokens": "thinking_budget", "reasoning_budget_tokens": "thinking_budget",
    "logprob_token_ids": "logprobs", "token_ids_logprob": "logprobs", "return_sampling_mask": "report", "repetition_decay": "penalty_decay_n",
    "mirostat_ent": "mirostat_tau", "mirostat_lr": "mirostat_eta", "num_predict": "max_tokens", "max_output_tokens": "max_tokens",
    "loop_detect_window": "repetition_detection", "stop_on_loop": "repetition_detection", "structural_tag": "grammar",
    "presence_context_size": "penalty_last_n", "frequency_context_size": "penalty_last_n", "negative_prompt": None, "cfg_negative_prompt": None,
}


def tabled():
    """The names in the two parameter tables with a column for each engine, without those that are fields here."""
    page = PAGE.read_text(encoding="utf-8")
    tables = re.findall(r"^\| here \| llama\.cpp \|.*\n\|[-|]+\n((?:\|.*\n)+)", page, re.MULTILINE)
    assert len(tables) == 3, "the tables have another form"
    # The third table, of outputs, also has settings of servers.
    cells = [cell for table in tables[:2] for row in table.splitlines() for cell in re.split(r" \| ", row.strip("| "))[1:]]
    # `_max` abbreviates a name that is written in full before it; `false` is a value.
    names = {name for cell in cells for name in re.findall(r"`(\w+)`", cell) if not name.startswith("_") and name != "false"}
    return names - FIELDS


def test_every_name_of_the_page_is_listed_here():
    found = tabled()
    assert len(found) > 40 and found <= {*TABLES, *OTHERS}, found - {*TABLES, *OTHERS}


@pytest.mark.parametrize("name, field", [*TABLES.items(), *OTHERS.items()])
def test_an_engine_s_name_leads_to_the_field_that_means_the_same(name, field):
    with pytest.raises(TypeError) as error:
        croupier.SamplingParams(**{name: 1})
    said, differs = f"SamplingParams has no field {name!r}", f" {DIFFERS[name]}" if name in DIFFERS else ""
    assert str(error.value) == said + (f"; did you mean {field!r}?{differs}" if field else "")


def test_a_number_that_says_something_else_there_is_told():
    with pytest.raises(TypeError, match="did you mean 'dry_penalty_last_n'\\? In it -1 means the whole text, and 0 turns DRY off.$"):
        croupier.SamplingParams(dry_range=0)
    with pytest.raises(TypeError, match="did you mean 'penalty_last_n'\\? In it 0 means the whole text, not that there is no penalty.$"):
        croupier.SamplingParams(repeat_last_n=0)
    assert {*DIFFERS} <= {name for name, field in MEANT.items() if field is not None}


@pytest.mark.parametrize("name, said", [
    ("n", "a sequence is one text; open several"), ("best_of", "a sequence is one text; open several"),
    ("num_return_sequences", "a sequence is one text; open several"), ("use_beam_search", "beam search over several texts is up to the worker"),
    ("num_beams", "beam search over several texts is up to the worker"), ("prompt_logprobs", "use score work for the logprobs of a prompt"),
    ("truncate_prompt_tokens", "the worker truncates a prompt"), ("skip_special_tokens", "Croupier sees only tokens"),
    ("banned_strings", "Croupier sees only tokens"), ("token_healing", "Croupier sees only tokens"),
    ("penalty_alpha", "contrastive search and DoLa need"), ("max_time", "texts have no time limit"), ("do_sample", "temperature=0 is greedy"),
])
def test_what_is_done_elsewhere_is_said(name, said):
    with pytest.raises(TypeError) as error:
        croupier.SamplingParams(**{name: 1})
    assert str(error.value).startswith(f"SamplingParams has no field {name!r}; {said}") and "did you mean" not in str(error.value)


def test_what_is_done_elsewhere_is_so_of_parameters_alone():
    assert not FIELDS & set(ELSEWHERE) and not set(MEANT) & set(ELSEWHERE)
    with pytest.raises(TypeError, match="KgwParams has no field 'n'; known: "):
        croupier.KgwParams(n=1)


def test_what_is_meant_is_there():
    grammars = set(pb.GrammarParams.DESCRIPTOR.fields_by_name)
    assert {field for field in MEANT.values() if field is not None} <= FIELDS | grammars
    assert not FIELDS & set(MEANT), "a field is meant by its own name"


def of_the_server(table):
    """One of the server's tables: what is meant, or told, by name."""
    text = SERVER.read_text(encoding="utf-8")
    body = re.search(rf"^const {table}: Names = &\[\n(.*?)^\];", text, re.MULTILINE | re.DOTALL).group(1)
    # A backslash continues a string on the next line, without its indentation.
    body = re.sub(r"\\\n\s*", "", body)
    pairs = re.findall(r'\(\s*"([^"]*)",\s*"([^"]*)",?\s*\)', body)
    assert len(pairs) == body.count("(") and len(pairs) > 2, "the table has another form"
    return pairs


def test_the_server_means_the_same_by_these_names():
    names = {name: field for field, others in of_the_server("PARAMETERS") for name in others.split()}
    assert len(names) > 50 and set(names.values()) <= FIELDS
    assert {name: MEANT.get(name, "unknown") for name in names} == names
    differs = dict(of_the_server("DIFFERS"))
    assert differs == {name: DIFFERS[name] for name in differs}
    assert not {name for name, _ in of_the_server("INSTEAD")} & {name for name, field in MEANT.items() if field is not None}


def test_the_server_means_samplers_in_an_order():
    kinds = {value.name.removeprefix("SAMPLER_KIND_").lower() for value in pb.SamplerKind.DESCRIPTOR.values}
    assert {sampler for sampler, _ in of_the_server("SAMPLERS")} <= kinds
