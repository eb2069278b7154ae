"""Calls of several threads that come while another one runs, run together."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Optional
from weakref import WeakSet

import numpy
import torch
from torch import Tensor

from ..parallel import no_fork

# Types, the type of each token, and lengths.
Batch = tuple[Sequence[str], numpy.ndarray, numpy.ndarray]
# To the layers, shape (L+1, tokens, 2P).
Run = Callable[[Sequence[str], numpy.ndarray, numpy.ndarray], Tensor]


# After a run, the next one waits for as many calls, no longer than this fraction of its time: the
# callers that it has served often come again.
_PATIENCE = 0.25


@dataclass(eq=False)
class _Call:
    types: Sequence[str]
    index: numpy.ndarray
    lengths: numpy.ndarray
    n_tokens: int
    layers: Optional[Tensor] = None
    ended: bool = False


class Callers:
    """Runs one call at a time. When it has ended, the calls that have waited longest are run
    together, up to `max_tokens`. Who calls alone does not wait, but once, shortly, after others.

    The thread of the first of them runs them all. If that fails, each thread runs its own call by
    itself: an error reaches only its caller, and an interrupt only the thread that is
    interrupted."""

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.forget()
        _ALL.add(self)

    def forget(self) -> None:
        """Forget all calls, in a forked process: it has none of their threads."""
        # Entered as it is: see `parallel`.
        self._lock = threading.Lock()
        # Waited for outside of `no_fork`: by all callers, and by the one that runs the next calls.
        self._changed, self._more = (threading.Condition(self._lock) for _ in range(2))
        self._waiting: list[_Call] = []
        self._leader: Optional[_Call] = None
        # How many calls the next run may wait for, and until when.
        self._n_expected, self._deadline = 0, 0.0

    def run(self, run: Run, batch: Batch, n_tokens: int) -> Tensor:
        """Run a call of at most `max_tokens` tokens, sentence boundaries included. `run` is the
        same for all: it comes with each, because a cycle would keep its weights in memory.
        RETURNS (Tensor): All layers, shape (L+1, tokens, 2P). No two calls share memory."""
        call = _Call(*batch, n_tokens)
        taken: list[_Call] = []  # Those that this thread runs.
        start = 0.0
        try:
            with self._lock:
                self._waiting.append(call)
                self._more.notify()
                # In their order: a long call, with which no other fits, would else wait for ever,
                # and others would run singly meanwhile.
                self._changed.wait_for(
                    lambda: call.ended or (self._leader is None and self._waiting[0] is call)
                )
                if not call.ended:
                    self._leader = call
                    self._more.wait_for(self._are_enough, self._deadline - time.monotonic())
                    room = self.max_tokens  # For those that have waited longest.
                    while self._waiting and self._waiting[0].n_tokens <= room:
                        room -= self._waiting[0].n_tokens
                        taken.append(self._waiting[0])
                        del self._waiting[0]
                    start = time.monotonic()
            if len(taken) > 1:
                self._run_together(run, taken)
            # Either it is alone, or what ran it with others has failed.
            return run(*batch) if call.layers is None else call.layers
        finally:
            # An interrupt may have come at any line.
            with self._lock:
                for one in taken:
                    one.ended = True
                if call in self._waiting:
                    self._waiting.remove(call)
                    self._changed.notify_all()
                if self._leader is call:
                    self._leader = None
                    self._n_expected = len(taken) + len(self._waiting)
                    end = time.monotonic()
                    self._deadline = end + _PATIENCE * (end - start if start else 0)
                    self._changed.notify_all()

    def _are_enough(self) -> bool:
        n_tokens = sum(call.n_tokens for call in self._waiting)
        return len(self._waiting) >= self._n_expected or n_tokens >= self.max_tokens

    def _run_together(self, run: Run, calls: list[_Call]) -> None:
        n_types = numpy.cumsum([0, *(len(call.types) for call in calls)])
        try:
            layers = run(
                [text for call in calls for text in call.types],
                numpy.concatenate([call.index + n for call, n in zip(calls, n_types)]),
                numpy.concatenate([call.lengths for call in calls]),
            )
            # Their callers may compute gradients of a mix, or change them.
            with no_fork(), torch.inference_mode(False), torch.no_grad():
                parts = layers.split([len(call.index) for call in calls], dim=1)
                for call, part in zip(calls, parts):
                    call.layers = part.clone(memory_format=torch.contiguous_format)
        except Exception:  # It may be of any of them.
            for call in calls:
                call.layers = None


_ALL: WeakSet[Callers] = WeakSet()


def _after_fork_in_child() -> None:
    for callers in _ALL:
        callers.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
