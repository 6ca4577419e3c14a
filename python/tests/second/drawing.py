"""Random parameters."""

import random

from second import orders
from second.numbers import as_f32

# In mistral.rs, min-p is off at 1.
MIN_P_OF_MISTRAL_RS = 1.0
# In their own orders, these engines have no dynamic temperature.
NOT_DYNAMIC = {"VLLM", "TRANSFORMERS", "SGLANG", "EXLLAMA_V3", "MLX", "TENSORRT_LLM", "MISTRAL_RS"}


# In their own orders, these engines have only mirostat 2.
MIROSTAT_2 = {"TEXT_GENERATION_WEBUI", "EXLLAMA"}


class Drawing:
    """Random parameters of a row with this vocabulary."""

    def __init__(self, seed, vocab, eos):
        self.random, self.vocab, self.eos = random.Random(seed), vocab, eos

    def chance(self, probability):
        return self.random.random() < probability

    def between(self, low, high):
        return as_f32(self.random.uniform(low, high))

    def one_of(self, *values):
        return self.random.choice(values)

    def or_between(self, values, low, high):
        """One of these values, or any number in the range."""
        return self.random.choice([*values, self.between(low, high)])

    def tokens(self, count):
        """Random tokens, often from the same few, so that texts repeat themselves."""
        return [self.random.randrange(min(self.vocab, 4 if self.chance(0.7) else self.vocab)) for _ in range(count)]

    def token_set(self, count):
        return sorted({self.random.randrange(self.vocab) for _ in range(count)})

    def steering(self, probability=0.15):
        """Bans, biases and forced tokens."""
        own, whole = self.random, self.random.randint
        choices = {
            "logit_bias": lambda: [(token, self.between(-3, 3)) for token in self.token_set(4)],
            "sequence_bias": lambda: [(self.tokens(whole(1, 3)), self.between(-3, 3)) for _ in range(8)],
            "bad_words": lambda: [self.tokens(whole(1, 3)) for _ in range(4)],
            "banned_token_ids": lambda: self.token_set(3),
            "allowed_token_ids": lambda: self.token_set(max(2, self.vocab // 2)),
            "min_tokens": lambda: whole(1, 20),
            "stop_token_ids": lambda: self.token_set(3),
            "token_ban_ranges": lambda: [(self.token_set(3), whole(0, 20), whole(1, 20)) for _ in range(2)],
            "no_repeat_ngram": self.ngrams,
            "ignore_eos": lambda: True,
        }
        if self.eos:
            choices["length_penalty"] = lambda: (whole(0, 15), self.or_between([1.1, 0.9, 2.0], 0.5, 1.5))
        given = {name: value() for name, value in choices.items() if own.random() < probability}
        if self.chance(0.03):
            given["forced_first_token"] = own.randrange(self.vocab)
        if self.chance(0.05):
            given["max_tokens"] = given.get("min_tokens", 0) + whole(1, 30)
            if self.chance(0.5):
                given["forced_last_token"] = own.randrange(self.vocab)
        return given

    def ngrams(self):
        given = {"size": self.random.randint(1, 4), "prompt_size": self.random.randint(0, 3)}
        if self.chance(0.4):
            given["window"] = self.random.randint(1, 20)
        if self.chance(0.4):
            given["whitelist_token_ids"] = self.token_set(3)
        return given

    def penalties(self, probability=0.2):
        given = {}
        for name, values, low, high in (
                ("repetition_penalty", [1.1, 1.3, 0.8, 2.0], 0.5, 3), ("encoder_repetition_penalty", [1.1, 0.8], 0.5, 3),
                ("frequency_penalty", [0.1, 0.5, -1.0], -2, 2), ("presence_penalty", [0.1, 0.5, -1.0], -2, 2)):
            if self.chance(probability):
                given[name] = self.or_between(values, low, high)
        if self.chance(probability):
            given["penalties_count_prompt"] = self.chance(0.6)
        if self.chance(probability):
            given["subtract_penalties_first"] = self.chance(0.6)
        if self.chance(probability):
            given["bias_after_penalties"] = self.chance(0.6)
        if self.chance(probability):
            given.update(penalty_last_n=self.random.randint(1, 15), penalty_decay_n=self.random.randint(0, 15))
        if self.chance(probability / 2):
            given["prompt_ignore_length"] = self.random.randint(1, 15)
        return {**given, **(self.dry() if self.chance(probability) else {})}

    def dry(self):
        whole = self.random.randint
        given = dict(dry_multiplier=self.or_between([0.8, 1.0], 0.1, 2), dry_base=self.or_between([1.75, 1.0, 2.0], 1, 3),
                     dry_allowed_length=self.one_of(1, 2, 2, 3))
        bounds = dict(
            dry_penalty_last_n=whole(0, 20), dry_sequence_breakers=[self.tokens(whole(1, 2)) for _ in range(2)],
            dry_sequence_breaker_texts=[format(whole(2, 31), "b")[1:] for _ in range(whole(1, 2))],
            dry_max_ngram=given["dry_allowed_length"] + whole(1, 3), dry_max_occurrences=whole(1, 4), dry_early_exit_match_len=whole(1, 4))
        return {**given, **{name: value for name, value in bounds.items() if self.chance(0.25)}}

    def sampler(self, name, engine):
        """Parameters that turn this sampler on."""
        ignored = {"xtc_ignore_token_ids": self.token_set(max(3, self.vocab // 2))} if engine == "TEXT_GENERATION_WEBUI" else {}
        curve = {} if engine == "EXLLAMA" else {"smoothing_curve": self.or_between([1.0, 1.5, 3.0, 4.0], 1, 5)}
        one, near = self.one_of, self.or_between
        return {
            "temperature": lambda: {"temperature": near([0.3, 0.7, 1.3, 2.0, 5.0, 0.05], 0.1, 3)},
            "min_eos_p": lambda: {"min_eos_p": near([0.1, 0.3, 0.01], 0, 1)},
            "smoothing": lambda: {"smoothing_factor": near([0.1, 0.5, 1.0], 0, 2), **curve},
            "top_n_sigma": lambda: {"top_n_sigma": near([0.5, 1.0, 2.0, 3.0], 0, 3)},
            "min_k": lambda: {"min_k": True, "min_k_tau": near([0.0, 3.0, 30.0, 100.0], 0, 10)},
            "top_h": lambda: {"top_h": near([0.1, 0.5, 0.9, 1.0], 0, 1)},
            "top_k": lambda: {"top_k": one(1, 2, 3, 5, 10, 40, 100)},
            "top_p": lambda: {"top_p": near([0.0, 0.1, 0.5, 0.9, 0.99], 0, 1)},
            "min_p": lambda: {"min_p": near([1.0, 0.5, 0.1, 0.05, 0.01], 0, 1)},
            "typical_p": lambda: {"typical_p": near([0.0, 0.2, 0.5, 0.9, 0.95], 0, 1)},
            "tfs": lambda: {"tfs": near([0.0, 0.5, 0.9, 0.95], 0, 1)},
            "top_a": lambda: {"top_a": near([0.1, 0.5, 1.0, 2.0, 10.0], 0, 1)},
            "epsilon_cutoff": lambda: {"epsilon_cutoff": near([0.01, 0.001, 0.1, 1.0], 0, 0.2)},
            "eta_cutoff": lambda: {"eta_cutoff": near([0.01, 0.001, 0.1, 1.0], 0, 0.2)},
            "p_less": lambda: {"p_less": True, "p_less_norm": self.chance(0.5)},
            "xtc": lambda: {
                "xtc_probability": near([0.5, 1.0, 0.1], 0, 1), "xtc_threshold": near([0.0, 0.1, 0.01, 0.3], 0, 0.3), **ignored},
            "mirostat": lambda: {
                "mirostat": one(1, 2), "mirostat_tau": near([0.0, 1.0, 3.0, 5.0], 0, 8), "mirostat_eta": one(0.1, 1.0, 0.0)},
            "adaptive_p": lambda: {"adaptive_target": near([0.0, 0.5, 1.0], 0, 1), "adaptive_decay": one(0.0, 0.9, 0.99, 0.5)},
            "infill": lambda: {"infill": True},
            "skew": lambda: {"skew": near([1.0, -1.0, 0.5, 10.0, -10.0], -3, 3)},
        }[name]()

    def samplers(self, engine, is_own_order, probability):
        """Parameters of some samplers of the order. An order of the text's own has a place for every sampler."""
        names = self.names(engine, is_own_order)
        given = {"engine": engine}
        for name in names:
            if self.chance(probability):
                given.update(self.sampler(name, engine))
        given.update(self.of_temperature(engine, is_own_order))
        if is_own_order or engine == "CROUPIER":
            given.update(self.of_few_engines(given))
        if is_own_order:
            self.random.shuffle(names)
            if self.chance(0.3):
                names.insert(self.random.randrange(len(names) + 1), "dynamic_temperature")
            given["sampler_order"] = names
        elif engine in MIROSTAT_2:
            given.update({"mirostat": 2} if "mirostat" in given else {})
        if engine == "MISTRAL_RS" and self.chance(0.2):
            given["min_p"] = MIN_P_OF_MISTRAL_RS
        return given

    def names(self, engine, is_own_order):
        """The names of this engine's samplers."""
        names = orders.ORDERS["CROUPIER" if is_own_order else engine]
        if not is_own_order and self.chance(0.3):
            names = {**orders.WITH_MIROSTAT, **orders.WITH_MIN_P}.get(engine, names)
        impossible = {"dynamic_temperature"} | (set() if self.eos else {"min_eos_p", "infill"})
        if engine == "TEXT_GENERATION_WEBUI":
            # In this engine the first two draw the token, so nothing may come after them.
            impossible |= {"adaptive_p", "mirostat", "xtc"} - {"xtc" if is_own_order else self.one_of("adaptive_p", "mirostat", "xtc")}
        return [name for name in names.split() if name not in impossible]

    def of_temperature(self, engine, is_own_order):
        given = {}
        if (is_own_order or engine not in NOT_DYNAMIC) and self.chance(0.15):
            high = self.between(0.5, 3)
            low, exponent = self.or_between([0.0], 0, high), self.one_of(0.0, 1.0, 2.0, 0.5)
            given = dict(dynatemp_high=high, dynatemp_low=low, dynatemp_exponent=exponent)
        elif (is_own_order or engine == "CROUPIER") and self.chance(0.1):
            given = dict(temperature_end=self.between(0.2, 3), temperature_tokens=self.random.randint(1, 40))
        elif self.chance(0.06):
            given = dict(temperature=self.one_of(0.0, 0.01, 1e-4))
        return given

    def of_few_engines(self, given):
        """Parameters that most engines lack."""
        more = {}
        if "xtc_probability" in given and self.chance(0.5):
            more = dict(xtc_ignore_token_ids=self.token_set(3), xtc_expected=self.chance(0.5))
        if "top_p" in given and self.chance(0.3):
            more.update(top_p_decay=self.or_between([0.9, 0.0], 0.5, 1), top_p_min=self.or_between([0.0, 0.3], 0, 0.5),
                        top_p_reset_token_ids=self.token_set(2), top_p=self.one_of(given["top_p"], 1.0))
        return {**more, **({"min_keep": self.one_of(2, 3, 5, 20)} if self.chance(0.1) else {})}

    def mark(self, kind):
        """Parameters of a watermark."""
        one, whole = self.one_of, self.random.randint
        key = self.random.getrandbits(one(8, 40, 64))
        if kind == "kgw":
            given, choices = {"hashing_key": key}, dict(
                seeding_scheme=2, context_width=whole(1, 8), greenlist_ratio=self.between(0.001, 0.999), bias=self.between(0, 10))
        elif kind == "gumbel":
            given, choices = {"key": key}, dict(context_width=one(1, 1, 2, 3, 8), context_history_size=one(0, 1, 3, 16384))
        else:
            given, choices = {"keys": [self.random.getrandbits(64) for _ in range(one(1, 3, 20))]}, dict(
                ngram_len=one(2, 2, 3, 16), context_history_size=one(0, 1, 3, 16384), sampling_table_size=one(2, 7, 100, 1024),
                sampling_table_seed=self.random.getrandbits(32), skip_first_ngram_calls=True)
        return {kind: {**given, **{name: value for name, value in choices.items() if self.chance(0.4)}}}
