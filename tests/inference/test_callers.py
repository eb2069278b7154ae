"""Calls of several threads that are run together, each against the same call alone."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from spacy_elmo import EmbedTokens
from spacy_elmo.inference import Session, Settings, current_session

from ..bilm.test_model import SENTENCES
from ..conftest import assert_close, elmo_pipeline, max_difference

CALLS = [[tokens] for tokens in SENTENCES if tokens] + [list(SENTENCES)]


class Gate:
    """Holds the first run of a session, until so many other calls wait, and counts the sentences
    of each run."""

    def __init__(self, session: Session, n_waiting: int, fail=lambda types, number: None) -> None:
        self.entered, self.sizes, self.fail, self.n_waiting = threading.Event(), [], fail, n_waiting
        self.callers, self.run = session._callers, session._run_one_batch
        session._run_one_batch = self

    def __call__(self, types, index, lengths):
        self.sizes.append(len(lengths))
        number = len(self.sizes)
        if number == 1:
            self.entered.set()
            self.wait_for(self.n_waiting)
        self.fail(types, number)
        return self.run(types, index, lengths)

    def wait_for(self, n_waiting):
        end = time.monotonic() + 60
        while len(self.callers._waiting) < n_waiting and time.monotonic() < end:
            time.sleep(0.001)


def outcome(run, *arguments):
    try:
        return run(*arguments)
    except BaseException as error:
        return error


def run_calls(gate, run, calls):
    """Run the first call, and while it runs the others, which come in their order.
    RETURNS (list): What each returns."""
    with ThreadPoolExecutor(len(calls)) as pool:
        futures = [pool.submit(outcome, run, calls[0])]
        assert gate.entered.wait(60)
        for n_waiting, call in enumerate(calls[1:]):
            gate.wait_for(n_waiting)
            futures.append(pool.submit(outcome, run, call))
        return [future.result(60) for future in futures]


def assert_calls(found, calls, bilm, precision="float32"):
    for result, call in zip(found, calls, strict=True):
        expected = Session(bilm, Settings(precision)).embed(call)
        assert_close(result, expected)
        assert not any(layers.is_inference() for layers in result)


@pytest.mark.parametrize(
    "precision, type_cache_mb", [("float32", 64), ("float32", 0), ("int8", 64)]
)
def test_calls_that_wait_run_together(bilm, precision, type_cache_mb):
    session = Session(bilm, Settings(precision, type_cache_mb=type_cache_mb))
    gate = Gate(session, len(CALLS) - 1)
    found = run_calls(gate, session.embed, CALLS)
    assert gate.sizes == [1, sum(map(len, CALLS)) - 1]
    found[1][0].zero_()  # No two share memory.
    assert_calls([found[0], *found[2:]], [CALLS[0], *CALLS[2:]], bilm, precision)


def test_a_run_is_bounded(bilm):
    """Four tokens and boundaries are six: of four waiting calls, two fit into a run."""
    session = Session(bilm, Settings(max_tokens_per_batch=13))
    calls = [[[f"{letter}{i}" for i in range(4)]] for letter in "abcde"]
    gate = Gate(session, 4)
    assert_calls(run_calls(gate, session.embed, calls), calls, bilm)
    assert gate.sizes == [1, 2, 2]


def test_a_long_call_keeps_its_turn(bilm):
    """It leaves no room for others, which neither pass it nor run singly."""
    session = Session(bilm, Settings(max_tokens_per_batch=13))
    calls = [[["the"]], [["bank"] * 10], *([[word]] for word in ("a", "river", "money", "rain"))]
    gate = Gate(session, 5)
    assert_calls(run_calls(gate, session.embed, calls), calls, bilm)
    assert gate.sizes == [1, 1, 4]


def test_an_interrupt_of_the_next_caller_reaches_only_it(bilm):
    """It is the one that the others would wait for."""
    session, threads = Session(bilm, Settings()), {}

    def run(call):
        threads[call[0][0]] = threading.get_ident()
        return session.embed(call)

    def interrupt(types, number):
        if number == 1:
            thread, error = ctypes.c_ulong(threads["river"]), ctypes.py_object(KeyboardInterrupt)
            assert ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, error) == 1

    calls = [[[word]] for word in ("the", "river", "bank", "money")]
    gate = Gate(session, 3, interrupt)
    found = run_calls(gate, run, calls)
    assert isinstance(found.pop(1), KeyboardInterrupt) and gate.sizes == [1, 2]
    assert_calls(found, [calls[0], *calls[2:]], bilm)


@pytest.mark.parametrize("bad", [0, 1, 3])
def test_an_error_reaches_only_its_caller(bilm, bad):
    calls = [[[word]] for word in ("the", "river", "bank", "money")]

    def fail(types, number):
        if calls[bad][0][0] in types:
            raise MemoryError("no memory")

    session = Session(bilm, Settings())
    found = run_calls(Gate(session, 3, fail), session.embed, calls)
    assert isinstance(found.pop(bad), MemoryError)
    del calls[bad]
    assert_calls(found, calls, bilm)


def test_an_interrupt_reaches_only_the_thread_that_runs(bilm):
    """Of the first run, and of the second one, which runs two calls."""

    def fail(types, number):
        if number <= 2:
            raise KeyboardInterrupt

    calls = [[[word]] for word in ("the", "river", "bank", "money")]
    session = Session(bilm, Settings())
    found = run_calls(Gate(session, 3, fail), session.embed, calls)
    interrupted = [isinstance(result, KeyboardInterrupt) for result in found]
    assert interrupted[0] and sum(interrupted) == 2
    served = [i for i, stopped in enumerate(interrupted) if not stopped]
    assert_calls([found[i] for i in served], [calls[i] for i in served], bilm)
    assert_calls([session.embed(calls[0])], calls[:1], bilm)


def test_a_stateful_session_joins_no_calls(bilm):
    session = Session(bilm, Settings(stateful=True))
    gate = Gate(session, 0)
    session.embed([["the", "bank"]])
    assert not gate.sizes


def test_what_a_session_holds_goes_with_it(bilm):
    """Without the garbage collector, which does not know how large packed weights are."""
    session = Session(bilm, Settings())
    session.embed(CALLS[0])
    gone = weakref.ref(session)
    gc.disable()
    try:
        del session
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.forks
def test_a_fork_while_a_call_runs_and_another_waits(bilm):
    """Both belong to threads that the child does not have."""
    session = Session(bilm, Settings())

    def fork(types, number):
        if number == 1:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(fork_and_embed).result(60)

    def fork_and_embed():
        process = os.fork()
        if not process:
            session._run_one_batch = gate.run
            os._exit(0 if session.embed([["the", "bank"]]) else 1)
        codes.append(os.waitpid(process, 0)[1])

    codes, gate = [], Gate(session, 1, fork)
    calls = [[["the"]], [["bank"]]]
    assert_calls(run_calls(gate, session.embed, calls), calls, bilm)
    assert codes == [0]


def test_a_pipeline_in_threads_of_asyncio(weights_folder):
    nlp, alone = elmo_pipeline(weights_folder), elmo_pipeline(weights_folder)
    gate = Gate(current_session(nlp.get_pipe("elmo").bilm), 3)
    texts = ["The bank.", "A river", "money and rain", ""]

    async def run():
        first = asyncio.create_task(asyncio.to_thread(nlp, "The first."))
        await asyncio.to_thread(gate.entered.wait, 60)
        return await asyncio.gather(first, *(asyncio.to_thread(nlp, text) for text in texts))

    for doc in asyncio.run(run()):
        assert max_difference(doc._.elmo_tokens, alone(doc.text)._.elmo_tokens) <= 1e-5
    assert gate.sizes == [1, 3]


def test_embed_tokens_in_threads(weights_folder):
    embedder = EmbedTokens(weights_folder)
    gate = Gate(current_session(embedder.bilm), 2)
    calls = [["the"], ["a", "bank"], ["money"]]
    alone = [EmbedTokens(weights_folder).embed_sentence(tokens) for tokens in calls]
    assert_close(run_calls(gate, embedder.embed_sentence, calls), alone)
    assert gate.sizes == [1, 2]
