"""Threads that run parts of a call side by side, each with one thread inside PyTorch's operators.

Threads inside an operator wait for each other at its end. Where operators take microseconds, as
those of an LSTM's steps do, little is gained by them, and much is lost as soon as another process
takes one of the cores. Parts of a call have thousands of operators, and need not wait.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

import torch

T = TypeVar("T")
_STARTING = threading.Lock()


def count_threads(device: torch.device) -> int:
    """RETURNS (int): How many tasks run side by side: as many as PyTorch has threads in the thread
    that asks, and one where operators do not wait for their results."""
    return torch.get_num_threads() if device.type == "cpu" else 1


def start(task: Callable[[], T], device: torch.device) -> Callable[[], T]:
    """Run a task in another thread; if `count_threads` is one, in this thread when its result is
    needed. Callers must not be inside `no_fork`, neither here nor when they wait for the result:
    threads that wait for a fork would not run it.

    task (Callable): Must enter `no_fork` itself.
    device (torch.device): Where it computes.
    RETURNS (Callable): Waits for the task, and returns what it returns. It must be called once.
    """
    n_threads = count_threads(device)
    return task if n_threads == 1 else _pool(n_threads).submit(task).result


@cache
def _pool(n_threads: int) -> ThreadPoolExecutor:
    # Threads of Python: PyTorch's operators run without the global interpreter lock.
    return ThreadPoolExecutor(n_threads, "spacy-elmo", initializer=_use_one_thread)


def _use_one_thread() -> None:
    """Set the number of this thread. PyTorch makes it the number of threads that begin later as
    well; another thread sets that back."""
    with _STARTING:
        number_of_new_threads = torch.get_num_threads()
        torch.set_num_threads(1)
        other = threading.Thread(target=torch.set_num_threads, args=(number_of_new_threads,))
        other.start()
        other.join()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # A child has none of the threads.
