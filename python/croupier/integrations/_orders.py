"""Orders of samplers that have a place for every sampler, with the rules of an engine that lacks some of them."""

from __future__ import annotations

from ..schema import pb

#: The order of ENGINE_ORDER_CROUPIER.
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
#: Without min_p, SGLang applies top_k and top_p to the same distribution, so a token stays if both keep it. Top_p comes
#: first, because top_k renormalizes what it leaves.
SGLANG = with_all((pb.SAMPLER_KIND_TEMPERATURE, pb.SAMPLER_KIND_TOP_P, pb.SAMPLER_KIND_TOP_K, pb.SAMPLER_KIND_MIN_P))
#: With min_p, FlashInfer applies top_k, then top_p to what that leaves, then min_p.
SGLANG_WITH_MIN_P = CROUPIER


def without_ends() -> pb.SamplingParams:
    """Parameters that turn off everything that needs tokens which end a text. They are for streams without such tokens,
    whatever the server's defaults are."""
    return pb.SamplingParams(min_eos_p=0, infill=False, length_penalty=pb.LengthPenaltyParams(factor=1), grammar=pb.GrammarParams())
