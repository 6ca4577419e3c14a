"""python/examples/transformer_worker.py: the same seed gives the same texts, whatever happens to the server."""

import os
import pathlib
import pty
import re
import subprocess
import sys

import numpy as np
import pytest

EXAMPLES = pathlib.Path(__file__).resolve().parents[1] / "examples"
TEXTS = ["greedy", "top-p", "min-p", "top-k", "mirostat", "dry", "phrase", "hot"]


def run(*flags, spawns=True):
    given = ["--spawn", os.environ["CROUPIER_BIN"]] if spawns else []
    command = [sys.executable, str(EXAMPLES / "transformer_worker.py"), "--tokens=80", *given, *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    table, _, texts = done.stdout.partition("\n\n")
    found = dict(line.split(": ", 1) for line in texts.splitlines())
    assert list(found) == TEXTS
    return table, found


@pytest.fixture(scope="module")
def once():
    return run()


def test_the_same_seed_gives_the_same_texts(once):
    table, texts = once
    assert run()[1] == texts
    assert "by shared_memory" in table and "stop_token" in table and "max_tokens" in table
    assert all(text.startswith("The server ") for text in texts.values())
    other = run("--seed=7")[1]
    assert other["greedy"] == texts["greedy"] and other["hot"] != texts["hot"]


def test_a_server_that_is_killed_changes_not_one_token(once):
    table, texts = run("--kill-after=25")
    assert "server killed 1 time" in table
    assert texts == once[1]


def test_inline_on_a_server_that_runs_gives_the_same(once, server):
    table, texts = run("--server", server.uds, "--data-path=inline", spawns=False)
    assert "by inline" in table
    assert texts == once[1]


def test_lookup_changes_not_one_token(once):
    table, texts = run("--speculate=lookup")
    drafted = re.search(r"(\d+) of (\d+) draft tokens accepted", table)
    assert 0 < int(drafted[1]) <= int(drafted[2])
    assert texts == once[1]


def test_the_page_says_whose_texts_a_kill_leaves_alone(once):
    table, texts = run("--speculate=lookup", "--kill-after=25")
    assert "server killed 1 time" in table and texts == once[1]
    page = " ".join((EXAMPLES.parent / "README.md").read_text(encoding="utf-8").split())
    # With a draft model, nobody knows after a kill what its drafts were drawn from.
    assert "kills the server midway, and the texts are the same, unless a draft model speculates." in page


@pytest.mark.parametrize("kind", ["draft", "tree"])
def test_drafts_of_the_smaller_model(once, kind):
    table, texts = run("--speculate", kind)
    drafted = re.search(r"(\d+) steps [^\n]*\n(\d+) of (\d+) draft tokens accepted", table)
    assert int(drafted[1]) < 80 and int(drafted[2]) > 80
    assert texts["greedy"] == once[1]["greedy"]
    assert run("--speculate", kind)[1] == texts


def test_on_a_terminal_the_table_is_drawn_in_place():
    ours, theirs = pty.openpty()
    command = [sys.executable, str(EXAMPLES / "transformer_worker.py"), "--tokens=80", "--spawn", os.environ["CROUPIER_BIN"]]
    with subprocess.Popen(command, stdout=theirs) as process:
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 65536):
                shown += part
        except OSError:
            # The other end is closed.
            pass
    os.close(ours)
    assert process.returncode == 0
    assert shown.count(b"\x1b[10A") >= 1 and shown.count(b"\x1b[2K") % 10 == 0


def test_help_teaches():
    done = subprocess.run([sys.executable, str(EXAMPLES / "transformer_worker.py"), "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    assert "--kill-after 40   # the texts stay the same" in done.stdout and "--speculate" in done.stdout


def test_the_cache_and_trees_give_the_rows_of_the_whole_text():
    sys.path.insert(0, str(EXAMPLES))
    try:
        from transformer import Transformer, encode
    finally:
        sys.path.remove(str(EXAMPLES))
    model = Transformer.load("target")
    text, tree, parents = encode("The server keeps" * 8), encode("abcd"), [-1, -1, 1, 2]
    cache = model.cache()
    whole = model.forward([model.cache()], [text])[0]
    for at, token in enumerate(text):
        assert np.allclose(model.forward([cache], [[token]])[0][0], whole[at], atol=1e-3)
    rows = model.forward([cache], [tree], [parents])[0]
    for path in ([0], [1], [1, 2], [1, 2, 3]):
        plain = model.forward([model.cache()], [text + [tree[i] for i in path]])[0][-1]
        assert np.allclose(rows[path[-1]], plain, atol=1e-3)
    # Rejected tokens leave no trace.
    cache.keep(len(text), [len(text) + 1, len(text) + 2])
    more = model.forward([cache], [encode("e")])[0][0]
    plain = model.forward([model.cache()], [text + [tree[1], tree[2], *encode("e")]])[0][-1]
    assert np.allclose(more, plain, atol=1e-3)
