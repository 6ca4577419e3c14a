"""What the clients for threads and for asyncio share: everything that needs no socket."""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ._access import access_of, is_distrusted
from ._arrays import as_rows, in_dtype, narrowing
from ._call import is_gone, is_too_late, may_pass
from ._checks import header, listed, text, token_ids, whole
from ._options import AccessOptions, StreamOptions, seconds
from ._masks import masked
from ._params import message, params_of
from ._rows import LOG
from ._session import Session
from ._status import failed, said
from ._texts import new_seed
from ._top_n import TopN, largest
from ._types import Rows, Sequence, given_rows
from ._wire import opened_params
from .errors import CroupierError
from .params import SamplingFields
from .schema import pb

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._forms import Dtype, Masks, Numbers, Parameters


#: How long to stay with a server that asks to leave if no other server was found, before looking again: at least this
#: many seconds, and at least this many times as long as the search took.
_STAY_SECONDS, _STAY_TIMES = 1.0, 5
#: The first and the longest pause between two attempts to connect, in seconds.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0

#: The message of `result` if there is no step.
NO_STEP = ("no step was submitted, or the submitted steps were given up; a step that was cancelled or interrupted had not begun yet, or was "
           "already complete: the number of its texts' tokens says which")


def backing_off() -> Iterator[float]:
    """Pauses between attempts to connect. The upper bound doubles each time, and the pauses are random, so that the
    workers of a server that went away do not all come back at once."""
    most = _FIRST_PAUSE
    while True:
        yield random.uniform(most / 2, most)
        most = min(2 * most, _LONGEST_PAUSE)


class Front:
    """A stream's options, texts and rows. The options are documented at `croupier.Stream`."""

    def __init__(self, address: str, vocab_size: int, *, dtype: Dtype = "f32", model: str = "",
                 eos_token_ids: Iterable[int] = (), default_params: Parameters | None = None, data_path: str = "auto",
                 max_rows: int = 64, slots: int = 2, reconnect_within: float = 30.0,
                 vocab_shards: Iterable[int] | None = None, draft_vocabulary: Iterable[int] | None = None,
                 device: str | None = None, traceparent: str = "",
                 **access: Unpack[AccessOptions]) -> None:
        self._access = access_of("connect", address, access, StreamOptions)
        defaults = None if default_params is None else params_of(default_params, {})
        self._session = Session(vocab_size, dtype, text("model", model), eos_token_ids, defaults, data_path, max_rows, slots, vocab_shards,
                                draft_vocabulary, device)
        self._address, self._patience = address, seconds("reconnect_within", reconnect_within)
        self._is_down = self._is_ended = False
        # Whether an answer is being taken in.
        self._is_torn = False
        # Whether a call ended because messages took too long, and no step was answered since.
        self._is_late = False
        self._has_served = False
        # Whether the user was told that the stream waits for a server, and since when the stream has been reconnecting.
        self._is_told, self._since = False, math.inf
        self._traceparent = header("traceparent", text("traceparent", traceparent))
        # The time from which another server may be looked for. For a Unix socket there is no other server.
        self._leave_from = math.inf if address.startswith(("unix:", "unix-abstract:")) else 0.0
        self._owner = os.getpid()

    def _is_forked(self) -> bool:
        """Whether this is a fork of the process that owns the stream. A fork must not use the stream."""
        return os.getpid() != self._owner

    def _is_to_leave(self) -> bool:
        """Whether to look for another server now."""
        return self._session.may_leave() and time.monotonic() >= self._leave_from

    def _stay(self, began: float, why: str) -> None:
        """Stays with the server, because no other one was found."""
        now = time.monotonic()
        self._leave_from = now + max(_STAY_SECONDS, _STAY_TIMES * (now - began))
        LOG.info("the server at %s asks its clients to leave, but no other server was found yet: %s", self._address, why)

    def _given_up(self, why: BaseException) -> CroupierError:
        """Gives up the stream's connection after an error. The next step connects again, because nothing that this
        needs is lost."""
        self._session.give_up()
        self._is_down = True
        self._since, self._is_told = math.inf, False
        return failed(f"{said(why)}; steps without a result are given up, texts are unchanged, and the next step connects again", why)

    def _is_worth_reconnecting(self, error: BaseException) -> bool:
        """Whether what is lost may be done on another connection. If messages took too long, it gets one, but not
        twice without an answer in between: the same messages would take too long again, for ever."""
        if not is_too_late(error):
            return is_gone(error)
        is_again, self._is_late = self._is_late, True
        return not is_again

    def _is_worth_waiting(self, cause: BaseException | None) -> bool:
        """Whether connecting again may work later. Before the first connection, a certificate that is not trusted is a
        mistake in the options. Later, certificates may be in the middle of being replaced, like the file of their
        authorities."""
        return may_pass(cause) and (self._has_served or not is_distrusted(cause))

    def _say_lost(self, why: str) -> None:
        """Logs that the connection is lost. Without a reason, it was given up here on purpose, and this is logged only
        if no other server is found at once."""
        self._since = min(self._since, time.monotonic())
        if why:
            self._say_once("connection to %s lost: %s; reconnecting for up to %g s", self._address, why, self._patience)

    def _say_waiting(self, why: str) -> None:
        """Logs that the stream waits for a server, because a mistake in the address looks the same at first."""
        yet = "any more" if self._has_served else "yet"
        self._say_once("%s does not serve %s; waiting for up to %g s: %s", self._address, yet, self._patience, why)

    def _say_once(self, said: str, *about: object) -> None:
        """Logs something once, until the stream is connected or given up."""
        if not self._is_told:
            self._is_told = True
            LOG.warning(said, *about)

    def _say_connected(self) -> None:
        """Logs that the stream is connected again, if it was lost."""
        since, self._since, self._is_told = self._since, math.inf, False
        # Texts that the server refused are no longer open. Their rows say why.
        opened, self._session.reopened = [text for text in self._session.reopened if not text.refused], []
        if since < math.inf:
            LOG.info("connected to %s again after %.3g s, %d texts opened again", self._address, time.monotonic() - since, len(opened))

    def _check_not_ended(self) -> None:
        if self._is_ended:
            raise CroupierError("the stream was ended; connect a new one")
        if self._is_forked():
            raise CroupierError("the stream belongs to the parent process of this fork; connect a new one here")

    def _check_whole(self) -> None:
        self._check_not_ended()
        if self._is_torn:
            raise CroupierError("the stream was interrupted while it processed an answer, and texts may have only part of it; connect again")

    @property
    def data_path(self) -> str:
        """How logits are sent: "shared_memory", "device_memory" or "inline"."""
        region = self._session.region
        if region is None:
            return "inline"
        return "device_memory" if region.on_device else "shared_memory"

    @property
    def data_path_reason(self) -> str:
        """Why logits are sent, or were sent, in messages: shared memory was not available, or `rows` was called for
        more than `max_rows`. Empty if neither happened. It is also logged to "croupier", at level INFO."""
        return self._session.reason

    @property
    def shard_token(self) -> str:
        """The token with which the other ranks attach, see `attach`. After a reconnect it is a new one.

        Whoever has it can send logits for this stream, so give it only to the stream's ranks.
        """
        return self._session.shard_token(self._address)

    @property
    def sequences(self) -> dict[int, Sequence]:
        """The open sequences, by id."""
        return self._session.sequences

    def open(self, params: Parameters | None = None, *, prompt: Iterable[int] = (), output: Iterable[int] = (),
             sequence_id: int | None = None, sampler_state: pb.SamplerState | Mapping[str, Any] | None = None,
             predicted: Iterable[int] = (), **fields: Unpack[SamplingFields]) -> Sequence:
        """Opens a new text, or one that continues after `output`. Its parameters are a `SamplingParams`, a message of
        the wire, or fields by name. Fields take precedence over those of `params`.

        sampler_state: with `output`, what its samplers remembered after these tokens: `state` of the sequence that drew
        them, a `SamplerState` or a dict of its fields. Without it, mirostat and adaptive-p start again.
        predicted: with a proposer "ngram" or "suffix", tokens that the output may repeat, in whole or in parts. They are
        drafted as if the prompt had been continued with them before, and with the acceptance rules "rejection" and
        "block" they change no token.

        The text is opened with the next step.
        """
        # This does not check the connection, because a text may be opened before there is one, and during a step.
        Front._check_not_ended(self)
        state: pb.SamplerState | None = message("SamplerState", sampler_state) if isinstance(sampler_state, Mapping) else sampler_state
        params = params_of(params, fields, self._session.config.default_params)
        return self._session.open(params, prompt, output, sequence_id, state, predicted)

    def fork(self, sequence: Sequence, *, output: Iterable[int] | None = None, sequence_id: int | None = None,
             sampler_state: pb.SamplerState | Mapping[str, Any] | None = None, predicted: Iterable[int] | None = None,
             **fields: Unpack[SamplingFields]) -> Sequence:
        """Opens a new text with the prompt, parameters and tokens of a text of this stream. That text stays unchanged
        and may have ended. `fields` take precedence over its parameters. Without a `seed` among them the new text gets
        another seed, so the two continue differently.

        output: the new text's tokens, in place of those so far: fewer, to go back (`text.tokens[:-5]`), or more, if the
        model had no choice in them (`text.tokens + forced`). Penalties, stops and grammars treat them as drawn.
        sampler_state: what its samplers remember. Without it, it is copied from the text if `output` begins with all of
        the text's tokens. Otherwise, or with `{}`, mirostat and adaptive-p start again. `fields` that turn these
        samplers off need `{}`, because there is nothing to remember.
        predicted: as for `open`. Without it, what was predicted of the text. `fields` without a proposer need `[]`.

        The text is opened with the next step. It inherits no drafts, nor what the server knows about the acceptance of
        the text's drafts. Raises `ValueError` while a step with the text is under way: take its result first. Call it
        in the thread that takes the text's steps.
        """
        self._check_own(sequence)
        self._session.check_forked(sequence)
        tokens = list(sequence.tokens) if output is None else token_ids("output", output)
        params = params_of(opened_params(sequence), fields, self._session.config.default_params)
        if "seed" not in fields:
            params.seed = new_seed()
        if sampler_state is None and tokens[:len(sequence.tokens)] == sequence.tokens:
            sampler_state = sequence.state
        return self.open(params, prompt=sequence.prompt, output=tokens, sequence_id=sequence_id, sampler_state=sampler_state,
                         predicted=sequence.predicted if predicted is None else predicted)

    def close(self, sequence: Sequence) -> None:
        """Closes a text that has not ended, with the next step. Texts with a `finish_reason` are closed already."""
        self._check_own(sequence)
        self._session.close(sequence)

    def _check_own(self, sequence: Sequence) -> None:
        if not isinstance(sequence, Sequence):
            raise TypeError(f"sequence is {sequence!r}, must be a Sequence that `open` returned")
        if sequence.owner is not self._session.mark:
            raise ValueError(f"sequence {sequence.id} does not belong to this stream: another stream opened it")

    def rows(self, count: int, *, draft: bool = False) -> Rows:
        """Rows to write logits into, in shared or device memory if there is some. Then give them to `sample` or `step`,
        once: after that their place belongs to another step.

        draft: rows for draft work, which are shorter where there is a `draft_vocabulary`."""
        return self._session.rows(count, self._session.draft_columns if draft else None)

    def top_n(self, logits: Numbers, n: int, beyond: str | Iterable[str] = "refuse") -> TopN:
        """The `n` largest logits of each row, for links that are too slow for whole rows. Give them to `sample` or
        `step` in place of the rows. The tokens are those that the whole rows give; if parameters reach beyond the
        listed logits, the row is refused. `step` also takes `(rows, top_n)`."""
        dtype = self._session.dtype
        rows = as_rows(logits, self._session.vocab_size, dtype)
        # The largest are chosen after rounding, from the numbers that are sent.
        rows = in_dtype(rows, "f32") if dtype == "bf16" else rows
        with narrowing():
            rows = rows.astype(self._session.numpy if dtype == "f16" else "<f4")
        return largest(rows, whole("n", n, 1), beyond)

    def masked(self, sequences: Iterable[Sequence], token_masks: Masks) -> list[pb.Work]:
        """Work for `step` and `submit` that samples each sequence behind its mask. Masks have the forms that `sample`
        takes. `Speculation` takes the masks of drafts; for other kinds of work, set `token_masks` of the message
        `Work`."""
        return self._session.masked(listed("sequences", sequences, "texts", "text"), token_masks)

    def discard(self, rows: Rows) -> None:
        """Gives back rows that will not be sent."""
        self._session.discard(given_rows(rows))
