"""Threads and `nlp.pipe(n_process=2)`. What forks does so in processes of its own: the start method
is set once per process, and a hang must not take the tests with it."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import numpy
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from spacy_elmo.inference import Settings, current_session

from .conftest import elmo_pipeline, max_difference, random_bilm

TIMEOUT = 300  # Seconds. Generous, for machines that do other work as well.

# A signal to the group of processes shows where each of them is.
WATCH = """
import faulthandler
import signal

if hasattr(signal, "SIGUSR1"):
    faulthandler.register(signal.SIGUSR1)
"""

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


def run(folder, script, *arguments, timeout=TIMEOUT):
    """What a script prints, as JSON."""
    path = folder / "script.py"
    path.write_text(WATCH + script, encoding="utf8")
    process = subprocess.Popen(
        [sys.executable, str(path), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        for name in ("SIGUSR1", "SIGKILL"):
            if hasattr(os, "killpg"):
                os.killpg(process.pid, getattr(signal, name))
                time.sleep(2)
        process.kill()
        pytest.fail(f"a hang:\n{process.communicate()[1]}")
    assert process.returncode == 0, errors
    return json.loads(output)


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
    assert run(tmp_path, SCRIPT, weights_folder, method, used) == {
        "equal": [True] * 20,
        "n_docs": 20,
        "not zero": True,
        "attributes in the worker": True,
        "values in the worker": True,
        "processes": 2,
    }


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")

# Threads run a pipeline, from its first use on, while another one forks it.
THREADS = """
import json
import multiprocessing
import sys
import threading

import numpy
import spacy
import torch

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
EXPECTED = {text: pipeline()(text)._.elmo_layers for text in (*TEXTS, LONG)}
nlp = pipeline()
differences = []
calls = 0
forks_done = threading.Event()


def check(doc):
    differences.append(float(abs(doc._.elmo_layers - EXPECTED[doc.text]).max()))


def call(number):
    global calls
    check(nlp(LONG))
    for i in range(n_calls):
        if i >= n_calls // 8 and forks_done.is_set():
            break
        check(nlp(TEXTS[(number + i) % len(TEXTS)]))
        calls += 1


def fork():
    for i in range(n_forks):
        check(nlp(LONG))
        texts = [*TEXTS[i % 50 : i % 50 + 6], LONG]
        docs = list(nlp.pipe(texts, n_process=2, batch_size=2))
        assert [doc.text for doc in docs] == texts
        for doc in docs:
            check(doc)
    forks_done.set()


threads = [threading.Thread(target=call, args=(number,)) for number in range(8)]
threads.append(threading.Thread(target=fork))
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(json.dumps({
    "forked": forks_done.is_set(),
    "called": calls >= n_calls // 8 * 8,
    "difference": max(differences) <= 1e-5,
}))
"""


@needs_fork
@pytest.mark.parametrize(
    "n_calls, n_forks, timeout",
    [(240, 3, TIMEOUT), pytest.param(10_000, 50, 1800, marks=pytest.mark.slow)],
)
def test_fork_while_threads_run(tmp_path, weights_folder, n_calls, n_forks, timeout):
    result = run(tmp_path, THREADS, weights_folder, n_calls, n_forks, timeout=timeout)
    assert result == {"forked": True, "called": True, "difference": True}


# What forked children see of the number of threads. Each says so through its exit code.
CHILDREN = """
import json
import os
import sys
import threading

import spacy
import torch

torch.set_num_threads(2)
torch.ones(2000, 2000).sum()  # OpenMP starts its threads, which no child has.
import spacy_elmo.component

TEXT = "word . " * 1000


def pipeline():
    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer")
    nlp.add_pipe("elmo", config={"model": {"weights": sys.argv[1]}})
    return nlp


def child(function):
    process = os.fork()
    if process == 0:
        code = 255
        try:
            code = function()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def first_use():
    pipeline()(TEXT)
    return torch.get_num_threads()


def use_again():
    nlp(TEXT)
    return torch.get_num_threads()


def use_in_a_thread_first():
    thread = threading.Thread(target=nlp, args=(TEXT,))
    thread.start()
    thread.join()
    return use_again()


def saving():
    nlp.to_bytes()
    return torch.get_num_threads()


nlp = pipeline()
found = {"no elmo before": child(torch.get_num_threads), "first use": child(first_use)}
nlp(TEXT)
found["use again"] = child(use_again)
found["use in a thread first"] = child(use_in_a_thread_first)
found["a child's child"] = child(lambda: child(use_again))
found["saving"] = child(saving)
found["no elmo after"] = child(torch.get_num_threads)
found["parent"] = torch.get_num_threads()
print(json.dumps(found))
"""


@needs_fork
def test_forked_processes_use_one_thread_for_elmo_only(tmp_path, weights_folder):
    assert run(tmp_path, CHILDREN, weights_folder) == {
        "no elmo before": 2,
        "first use": 1,
        "use again": 1,
        "use in a thread first": 1,
        "a child's child": 1,
        "saving": 1,
        "no elmo after": 2,
        "parent": 2,
    }


def in_threads(function, n_threads=1):
    """Call a function in threads, all at once. A dead-lock fails the test."""
    results = []
    barrier = threading.Barrier(n_threads)

    def work():
        barrier.wait()
        results.append(function())

    threads = [threading.Thread(target=work, daemon=True) for _ in range(n_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
        assert not thread.is_alive(), "a dead-lock"
    assert len(results) == n_threads
    return results


def test_threads_that_use_a_pipeline_first_share_its_weights(weights_folder):
    nlp = elmo_pipeline(weights_folder)
    elmo = nlp.get_pipe("elmo")
    docs = in_threads(lambda: (nlp("the bank"), elmo.bilm), 8)
    assert len({id(bilm) for _, bilm in docs}) == 1
    assert all(
        max_difference(doc._.elmo_layers, docs[0][0]._.elmo_layers) <= 1e-6 for doc, _ in docs
    )


def fork():
    process = os.fork()
    if process == 0:
        os._exit(0)
    os.waitpid(process, 0)
    return True


@needs_fork
def test_iterators_of_sentences_may_wait_for_forks():
    def sentences():
        assert in_threads(fork) == [True]
        yield ["the", "bank"]

    [[layers]] = in_threads(lambda: random_bilm().embed(sentences()))
    assert max_difference(layers, random_bilm().embed([["the", "bank"]])[0]) <= 1e-6


class InTheMiddle(TorchDispatchMode):
    """Calls a function at each batch, while it runs."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        if operator.overloadpacket is torch.ops.aten.index_select:
            self.function()
        return operator(*args, **(kwargs or {}))


@pytest.fixture
def one_thread():
    """With more, another thread than the caller's runs the biLM."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)


def embed(inside, n_batches=1):
    """Run a biLM, and call a function in the middle of each batch."""
    session = current_session(random_bilm(), Settings(max_tokens_per_batch=3))
    types, index = ["the"], numpy.zeros(n_batches, dtype=int)
    for _ in session.batches(types, index, [1] * n_batches):
        pass
    with InTheMiddle(inside):
        for _ in session.batches(types, index, [1] * n_batches):
            pass


@needs_fork
def test_a_fork_waits_for_one_batch_only(one_thread):
    started, forked = threading.Event(), threading.Event()
    before = []

    def wait_a_little():
        started.set()
        before.append(not forked.wait(0 if forked.is_set() else 0.01))

    def fork_meanwhile():
        assert started.wait(TIMEOUT)
        fork()
        forked.set()

    thread = threading.Thread(target=fork_meanwhile)
    thread.start()
    embed(wait_a_little, n_batches=100)
    thread.join()
    assert before[0] and not before[-1]


@needs_fork
def test_threads_may_fork_while_they_run_the_bilm(one_thread):
    """They wait neither for themselves nor for each other."""
    barrier = threading.Barrier(3)
    numbers = threading.local()

    def fork_inside():
        if not hasattr(numbers, "forked"):  # Once in each thread.
            numbers.forked = True
            barrier.wait(TIMEOUT)
            assert fork()

    in_threads(lambda: embed(fork_inside), 3)


@needs_fork
def test_a_fork_need_not_wait_for_the_reader_of_batches():
    """Between two batches, the biLM does not run."""
    session = current_session(random_bilm(), Settings(max_tokens_per_batch=3))
    for _ in session.batches(["the"], numpy.zeros(2, dtype=int), [1, 1]):
        assert in_threads(fork) == [True]
