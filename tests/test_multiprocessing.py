"""Threads and `nlp.pipe(n_process=2)`, in processes of their own: the start method is set once per
process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy
import pytest

from spacy_elmo.inference import Settings, current_session
from spacy_elmo.strings import one_thread

from .conftest import elmo_pipeline, max_difference, random_bilm
from .kills import PROGRAMS, started, wait_for_end

TESTS = Path(__file__).parent

TIMEOUT = 300  # Seconds. Generous, for machines that do other work as well.


def run(folder, program, *arguments, timeout=TIMEOUT):
    """What a program prints, as JSON."""
    command = [sys.executable, PROGRAMS / program, *arguments]
    with started(command, folder, {"OMP_NUM_THREADS": "2"}) as (process, read):
        wait(process, read, timeout)
        output, errors = read()
    assert process.returncode == 0, errors
    return json.loads(output)


def wait(process, read, timeout=TIMEOUT):
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGUSR1)  # Shows where it is.
        time.sleep(1)
        pytest.fail(f"a hang: {read()}")


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


@needs_fork
def test_what_forks_the_process_of_the_tests():
    """In another one: a hang must not take the tests with it."""
    files = ["test_multiprocessing.py", "test_files.py", "inference/test_callers.py"]
    options = ["-m", "forks", "-p", "no:cacheprovider", "-o", f"faulthandler_timeout={TIMEOUT}"]
    command = [sys.executable, "-m", "pytest", *options, *files]
    done = subprocess.run(command, cwd=TESTS, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "method, used",
    [
        # The parent has run the biLM: its OpenMP threads exist when it forks.
        pytest.param("fork", "used", marks=needs_fork),
        pytest.param("spawn", "fresh", marks=pytest.mark.slow),
    ],
)
def test_workers_give_the_same_vectors(tmp_path, weights_folder, method, used):
    assert run(tmp_path, "pipe_in_processes.py", weights_folder, method, used) == {
        "n_docs": 20,
        "equal": True,
        "not zero": True,
        "values in the worker": True,
        "processes": 2,
    }


ENDS = {
    "fail": (1, "RuntimeError: a bug in the user's loop"),
    "interrupt": (-signal.SIGINT, "KeyboardInterrupt"),
    "be_killed": (-9, ""),
}
EARLY = ["leave_by_break", "close", "use_two", "lose_worker", "use_all"]


def leave(method, ways, folder):
    """Leave `nlp.pipe` early; no process may be left. RETURNS (tuple): Exit code and outputs."""
    program = PROGRAMS / "leave_pipe.py"
    with started([sys.executable, program, folder, method, *ways]) as (process, read):
        wait(process, read)
        left, (output, errors) = wait_for_end(process.pid), read()
    assert not left, f"these processes outlived nlp.pipe: {left}"
    return process.returncode, output, errors


@needs_fork
@pytest.mark.parametrize(
    "end",
    ["fail", *(pytest.param(x, marks=pytest.mark.slow) for x in ENDS if x != "fail")],
)
def test_the_end_of_a_program_in_the_middle_of_a_pipe(weights_folder, end):
    code, _, errors = leave("fork", [end], weights_folder)
    assert code == ENDS[end][0] and ENDS[end][1] in errors, errors


@needs_fork
@pytest.mark.slow
def test_a_pipe_that_is_left_early_leaves_nothing(weights_folder):
    code, output, errors = leave("fork", EARLY, weights_folder)
    assert code == 0, errors
    before, *after = json.loads(output)
    assert after == [before] * len(EARLY)


@pytest.mark.slow
def test_spawned_workers_and_a_pipe_that_is_left_early(weights_folder):
    code, _, errors = leave("spawn", ["leave_by_break", "fail"], weights_folder)
    assert code == 1 and ENDS["fail"][1] in errors, errors


@needs_fork
@pytest.mark.slow
def test_fork_while_threads_run(tmp_path, weights_folder):
    n_calls, n_forks = 300, 10
    result = run(tmp_path, "fork_beside_threads.py", weights_folder, n_calls, n_forks)
    assert result == [8 * (1 + n_calls) + 7 * n_forks, True]


@needs_fork
@pytest.mark.slow
def test_forked_processes_use_one_thread_for_elmo_only(tmp_path, weights_folder):
    assert run(tmp_path, "count_threads_in_forks.py", weights_folder) == {
        "no elmo": 2,
        "first use": 1,
        "use again": 1,
        "choose afterwards": 3,
        "choose, and fork again": 1,
        "parent": 2,
    }


@pytest.mark.forks
def test_fork_while_another_thread_has_its_turn():
    inside, forked = threading.Event(), threading.Event()

    def wait_inside():
        with one_thread():
            inside.set()
            forked.wait(TIMEOUT)

    thread = threading.Thread(target=wait_inside)
    thread.start()
    inside.wait(TIMEOUT)
    process = os.fork()
    if process == 0:
        signal.alarm(30)
        with one_thread():
            os._exit(0)
    _, status = os.waitpid(process, 0)
    forked.set()
    thread.join()
    assert status == 0


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
    for doc, _ in docs:
        assert max_difference(doc._.elmo_layers, docs[0][0]._.elmo_layers) <= 1e-6


def fork():
    process = os.fork()
    if process == 0:
        os._exit(0)
    os.waitpid(process, 0)
    return True


@pytest.mark.forks
def test_iterators_of_sentences_may_wait_for_forks():
    def sentences():
        assert in_threads(fork) == [True]
        yield ["the", "bank"]

    [[layers]] = in_threads(lambda: current_session(random_bilm()).embed(sentences()))
    [expected] = current_session(random_bilm()).embed([["the", "bank"]])
    assert max_difference(layers, expected) <= 1e-6


@pytest.mark.forks
def test_a_fork_need_not_wait_for_the_reader_of_batches():
    """Between two batches, the biLM does not run."""
    session = current_session(random_bilm(), Settings(max_tokens_per_batch=3))
    for _ in session.batches(["the"], numpy.zeros(2, dtype=int), [1, 1]):
        assert in_threads(fork) == [True]
