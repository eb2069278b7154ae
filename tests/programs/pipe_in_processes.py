"""`nlp.pipe` in two processes, and in one.

pipe_in_processes.py WEIGHTS START_METHOD fresh|used
"""

import faulthandler
import json
import multiprocessing
import signal
import sys

import numpy
import spacy
from spacy.language import Language

if hasattr(signal, "SIGUSR1"):
    faulthandler.register(signal.SIGUSR1)  # The signal shows where a hang is.

TEXTS = ["The bank of the river .", "", "Money \n flows", "bank " * 40, "a"] * 4


@Language.component("reader")
def reader(doc):
    # Runs in the worker, where spaCy sends nothing but the pipeline.
    doc.user_data["process"] = multiprocessing.current_process().name
    doc.user_data["read"] = [doc._.elmo, doc[:]._.elmo, *(token._.elmo for token in doc)]
    return doc


def equal(first, second):
    # Up to rounding: the type caches of the processes have seen different batches.
    return first.text == second.text and all(
        numpy.allclose(getattr(first._, name), getattr(second._, name), rtol=0, atol=1e-6)
        for name in ("elmo_layers", "elmo_tokens", "elmo")
    )


def read_the_same(doc):
    here = [doc._.elmo, doc[:]._.elmo, *(token._.elmo for token in doc)]
    return all(map(numpy.array_equal, here, doc.user_data["read"]))


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
    facts = {
        "n_docs": len(docs),
        "equal": all(map(equal, docs, expected)),
        "not zero": bool(docs[0]._.elmo_layers.any()),
        "values in the worker": all(map(read_the_same, docs)),
        "processes": len({doc.user_data["process"] for doc in docs} - {"MainProcess"}),
    }
    print(json.dumps(facts))
