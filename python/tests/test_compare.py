"""croupier compare, on the rows of a model: the small transformer of python/examples, with faults that its worker could have."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "examples"))
import transformer

TEXT = transformer.encode("The server takes the rows of a batch and gives back a token for each of them, ")
#: Rows are compared from this position on. After fewer tokens, the model does not know how to continue the text.
FROM = 16


@pytest.fixture(scope="module")
def model():
    return transformer.Transformer.load("target")


def plain(model, tokens=TEXT):
    """The rows after each token, in one pass."""
    return model.forward([model.cache()], [list(tokens)])[0]


def one_by_one(model, tokens=TEXT):
    """The same rows, with a cache that grows by one token at a time."""
    cache = model.cache()
    return np.concatenate([model.forward([cache], [[token]])[0] for token in tokens])


def compare(tmp_path, sent, reference, *flags):
    for name, rows in [("sent", sent), ("plain", reference)]:
        np.save(tmp_path / name, np.ascontiguousarray(rows, np.float32))
    command = [os.environ["CROUPIER_BIN"], "compare", str(tmp_path / "sent.npy"), str(tmp_path / "plain.npy"), "--json", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode in (0, 1), done.stderr
    compared = json.loads(done.stdout)
    assert (done.returncode == 0) == (compared["rows_as_plain"] == len(sent))
    return compared["rows"]


def bf16(rows):
    bits = np.ascontiguousarray(rows, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).view(np.float32)


def test_rows_from_a_cache_are_the_model_s(model, tmp_path):
    rows = plain(model)
    for sent in (one_by_one(model), bf16(one_by_one(model))):
        found = compare(tmp_path, sent[FROM:], rows[FROM:])
        assert all(row["is"] in ("same", "plain") and row["plain_row"] == row["row"] for row in found if row["is"] != "same")
        assert all(row["precise"] and not row["changes"] and row["temperature"] is None for row in found if row["is"] != "same")


def test_a_temperature_and_penalties_of_the_worker_are_named(model, tmp_path):
    rows = plain(model)[FROM:]
    found = compare(tmp_path, bf16(rows / 0.7), rows)
    assert all(abs(row["temperature"] - 0.7) < 0.02 and not row["changes"] for row in found), found
    penalized = rows.copy()
    seen = sorted(set(TEXT))
    penalized[:, seen] = np.where(rows[:, seen] > 0, rows[:, seen] / 1.3, rows[:, seen] * 1.3)
    found = compare(tmp_path, penalized, rows, "--text", ",".join(map(str, TEXT)))
    kinds = [[change["kind"] for change in row["changes"]] for row in found]
    assert kinds == [["repetition_penalty"]] * len(rows), kinds
    assert all(abs(row["changes"][0]["penalty"] - 1.3) < 0.02 for row in found)


def test_rows_one_place_late_are_named(model, tmp_path):
    rows = plain(model)[FROM:]
    found = compare(tmp_path, bf16(rows[:-1]), rows[1:])
    # The plain row for the first of these was not given.
    assert [row.get("plain_row") for row in found] == [None, *range(len(rows) - 2)]


def test_a_cache_that_keeps_a_rejected_token_is_named(model, tmp_path):
    rows, cache = plain(model), model.cache()
    cut = 40
    model.forward([cache], [[*TEXT[:cut], *transformer.encode("zq")]])
    late = np.concatenate([model.forward([cache], [[token]])[0] for token in TEXT[cut:]])
    found = compare(tmp_path, late, rows[cut:])
    # Some tokens after the rejected one, such a model gives nearly the same rows again.
    assert {row["is"] for row in found[:5]} <= {"unknown", "alike"}, found
    assert all(row["temperature"] is None for row in found if row["is"] == "plain"), found


def test_a_tree_whose_nodes_see_their_siblings_is_named(model, tmp_path):
    drafts = transformer.encode("aeiost")
    reference = np.concatenate([plain(model, [*TEXT, token])[-1:] for token in drafts])

    def tree(parents):
        cache = model.cache()
        model.forward([cache], [TEXT])
        return model.forward([cache], [drafts], [parents])[0]

    found = compare(tmp_path, tree([-1] * len(drafts)), reference)
    assert all(row["is"] == "same" or row["precise"] and row["plain_row"] == row["row"] for row in found), found
    leaking = compare(tmp_path, tree(list(range(-1, len(drafts) - 1))), reference)
    assert leaking[0]["is"] in ("same", "plain") and [row["is"] for row in leaking[1:]] == ["unknown"] * (len(drafts) - 1), leaking
