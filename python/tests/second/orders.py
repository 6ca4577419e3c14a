"""The orders and rules of engines: docs/sampling.md, Order, and docs/engines.md, Engines' rules."""

from second.numbers import as_f32

ORDERS = {
    "CROUPIER": "min_eos_p temperature smoothing top_n_sigma min_k top_h top_k top_p min_p typical_p tfs top_a epsilon_cutoff eta_cutoff "
                "p_less xtc mirostat infill adaptive_p skew",
    "LLAMA_CPP": "top_n_sigma top_k typical_p top_p min_p xtc infill temperature adaptive_p",
    "VLLM": "temperature min_p top_k top_p",
    "TRANSFORMERS": "min_eos_p temperature top_h top_k top_p min_p typical_p epsilon_cutoff eta_cutoff",
    "TEXT_GENERATION_WEBUI": "top_n_sigma temperature dynamic_temperature smoothing top_k top_p typical_p epsilon_cutoff eta_cutoff tfs "
                             "top_a min_p adaptive_p mirostat xtc",
    "EXLLAMA": "smoothing temperature top_k top_p top_a min_p tfs typical_p mirostat dynamic_temperature xtc skew",
    "SGLANG": "temperature top_p top_k",
    "KOBOLD_CPP": "top_k top_a tfs typical_p top_p min_p temperature smoothing top_n_sigma xtc adaptive_p",
    "EXLLAMA_V3": "temperature min_p top_k top_p xtc adaptive_p",
    "MLX": "top_p min_p xtc top_k temperature",
    "TENSORRT_LLM": "temperature min_p top_k top_p",
    "MISTRAL_RS": "temperature top_k top_p min_p",
}
WITH_MIROSTAT = {"LLAMA_CPP": "temperature mirostat", "KOBOLD_CPP": "temperature smoothing mirostat"}
WITH_MIN_P = {"SGLANG": "temperature top_k top_p min_p"}

# docs/history.md, Windows of penalties.
COUNT_PROMPT = {"LLAMA_CPP", "TEXT_GENERATION_WEBUI", "EXLLAMA", "KOBOLD_CPP", "EXLLAMA_V3", "MLX", "TENSORRT_LLM"}
# docs/engines.md, Engines' rules.
DRY_AFTER_PENALTIES = {"LLAMA_CPP", "TEXT_GENERATION_WEBUI", "EXLLAMA", "EXLLAMA_V3"}
BIAS_AFTER_PENALTIES = {"EXLLAMA", "SGLANG", "MISTRAL_RS"}
SUBTRACT_FIRST = {"SGLANG", "MISTRAL_RS"}
TOP_K_KEEPS_EQUAL = {"TRANSFORMERS", "TEXT_GENERATION_WEBUI", "TENSORRT_LLM"}
TYPICAL_P_KEEPS_EQUAL = {"TRANSFORMERS", "TEXT_GENERATION_WEBUI"}
TYPICAL_P_ABOVE = {"LLAMA_CPP", "KOBOLD_CPP"}
XTC_EXPECTED = {"EXLLAMA", "EXLLAMA_V3"}
FIRST_TOKENS = {"KOBOLD_CPP": 3000}


def order(params):
    """The names of the samplers in order, including those that are off."""
    if params.sampler_order:
        return list(params.sampler_order)
    if params.mirostat and params.engine in WITH_MIROSTAT:
        return WITH_MIROSTAT[params.engine].split()
    if params.min_p > 0 and params.engine in WITH_MIN_P:
        return WITH_MIN_P[params.engine].split()
    return ORDERS[params.engine].split()


def steps(params):
    """The names of the samplers that are on, in order."""
    samplers = order(params)
    return [name for name in samplers if is_on(name, params, "dynamic_temperature" in samplers)]


# Samplers whose parameter has another name, or whose "off" value is not 0 (docs/sampling.md, Samplers, column "off").
ON = {
    "dynamic_temperature": lambda params: params.dynatemp_high > 0, "smoothing": lambda params: params.smoothing_factor > 0,
    "top_p": lambda params: params.top_p < 1 or params.top_p_decay < 1, "typical_p": lambda params: params.typical_p < 1,
    "tfs": lambda params: params.tfs < 1, "xtc": lambda params: params.xtc_probability > 0, "skew": lambda params: params.skew != 0,
    "adaptive_p": lambda params: params.adaptive_target >= 0,
    "min_p": lambda params: params.min_p > 0 and not (params.engine == "MISTRAL_RS" and params.min_p == 1)}


def is_on(name, params, has_place_for_dynamic):
    """Whether a sampler is on. A sampler that is off is not a step (docs/numbers.md, Draw)."""
    if name == "temperature":
        is_dynamic = params.dynatemp_high > 0 and not has_place_for_dynamic
        return params.temperature != 1 or params.temperature_tokens > 0 or is_dynamic
    return ON[name](params) if name in ON else getattr(params, name, 0) > 0


def temperature(params, position):
    """The temperature at a position, 0 if it is greedy (docs/numbers.md, Chains; docs/engines.md, Engines' rules)."""
    value, engine = params.temperature, params.engine
    if params.temperature_tokens:
        end = params.temperature_end
        share = position / params.temperature_tokens
        value = as_f32(value + (end - value) * share) if share < 1 else end
    elif (engine == "EXLLAMA" and value < 0.01) or (engine == "TENSORRT_LLM" and value <= as_f32(1e-4)):
        return 0.0
    return as_f32(0.01) if engine == "VLLM" and 0 < value < as_f32(0.01) else value
