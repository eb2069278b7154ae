"""Leaving `nlp.pipe(n_process=2)` early: a `break`, an exception, a signal, the death of a process.

spaCy (3.8) closes its ends of the pipes to its workers, and waits for these. Forked workers have
inherited all ends: to write into a full pipe that nobody reads waits for ever instead of failing.
Here, they close the ends that they do not need. The process that started them waits neither for
texts that no worker reads any more, nor, at its end, for workers of a call that it has not closed.

What is open is in the local variables of the frame of `nlp.pipe`, unless spaCy renames them.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import sys
import traceback
import weakref
from multiprocessing.connection import wait
from multiprocessing.reduction import ForkingPickler
from typing import Any

from .layers.upstream import RunState

# What the calls of `nlp.pipe` have opened, until their frames are gone.
_workers: weakref.WeakSet[Any] = weakref.WeakSet()
_results: weakref.WeakSet[Any] = weakref.WeakSet()  # Connections, for reading.
# Queues of texts, and what is called when they are gone.
_texts: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def _calls() -> list[dict[str, Any]]:
    """RETURNS (list): The local variables of each `nlp.pipe` that runs in this thread: one may read
    the docs of another."""
    frames = (frame for frame, _ in traceback.walk_stack(sys._getframe()))
    return [x.f_locals for x in frames if x.f_code.co_name == "_multiprocessing_pipe"]


def _before_start() -> None:
    for call in _calls():
        _workers.update(call.get("procs", ()))
        _results.update(call.get("bytedocs_recv_ch", ()))
        for queue in call.get("texts_q", ()):
            queue.cancel_join_thread()  # When a call ends as usual, all texts have been read.
            if queue not in _texts and hasattr(os, "fork"):
                reader = os.dup(queue._reader.fileno())
                _texts[queue] = weakref.finalize(queue, _read_the_rest, reader)
                _texts[queue].atexit = False


def _read_the_rest(reader: int) -> None:
    """Let the thread end that writes texts for a worker that is gone."""
    while wait([reader], timeout=1) and os.read(reader, 1 << 20):
        pass
    os.close(reader)


def _after_fork_in_child() -> None:
    _workers.clear()
    for reader in _results:
        reader.close()
    for queue, finalizer in _texts.items():
        queue._writer.close()
        finalizer.detach()
    for call in _calls():
        workers = call.get("procs", ())
        for number, writer in enumerate(call.get("bytedocs_send_ch", ())):
            if not workers or workers[number] is not call["proc"]:
                writer.close()


def _reduce(state: RunState) -> Any:
    # Processes that are not forked get the pipeline as a pickle.
    _before_start()
    return state.__reduce__()


@atexit.register
def _end_workers() -> None:
    for worker in set(multiprocessing.active_children()) & set(_workers):
        worker.terminate()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_start, after_in_child=_after_fork_in_child)
ForkingPickler.register(RunState, _reduce)
