"""The texts of a stream: which are open, and which ones the next step opens and closes."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterable

from ._checks import MOST_64, sequence_id as checked_id, token_ids
from ._split import SPARE, Limits, apart, chunks
from ._types import Sequence
from ._wire import opened_params, opening
from .errors import Failure
from .schema import pb

#: Largest size of a token id in a message, in bytes.
_ID = 5
#: Most different grammars in one message. The server may have to compile each of them, and ends the stream if there are
#: more.
_MOST_GRAMMARS = 64


class Texts:
    """The part of a session that manages texts."""

    def __init__(self, config: pb.StreamConfig) -> None:
        self.config = config
        self.limits = Limits(pb.Limits())
        self.sequences: dict[int, Sequence] = {}
        # Texts to open, by id, in order.
        self.opening: dict[int, Sequence] = {}
        self.closing: list[int] = []
        # Texts that the current connection opened again, until this is logged.
        self.reopened: list[Sequence] = []
        # Why other texts were not opened again, until a step reports it.
        self.not_reopened: dict[int, Failure] = {}
        # Threads other than the one that takes a step may open and close texts.
        self.changing = threading.RLock()
        self.ids = 0
        # A mark that each text of this stream has. A copy of a text, in this program or another, does not have it.
        self.mark = object()

    def open(self, params: pb.SamplingParams, prompt: Iterable[int], output: Iterable[int], sequence_id: int | None,
             state: pb.SamplerState | None = None, predicted: Iterable[int] = ()) -> Sequence:
        """Opens a text. All mistakes in it are reported here, because in a step they would stop the other texts too."""
        before, tokens, ahead = token_ids("prompt", prompt), token_ids("output", output), token_ids("predicted", predicted)
        if state is not None and not isinstance(state, pb.SamplerState):
            raise TypeError(f"sampler_state is {state!r}, must be a SamplerState or a dict of its fields")
        sequence_id = None if sequence_id is None else checked_id(sequence_id)
        self._choose(params)
        with self.changing:
            return self._opened(params, before, tokens, sequence_id, state, ahead)

    def _opened(self, params: pb.SamplingParams, prompt: list[int], output: list[int], sequence_id: int | None,
                state: pb.SamplerState | None, predicted: list[int]) -> Sequence:
        if sequence_id in self.sequences:
            raise ValueError(f"sequence {sequence_id} is already open")
        if sequence_id is None and self.ids >= MOST_64:
            raise ValueError(f"no id is left after sequence_id {self.ids}; give every text a sequence_id, or none of them")
        sequence = Sequence(self.ids + 1 if sequence_id is None else sequence_id, params, tuple(prompt), output, state=state,
                            predicted=tuple(predicted), owner=self.mark, opened_with=params.SerializeToString())
        sequence.finish_reason = self._finish_reason(sequence)
        if not sequence.finish_reason:
            self._check_size(sequence)
        # The id must no longer refer to the text that had it before.
        self.not_reopened.pop(sequence.id, None)
        # This comes first, and nothing is called after it. So no other text gets the id, whatever a signal handler
        # interrupts.
        self.ids = max(self.ids, sequence.id)
        if not sequence.finish_reason:
            self.sequences[sequence.id] = sequence
            self.opening[sequence.id] = sequence
        return sequence

    def close(self, sequence: Sequence) -> None:
        with self.changing:
            if sequence.refused and self.not_reopened.get(sequence.id) is sequence.refused:
                del self.not_reopened[sequence.id]
            if self.sequences.get(sequence.id) is not sequence:
                return
            # In each case nothing is called meanwhile, so that a signal handler finds either all of it done or nothing.
            if sequence.id in self.opening:
                del self.sequences[sequence.id], self.opening[sequence.id]
            else:
                del self.sequences[sequence.id]
                self.closing += [sequence.id]

    def changes(self) -> tuple[list[Sequence], list[int]]:
        """The texts that the next step opens and closes."""
        with self.changing:
            return list(self.opening.values()), list(self.closing)

    def without(self, opening: list[Sequence], closing: list[int]) -> tuple[dict[int, Sequence], list[int]]:
        """What is left to open and close after a step that opens and closes these. A text that another thread has
        closed since is opened first."""
        taken = {text.id: text for text in opening}
        later = {number: text for number, text in self.opening.items() if taken.get(number) is not text}
        closed = [text.id for text in opening if self.opening.get(text.id) is not text]
        return later, [*self.closing[len(closing):], *closed]

    def put_back(self, opening: list[Sequence], closing: Iterable[int] = ()) -> None:
        """Puts the texts that a step should have opened and closed back for the next step."""
        with self.changing:
            self.opening = {text.id: text for text in opening if self.sequences.get(text.id) is text} | self.opening
            self.closing = [*closing, *self.closing]

    def tell_again(self, failures: dict[int, Failure]) -> None:
        """Makes the next step report these failed openings too, unless another text has the id by now."""
        with self.changing:
            self.not_reopened |= {number: why for number, why in failures.items() if number not in self.sequences}

    def told_of(self, failures: dict[int, Failure]) -> None:
        """Makes no further step report these failed openings."""
        with self.changing:
            for number, why in failures.items():
                if self.not_reopened.get(number) is why:
                    del self.not_reopened[number]

    def _choose(self, params: pb.SamplingParams) -> None:
        """Sets what the client chooses where nobody else has chosen."""
        defaults = self.config.default_params
        if not params.HasField("return_sampler_state") and not defaults.HasField("return_sampler_state"):
            # Samplers that learn from each token report what they learned. Presets and the server's defaults may turn
            # some on. Other samplers report nothing.
            params.return_sampler_state = True
        if not params.HasField("seed") and not defaults.HasField("seed"):
            # Chosen here, so that a text can continue whatever happens to the server.
            params.seed = new_seed()

    def _finish_reason(self, sequence: Sequence) -> str | None:
        """The finish reason of a text whose output has already ended, as far as that is known here. The server would
        refuse its rows."""
        own = sequence.params
        # A preset of the text takes precedence over the stream's parameters, and only the server knows its content.
        defaults = pb.SamplingParams() if own.preset else self.config.default_params
        if not sequence.tokens:
            return None
        last = sequence.tokens[-1]
        if last in (own.stop_token_ids or defaults.stop_token_ids):
            return "stop_token"
        says = next((params for params in (own, defaults) if params.HasField("ignore_eos")), None)
        ignores = says.ignore_eos if says else bool(own.preset)
        if last in self.config.eos_token_ids and not ignores:
            return "eos"
        most = (own if own.HasField("max_tokens") else defaults).max_tokens
        is_longest = 0 < most <= len(sequence.tokens)
        # If nobody here sets it, the server's defaults may. But it is never more than max_tokens.
        least = next((params.min_tokens for params in (own, defaults) if params.HasField("min_tokens")), None)
        stops = [list(stop.token_ids) for stop in own.stop_token_sequences or defaults.stop_token_sequences]
        is_long = is_longest or (least is not None and least <= len(sequence.tokens))
        if is_long and any(sequence.tokens[-len(stop):] == stop for stop in stops):
            return "stop_sequence"
        return "max_tokens" if is_longest else None

    def _check_size(self, sequence: Sequence) -> None:
        """Checks that a message has room for the text."""
        most = SPARE + _ID * (len(sequence.prompt) + len(sequence.tokens) + len(sequence.predicted)) + len(sequence.opened_with)
        if most > self.limits.message_bytes - SPARE:
            self._openings([sequence], ValueError)

    def _openings(self, sequences: list[Sequence], error: type[Exception]) -> list[tuple[list[Sequence], list[bytes]]]:
        """What opens these texts, for as many messages as needed."""
        wire = [opening(sequence) for sequence in sequences]
        most = self.limits.message_bytes - SPARE
        for sequence, one in zip(sequences, wire):
            if len(one) > most:
                tokens = len(sequence.prompt) + len(sequence.tokens) + len(sequence.predicted)
                raise error(f"sequence {sequence.id}: opening it with its {tokens} tokens takes {len(one)} bytes, "
                            f"max_message_bytes is {self.limits.message_bytes}")
        # One message may open as many texts as the stream can have. Further texts are then refused one by one, not with
        # the whole stream.
        params = [opened_params(sequence) for sequence in sequences]
        grammars = [p.grammar.SerializeToString() if p.HasField("grammar") else None for p in params]
        whole = chunks([len(one) for one in wire], most, self.limits.sequences)
        runs = [run for each in whole for run in apart(each, grammars, _MOST_GRAMMARS)]
        return [(sequences[run.start:run.stop], wire[run.start:run.stop]) for run in runs]


def new_seed() -> int:
    """A random seed."""
    return secrets.randbits(64)
