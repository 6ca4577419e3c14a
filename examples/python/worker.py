"""A worker in Python. Its model knows only which token follows which, and Croupier samples from it.

    croupier serve --uds /tmp/croupier.sock &
    PYTHONPATH=python python examples/python/worker.py unix:/tmp/croupier.sock

Kill the server and restart it while this runs: the texts continue with the same tokens.
"""

import argparse
import time

import numpy as np

import croupier

TEXT = "the dealer deals the cards and the cards are the dealer s and the player plays the cards the dealer deals "
TEXTS = 8
TOKENS = 60


def model():
    """Logits of the next character, given the last one."""
    letters = sorted(set(TEXT))
    ids = [letters.index(letter) for letter in TEXT]
    counts = np.full((len(letters), len(letters)), 1e-3, np.float32)
    for last, following in zip(ids, ids[1:]):
        counts[last, following] += 1
    return letters, np.log(counts)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", metavar="ADDRESS", help="the server, unix:PATH or HOST:PORT")
    address = parser.parse_args().address
    letters, following = model()
    with croupier.connect(address, vocab_size=len(letters), max_rows=TEXTS) as stream:
        print(f"logits travel by {stream.data_path}")
        space = letters.index(" ")
        texts = [stream.open(temperature=0.8, seed=seed, max_tokens=TOKENS, prompt=[space]) for seed in range(TEXTS)]
        going, steps, started = list(texts), 0, time.perf_counter()
        while going:
            rows = stream.rows(len(going))
            for row, text in zip(rows.array, going):
                row[:] = following[text.tokens[-1] if text.tokens else space]
            stream.sample(rows, going)
            steps += 1
            going = [text for text in going if text.finish_reason is None]
        each = (time.perf_counter() - started) / steps
        for text in texts:
            print("".join(letters[token] for token in text.tokens))
        print(f"{steps} steps of {TEXTS} rows, {each * 1e6:.0f} us each")


if __name__ == "__main__":
    main()
