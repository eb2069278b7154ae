"""Threads that run a biLM, and processes that fork meanwhile (`nlp.pipe(n_process=2)`).

Only the thread that forks exists in the child. Locks that other threads hold at that moment stay
locked there for ever: those of this package, and those inside PyTorch, whose operators run without
the global interpreter lock. So a fork waits until no other thread runs a biLM, and keeps other
threads from beginning meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import threading

import torch


class ForkGate(contextlib.ContextDecorator):
    """A context, or a decorator of functions, during which no other thread forks the process.

    A thread may enter it again while it is inside. A thread that forks does not wait for itself.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside: dict[int, int] = {}  # How many times each thread has entered.
        self._forking: list[int] = []  # Threads that want to fork, the next one first.
        self._in_child = False
        self._local = threading.local()

    def __enter__(self) -> None:
        thread = threading.get_ident()
        with self._changed:
            if thread not in self._inside:
                self._changed.wait_for(lambda: not self._forking or self._forking[0] == thread)
            self._inside[thread] = self._inside.get(thread, 0) + 1
        # GNU OpenMP would wait for ever for threads that a forked process does not have. The number
        # is a setting of each thread.
        if self._in_child and not hasattr(self._local, "one_thread"):
            torch.set_num_threads(1)
            self._local.one_thread = True

    def __exit__(self, *error: object) -> None:
        thread = threading.get_ident()
        with self._changed:
            self._inside[thread] -= 1
            if not self._inside[thread]:
                del self._inside[thread]
                self._changed.notify_all()

    def before_fork(self) -> None:
        thread = threading.get_ident()
        with self._changed:
            self._forking.append(thread)
            self._changed.notify_all()
            # A thread that wants to fork from inside does nothing else now.
            self._changed.wait_for(
                lambda: self._forking[0] == thread and self._inside.keys() <= set(self._forking)
            )

    def after_fork_in_parent(self) -> None:
        with self._changed:
            self._forking.remove(threading.get_ident())
            self._changed.notify_all()

    def after_fork_in_child(self) -> None:
        # Another thread may have held this lock for a moment.
        self._changed = threading.Condition()
        thread = threading.get_ident()
        self._inside = {thread: self._inside[thread]} if thread in self._inside else {}
        self._forking = []
        self._in_child = True


FORK_GATE = ForkGate()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=FORK_GATE.before_fork,
        after_in_parent=FORK_GATE.after_fork_in_parent,
        after_in_child=FORK_GATE.after_fork_in_child,
    )
