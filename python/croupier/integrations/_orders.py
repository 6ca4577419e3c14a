"""Orders of samplers in which each has a place, with the rules of an engine that lacks some of them."""

from __future__ import annotations

from ..schema import pb

#: That of ENGINE_ORDER_CROUPIER.
CROUPIER: tuple[int, ...] = tuple(getattr(pb, f"SAMPLER_KIND_{name.upper()}") for name in (
    "min_eos_p temperature smoothing top_n_sigma min_k top_h top_k top_p min_p typical_p tfs top_a epsilon_cutoff eta_cutoff p_less xtc mirostat "
    "infill adaptive_p skew").split())


def with_all(own: tuple[int, ...]) -> tuple[int, ...]:
    """An engine's samplers in its own order, and the others where Croupier's default order has them."""
    left = iter(own)
    return tuple(next(left) if kind in own else kind for kind in CROUPIER)


#: Transformers has its samplers in the order of Croupier's default.
TRANSFORMERS = CROUPIER
VLLM = with_all((pb.SAMPLER_KIND_TEMPERATURE, pb.SAMPLER_KIND_MIN_P, pb.SAMPLER_KIND_TOP_K, pb.SAMPLER_KIND_TOP_P))
#: Where it needs no min_p SGLang cuts by top_k and top_p of one distribution: a token stays where both keep it. Top_p goes first, since
#: top_k renormalizes what it leaves.
SGLANG = with_all((pb.SAMPLER_KIND_TEMPERATURE, pb.SAMPLER_KIND_TOP_P, pb.SAMPLER_KIND_TOP_K, pb.SAMPLER_KIND_MIN_P))
#: Where it does, FlashInfer has top_k, top_p of what that leaves, and min_p.
SGLANG_WITH_MIN_P = CROUPIER


def without_ends() -> pb.SamplingParams:
    """Parameters that turn off what needs tokens that end a text: for streams that have none, whatever the server's defaults say."""
    return pb.SamplingParams(min_eos_p=0, infill=False, length_penalty=pb.LengthPenaltyParams(factor=1), grammar=pb.GrammarParams())
