"""`nlp.pipe(n_process=2)`, in processes of its own: the start method is set once per process, and
a hang must not take the tests with it."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys

import pytest

TIMEOUT = 120  # Seconds.

SCRIPT = """
import json
import multiprocessing
import sys

import numpy
import spacy
from spacy.language import Language
from spacy.tokens import Doc, Span, Token

TEXTS = ["The bank of the river .", "", "Money \\n flows", "bank " * 40, "a"] * 4
ATTRIBUTES = ((Doc, "elmo_layers"), (Doc, "elmo_tokens"), (Doc, "elmo"), (Span, "elmo"),
              (Token, "elmo"))


@Language.component("reader")
def reader(doc):
    # Runs in the worker, where spaCy sends nothing but the pipeline.
    doc.user_data["process"] = multiprocessing.current_process().name
    doc.user_data["known"] = all(kind.has_extension(name) for kind, name in ATTRIBUTES)
    doc.user_data["read"] = [doc._.elmo, *(token._.elmo for token in doc)]
    return doc


def equal(first, second):
    # Up to rounding: the type caches of the processes have seen different batches.
    return first.text == second.text and all(
        numpy.allclose(getattr(first._, name), getattr(second._, name), rtol=0, atol=1e-6)
        for name in ("elmo_layers", "elmo_tokens", "elmo")
    )


def read_the_same(doc):
    here = [doc._.elmo, *(token._.elmo for token in doc)]
    there = doc.user_data["read"]
    return len(here) == len(there) and all(map(numpy.array_equal, here, there))


if __name__ == "__main__":
    folder, method, used_before = sys.argv[1:]
    multiprocessing.set_start_method(method)
    nlp = spacy.blank("en")
    nlp.add_pipe("elmo", config={"model": {"weights": folder}})
    nlp.add_pipe("reader")
    if used_before == "used":
        # Long enough for OpenMP to start its threads.
        nlp("word " * 3000)
    docs = list(nlp.pipe(TEXTS, n_process=2, batch_size=5))
    expected = list(nlp.pipe(TEXTS, batch_size=5))
    print(json.dumps({
        "equal": [equal(*pair) for pair in zip(docs, expected)],
        "n_docs": len(docs),
        "not zero": bool(docs[0]._.elmo_layers.any()),
        "attributes in the worker": all(doc.user_data["known"] for doc in docs),
        "values in the worker": all(map(read_the_same, docs)),
        "processes": len({doc.user_data["process"] for doc in docs} - {"MainProcess"}),
    }))
"""


def start_method(name, used):
    absent = name not in multiprocessing.get_all_start_methods()
    return pytest.param(name, used, marks=pytest.mark.skipif(absent, reason=f"no {name} here"))


@pytest.mark.parametrize(
    "method, used",
    [
        start_method("fork", "fresh"),
        # The parent has run the biLM: its OpenMP threads exist when it forks.
        start_method("fork", "used"),
        start_method("spawn", "fresh"),
    ],
)
def test_workers_give_the_same_vectors(tmp_path, weights_folder, method, used):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT, encoding="utf8")
    done = subprocess.run(
        [sys.executable, str(path), str(weights_folder), method, used],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "equal": [True] * 20,
        "n_docs": 20,
        "not zero": True,
        "attributes in the worker": True,
        "values in the worker": True,
        "processes": 2,
    }
