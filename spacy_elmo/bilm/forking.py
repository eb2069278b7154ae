"""Processes that fork while other threads run a biLM (`nlp.pipe(n_process=2)`).

Only the thread that forks exists in the child. Locks that other threads hold at that moment stay
locked there for ever: those of this package, and those inside PyTorch, whose operators run without
the global interpreter lock. So a fork waits until no other thread runs a biLM, and keeps other
threads from beginning meanwhile.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_changed = threading.Condition()
_inside: dict[int, int] = {}  # How many times each thread has entered `no_fork`.
_forking: list[int] = []  # Threads that want to fork, the next one first.
_in_child = False
_limited = threading.local()  # `limited`: in a forked process, once this thread was inside.


@contextmanager
def no_fork() -> Iterator[None]:
    """A context, or a decorator of functions, during which no other thread forks the process. A
    thread may enter it again while it is inside. A thread that forks does not wait for itself."""
    thread = threading.get_ident()
    with _changed:
        if thread not in _inside:
            _changed.wait_for(lambda: not _forking or _forking[0] == thread)
        _inside[thread] = _inside.get(thread, 0) + 1
    try:
        # GNU OpenMP would wait for ever for threads that a forked process does not have. The number
        # is a setting of each thread. It is changed once: the user may choose another one later.
        if _in_child and not hasattr(_limited, "limited"):
            _limited.limited = True
            if torch.get_num_threads() > 1:
                torch.set_num_threads(1)
        yield
    finally:
        with _changed:
            _inside[thread] -= 1
            if not _inside[thread]:
                del _inside[thread]
                _changed.notify_all()


def _before_fork() -> None:
    thread = threading.get_ident()
    with _changed:
        _forking.append(thread)
        _changed.notify_all()
        # A thread that wants to fork from inside does nothing else now.
        _changed.wait_for(lambda: _forking[0] == thread and _inside.keys() <= set(_forking))


def _after_fork_in_parent() -> None:
    with _changed:
        _forking.remove(threading.get_ident())
        _changed.notify_all()


def _after_fork_in_child() -> None:
    """A child has the thread that forked it alone."""
    global _changed, _in_child, _limited
    _changed = threading.Condition()
    for thread in _inside.keys() - {threading.get_ident()}:
        del _inside[thread]
    _forking.clear()
    _in_child, _limited = True, threading.local()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
