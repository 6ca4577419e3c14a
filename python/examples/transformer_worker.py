"""A worker in Python with a real model: a small transformer with a KV cache decodes several texts, each with its own sampling
parameters, and Croupier deals the tokens. Logits go through shared memory where there is some. A table shows how they grow.

    cargo build
    PYTHONPATH=python python python/examples/transformer_worker.py
    PYTHONPATH=python python python/examples/transformer_worker.py --speculate draft
    PYTHONPATH=python python python/examples/transformer_worker.py --kill-after 40   # the texts stay the same

The model knows the characters of this repository's pages and no more; train_transformer.py has made it. What a worker does for a large
one is the same: `decode` is the loop, `Target` the side of the KV cache.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field

from transformer import CHARACTERS, Cache, Transformer, decode as spelled, encode

import numpy as np

import croupier
from croupier import Draft, Speculation, SpeculationError, pb

ROOT = pathlib.Path(__file__).resolve().parents[2]
#: The texts, by name: what each is sampled with.
MENU = {
    "greedy": dict(temperature=0.0, repetition_detection=pb.RepetitionDetectionParams(max_pattern_size=60, min_pattern_size=8, min_count=3)),
    "top-p": dict(temperature=0.7, top_p=0.9),
    "min-p": dict(temperature=1.0, min_p=0.1),
    "top-k": dict(temperature=1.0, top_k=4, repetition_penalty=1.05),
    "mirostat": dict(mirostat=2, mirostat_tau=1.5),
    "dry": dict(temperature=0.6, dry_multiplier=0.8, dry_allowed_length=8),
    "phrase": dict(temperature=0.7, min_tokens=20, stop_token_ids=encode(".,:;\n")),
    "hot": dict(temperature=1.6),
}
#: A tree of draft tokens: two after the text, two after the first of them, and on after the most likely one.
TREE = [-1, -1, 0, 0, 2, 4]
DRAFT_LENGTHS = {
    # Costs in steps of the target. Lookup costs nothing; a draft token of the small model is about a fifth.
    "lookup": pb.DraftLengthParams(draft_cost=0.0, verify_cost=0.1, max_draft_tokens=8),
    "draft": pb.DraftLengthParams(draft_cost=0.2, verify_cost=0.1, max_draft_tokens=6),
}


@dataclass
class Text:
    """A text, with what the model remembers of it."""

    name: str
    sequence: croupier.Sequence
    cache: Cache
    pending: list[int]
    """Tokens that are not in the cache yet: the prompt at first, then the last token."""
    draft_cache: Cache | None = None
    drafted_on: list[int] = field(default_factory=list)
    """Tokens that the draft model's cache holds."""
    seconds: float = 0.0


class Target:
    """The models, and which logits belong to what."""

    def __init__(self) -> None:
        self.model, self.small = Transformer.load("target"), Transformer.load("draft")

    def logits(self, texts: list[Text], drafts: list[Draft]) -> np.ndarray:
        """Rows behind each text and behind each of its draft tokens, in one pass. The caches hold all of them then."""
        tokens = [text.pending + draft.token_ids for text, draft in zip(texts, drafts)]
        rows = self.model.forward([text.cache for text in texts], tokens, [self._parents(*pair) for pair in zip(texts, drafts)])
        return np.concatenate([own[-draft.rows :] for own, draft in zip(rows, drafts)])

    @staticmethod
    def _parents(text: Text, draft: Draft) -> list[int]:
        last = len(text.pending) - 1
        chain = range(-1, len(draft.token_ids) - 1)
        return [*range(-1, last), *(last + 1 + parent for parent in (draft.parents or chain))]

    def keep(self, text: Text, draft: Draft, accepted: list[int]) -> None:
        """Throws away what the cache holds of draft tokens that were not accepted."""
        first = text.cache.length - len(draft.token_ids)
        text.cache.keep(first, [first + index for index in accepted])
        everything = [*text.sequence.prompt, *text.sequence.tokens]
        if text.cache.length == len(everything):
            # The last token is a draft token: the row behind it is asked for again.
            text.cache.keep(text.cache.length - 1)
        text.pending = everything[text.cache.length :]

    def forget(self, text: Text, draft: Draft) -> None:
        """As before `logits`."""
        text.cache.keep(text.cache.length - len(draft.token_ids) - len(text.pending))

    def draft_logits(self, asked: list[tuple[Text, list[int]]]) -> np.ndarray:
        """The small model's rows behind texts and these draft tokens of theirs."""
        fresh = []
        for text, path in asked:
            wanted = [*text.sequence.prompt, *text.sequence.tokens, *path]
            text.draft_cache = text.draft_cache or self.small.cache()
            pairs = zip(text.drafted_on, wanted[:-1])
            same = next((at for at, (had, want) in enumerate(pairs) if had != want), min(len(text.drafted_on), len(wanted) - 1))
            text.draft_cache.keep(same)
            text.drafted_on = wanted
            fresh.append(wanted[same:])
        rows = self.small.forward([text.draft_cache for text, _ in asked], fresh)
        return np.stack([own[-1] for own in rows])


class Server:
    """A `croupier serve` of one's own, which may be killed."""

    def __init__(self, binary: str) -> None:
        self.folder = tempfile.mkdtemp(prefix="croupier-")
        self.address, self.restarts = f"unix:{self.folder}/croupier.sock", 0
        self.command = [binary, "serve", "--listen=none", "--admin=none", "--log-level=warn", "--uds", self.address[5:]]
        self.start()
        give_up = time.monotonic() + 30
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > give_up:
                self.end()
                sys.exit(f"{binary} serve did not start")
            time.sleep(0.01)

    def start(self) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("CROUPIER_")}
        self.process = subprocess.Popen(self.command, env=environment)

    def answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(self.address[5:]) == 0

    def replace(self) -> None:
        """SIGKILL, and another one in its place. The client connects anew, opens the texts again, and they go on."""
        self.process.kill()
        self.process.wait()
        self.restarts += 1
        self.start()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class Table:
    """What is going on: in place on a terminal, else once at the end."""

    def __init__(self, stream: croupier.Stream, live: bool) -> None:
        self.stream, self.live, self.drawn, self.at = stream, live, 0, 0.0
        self.sampling: list[float] = []
        self.computing: list[float] = []
        self.drafted = self.accepted = 0

    def show(self, texts: list[Text], restarts: int, last: bool = False) -> None:
        if not self.live and not last or not last and time.monotonic() - self.at < 0.1:
            return
        self.at = time.monotonic()
        width = shutil.get_terminal_size().columns if self.live else 110
        lines = [f"{'':9}{'tokens':>6} {'tok/s':>6} {'finish':<11} text", *(self._row(text, width - 38) for text in texts)]
        lines.append(f"{len(self.sampling)} steps by {self.stream.data_path}: {_p50(self.sampling)} us in Croupier (p50), "
                     f"{_p50(self.computing)} us in the model")
        more = [f"{self.accepted} of {self.drafted} draft tokens accepted"] if self.drafted else []
        more += [f"server killed {restarts} time{'s' * (restarts > 1)}"] if restarts else []
        lines += ["; ".join(more)] if more else []
        up = f"\x1b[{self.drawn}A" if self.drawn else ""
        print(up + "\n".join(("\x1b[2K" if self.live else "") + line[: width if self.live else None] for line in lines), flush=True)
        self.drawn = len(lines) if self.live else 0

    @staticmethod
    def _row(text: Text, width: int) -> str:
        count = len(text.sequence.tokens)
        tail = spelled(text.sequence.tokens).replace("\n", " ")[-max(width, 10) :]
        return f"{text.name:9}{count:>6} {count / max(text.seconds, 1e-9):>6.0f} {text.sequence.finish_reason or '':<11} {tail}"


def _p50(seconds: list[float]) -> str:
    return f"{np.median(seconds or [0]) * 1e6:.0f}"


def decode(stream: croupier.Stream, target: Target, texts: list[Text], args: argparse.Namespace, table: Table, server: Server | None) -> None:
    """The worker's loop: model, sample, model, sample. A draft without tokens is a plain row."""
    speculation, started, steps = Speculation(stream), time.monotonic(), 0
    by_id = {text.sequence.id: text for text in texts}

    def small(pairs: list[tuple[croupier.Sequence, list[int]]]) -> np.ndarray:
        return target.draft_logits([(by_id[sequence.id], path) for sequence, path in pairs])

    while going := [text for text in texts if text.sequence.finish_reason is None]:
        sequences = [text.sequence for text in going]
        if steps == args.kill_after and server and not server.restarts:
            server.replace()
        if args.speculate == "draft":
            drafts = speculation.chain(sequences, small)
        elif args.speculate == "tree":
            drafts = speculation.tree(sequences, small, TREE)
        else:
            drafts = speculation.proposed(sequences)
        begun = time.perf_counter()
        logits = target.logits(going, drafts)
        computed = time.perf_counter()
        try:
            verified = verify(speculation, drafts, logits)
        except SpeculationError as failed:
            if any(failed.verified):
                raise
            # The server that knew what draft tokens were drawn from is gone.
            for text, draft in zip(going, drafts):
                target.forget(text, draft)
            continue
        table.sampling.append(time.perf_counter() - computed)
        table.computing.append(computed - begun)
        steps += 1
        for text, draft, each in zip(going, drafts, verified):
            target.keep(text, draft, each.accepted_path)
            text.seconds = time.monotonic() - started
            table.drafted += len(draft.token_ids)
            table.accepted += len(each.accepted_path)
        table.show(texts, server.restarts if server else 0)


def verify(speculation: Speculation, drafts: list[Draft], logits: np.ndarray) -> list[croupier.Verified]:
    """Hands logits over. A server that ended in order takes the shared memory along: then they are written again."""
    while True:
        # A larger model would be told to write there itself.
        rows = speculation.stream.rows(len(logits))
        rows.write(logits)
        with contextlib.suppress(croupier.LogitsLost):
            return speculation.verify(drafts, rows)


def opened(stream: croupier.Stream, target: Target, args: argparse.Namespace) -> list[Text]:
    """The texts of the menu."""
    prompt, fields = encode(args.prompt), {}
    if args.speculate == "lookup":
        fields["proposer"] = pb.ProposerParams(kind=pb.PROPOSER_KIND_SUFFIX)
    if args.speculate in DRAFT_LENGTHS:
        fields["draft_length"] = DRAFT_LENGTHS[args.speculate]
    texts = []
    for number, (name, params) in enumerate(MENU.items()):
        sequence = stream.open(prompt=prompt, seed=args.seed + number, max_tokens=args.tokens, **params, **fields)
        texts.append(Text(name, sequence, target.model.cache(), list(prompt)))
    return texts


def binary() -> str:
    """Where a built server is."""
    built = [ROOT / "target" / kind / "croupier" for kind in ("release", "debug")]
    found = os.environ.get("CROUPIER_BIN") or next((str(path) for path in built if path.exists()), None) or shutil.which("croupier")
    return found or sys.exit("no server was found: build one with `cargo build`, or give --server ADDRESS or --spawn BINARY")


def arguments() -> argparse.Namespace:
    about, _, rest = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(description=about, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--server", metavar="ADDRESS", help="the address of a running server: unix:/path/to/croupier.sock or host:port")
    where.add_argument("--spawn", metavar="BINARY", help="the server program to start for the run (default: the one that was built here)")
    parser.add_argument("--tokens", type=int, default=400, help="the maximum length of a text, in characters (default 400)")
    parser.add_argument("--prompt", default="The server ", help="the beginning of all texts (default 'The server ')")
    parser.add_argument("--seed", type=int, default=1, help="the same seed gives the same texts (default 1)")
    parser.add_argument("--speculate", choices=("off", "lookup", "draft", "tree"), default="off",
                        help="lookup: the sidecar proposes what followed earlier in the text, which changes no token; draft: a smaller "
                        "model drafts as many tokens as pay off; tree: the same with alternatives")
    parser.add_argument("--data-path", choices=("auto", "shared_memory", "inline"), default="auto",
                        help="how logits are sent (default auto: shared memory if available)")
    parser.add_argument("--kill-after", type=int, metavar="STEPS", help="kill the server (SIGKILL) after this many steps, start another one "
                        "and continue: the texts stay the same, except with a draft model, because its advice starts anew")
    args = parser.parse_args()
    if args.server and args.kill_after is not None:
        parser.error("--kill-after needs a server that this program starts; leave out --server")
    return args


def main() -> None:
    args = arguments()
    with contextlib.ExitStack() as stack:
        server = None if args.server else Server(args.spawn or binary())
        if server:
            stack.callback(server.end)
        stream = stack.enter_context(croupier.connect(args.server or server.address, len(CHARACTERS), data_path=args.data_path,
                                                      model="transformer_worker", max_rows=len(MENU) * 9))
        target, table = Target(), Table(stream, sys.stdout.isatty())
        texts = opened(stream, target, args)
        decode(stream, target, texts, args, table, server)
        table.show(texts, server.restarts if server else 0, last=True)
    print()
    for text in texts:
        print(f"{text.name}: {args.prompt}{spelled(text.sequence.tokens)!r}")


if __name__ == "__main__":
    main()
