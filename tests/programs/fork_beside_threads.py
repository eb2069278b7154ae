"""Threads run a pipeline, from its first use on, while another one forks it.

fork_beside_threads.py WEIGHTS N_CALLS N_FORKS
"""

import faulthandler
import json
import multiprocessing
import signal
import sys
import threading

import spacy
import torch

if hasattr(signal, "SIGUSR1"):
    faulthandler.register(signal.SIGUSR1)  # The signal shows where a hang is.

folder, n_calls, n_forks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
multiprocessing.set_start_method("fork")
torch.set_num_threads(2)


def pipeline():
    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer")
    # A cache that is too small, so that it changes all the time.
    nlp.add_pipe("elmo", config={"model": {"weights": folder, "type_cache_mb": 0.01}})
    return nlp


TEXTS = [" ".join(f"w{i * j % 97}" for j in range(1, 3 + i % 12)) for i in range(60)]
LONG = "word . " * 1000  # OpenMP starts its threads.
EXPECTED = {doc.text: doc._.elmo_layers for doc in pipeline().pipe([*TEXTS, LONG])}
nlp = pipeline()
differences = []


def check(doc):
    differences.append(float(abs(doc._.elmo_layers - EXPECTED[doc.text]).max()))


def call(number):
    check(nlp(LONG))
    for i in range(n_calls):
        check(nlp(TEXTS[(number + i) % len(TEXTS)]))


def fork():
    for i in range(n_forks):
        texts = [*TEXTS[i % 50 : i % 50 + 6], LONG]
        docs = list(nlp.pipe(texts, n_process=2, batch_size=2))
        assert [doc.text for doc in docs] == texts
        for doc in docs:
            check(doc)


threads = [threading.Thread(target=call, args=(number,)) for number in range(8)]
threads.append(threading.Thread(target=fork))
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(json.dumps([len(differences), max(differences) <= 1e-5]))
