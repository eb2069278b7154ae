"""Leave `nlp.pipe` with two processes in several ways, one after the other.

leave_pipe.py WEIGHTS START_METHOD WAY...

Prints what there is before, and after each way, as JSON: threads, open files, processes.
"""

import faulthandler
import json
import multiprocessing
import os
import signal
import sys
import threading

import numpy
import spacy

signal.signal(signal.SIGINT, signal.default_int_handler)  # A shell may have it ignored.
if hasattr(signal, "SIGUSR1"):
    faulthandler.register(signal.SIGUSR1)  # The signal shows where a hang is.

# The texts of a batch, and the docs of one, are more than a pipe between processes holds (64 KiB).
TEXTS = [f"{'x' * 8000} bank number {number} ." for number in range(200)]
# After so many docs, there are texts on their way to each worker, and docs on their way back.
N_READ = 50


def pipe(texts=TEXTS):
    docs = nlp.pipe(texts, n_process=2, batch_size=20)
    for _ in range(N_READ):
        next(docs)
    return docs


def leave_by_break():
    for number, _ in enumerate(nlp.pipe(TEXTS, n_process=2, batch_size=20)):
        if number == N_READ:
            break


def close():
    pipe().close()


def use_two():
    # Each is closed while the other one is open, and the workers of the second know the first.
    first, second, third = pipe(), pipe(), pipe()
    first.close()
    third.close()
    assert len(list(second)) == len(TEXTS) - N_READ


def use_all():
    docs = list(nlp.pipe(TEXTS, n_process=2, batch_size=20))
    for doc, expected in zip(docs, nlp.pipe(TEXTS), strict=True):
        assert doc.text == expected.text
        assert numpy.allclose(doc._.elmo_layers, expected._.elmo_layers, rtol=0, atol=1e-6)


def lose_worker():
    docs = pipe()
    os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)
    try:
        list(docs)
    except (EOFError, OSError):
        return
    raise AssertionError("the death of a worker went unnoticed")


def interrupt():
    docs = pipe()
    os.killpg(0, signal.SIGINT)  # What Ctrl-C does.
    list(docs)


def fail():
    global docs
    docs = pipe()
    raise RuntimeError("a bug in the user's loop")


def be_killed():
    # At the last doc, both workers wait for texts.
    for number, _ in enumerate(nlp.pipe(TEXTS, n_process=2, batch_size=20)):
        if number == len(TEXTS) - 1:
            os.kill(os.getpid(), signal.SIGKILL)


def state():
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join(10)  # That of a queue ends by itself, soon after its pipe.
    files = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
    return [threading.active_count(), files, len(multiprocessing.active_children())]


if __name__ == "__main__":
    folder, method, *ways = sys.argv[1:]
    multiprocessing.set_start_method(method)
    nlp = spacy.blank("en")
    nlp.add_pipe("elmo", config={"model": {"weights": folder}})
    states = [state()]
    for way in ways:
        globals()[way]()
        states.append(state())
    print(json.dumps(states), flush=True)
