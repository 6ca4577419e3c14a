"""A tensor-parallel worker in Python. Each rank is a process that holds some columns of the vocabulary; no rank gathers rows.

    croupier serve --uds /tmp/croupier.sock &
    PYTHONPATH=python python examples/python/tensor_parallel.py unix:/tmp/croupier.sock 4

Prints the text that the ranks produce, and the text of one rank with whole rows. The two are the same.
"""

import argparse
import subprocess
import sys

import numpy as np

import croupier

VOCAB = 10_000
TOKENS = 20
SEEDS = (1, 2, 3)


def logits(last, position, columns):
    """The logits of a rank's part of the model: here any function of text, position and the last tokens."""
    rows = [np.random.default_rng((seed, position, token)).normal(size=VOCAB) * 3 for seed, token in zip(SEEDS, last)]
    return np.asarray(rows, np.float32)[:, columns.start : columns.stop]


def rank_above_0(token, number):
    """Writes this rank's columns, next to those of the other ranks if there is shared memory."""
    with croupier.attach(token, number) as rank:
        print("attached", flush=True)
        last = [0 for _ in SEEDS]
        for position in range(TOKENS):
            rows = rank.rows(len(SEEDS))
            rows.write(logits(last, position, rank.vocab_range))
            # Every rank reads the tokens from shared memory, so rank 0 does not send them.
            last = [token for [token] in rank.tokens(rank.send(rows))]
        rank.wait()


def rank_0(server, shards):
    """Samples. Without `shards` the rows are whole."""
    with croupier.connect(server, VOCAB, vocab_shards=shards) as stream:
        # The other ranks get the token by any means: torch.distributed, a pipe, or an argument as here.
        command = [sys.executable, __file__, "--rank", stream.shard_token] if shards else []
        others = [subprocess.Popen([*command, str(number)], stdout=subprocess.PIPE) for number in range(1, len(shards or []))]
        # A rank may also attach later: a step waits for it for up to shard_timeout.
        assert all(other.stdout.readline() == b"attached\n" for other in others)
        own = range(shards[0] if shards else VOCAB)
        texts = [stream.open(seed=seed, temperature=0.8, top_p=0.95) for seed in SEEDS]
        last = [0 for _ in SEEDS]
        for position in range(TOKENS):
            rows = stream.rows(len(texts))
            rows.write(logits(last, position, own))
            last = stream.sample(rows, texts)
        for other in others:
            assert other.wait() == 0
        return [text.tokens for text in texts]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", metavar="ADDRESS", help="the server, unix:PATH or HOST:PORT")
    parser.add_argument("ranks", metavar="RANKS", type=int, help=f"processes, 1 to {VOCAB}")
    given = parser.parse_args()
    if not 1 <= given.ranks <= VOCAB:
        parser.error(f"RANKS is {given.ranks}, must be in 1 ..= {VOCAB}")
    server, count = given.address, given.ranks
    ends = [VOCAB * rank // count for rank in range(count + 1)]
    together = rank_0(server, [end - start for start, end in zip(ends, ends[1:])])
    for tokens in together:
        print(*tokens)
    assert together == rank_0(server, None)
    print(f"{count} ranks draw the same tokens as one")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        rank_above_0(sys.argv[2], int(sys.argv[3]))
    else:
        main()
