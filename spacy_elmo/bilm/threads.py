"""Threads that run parts of a call side by side, each with one thread inside PyTorch's operators.

Threads inside an operator wait for each other at its end. Where operators take microseconds, as
those of an LSTM's steps do, little is gained by them, and much is lost as soon as another process
takes one of the cores. Parts of a call have thousands of operators, and need not wait.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import lru_cache
from typing import Literal, Optional, TypeVar

import torch

from .forking import no_fork

T = TypeVar("T")
_STARTING = threading.Lock()  # Held to read or set the number of threads inside operators.


def start(task: Callable[[], T], device: torch.device) -> Callable[[], T]:
    """Run a task in another thread, as many at a time as `torch.get_num_threads` says in this one;
    with one, or on a GPU, in this thread when the result is needed. A task that enters `no_fork`
    must not be started, or waited for, by a thread that is inside it: while another thread waits to
    fork, it would not run.

    task (Callable): What to run.
    device (torch.device): Where it computes.
    RETURNS (Callable): Waits for the task, and returns what it returns. To be called once.
    """
    future = _submit(task, device, "tasks")
    if future is None:
        return task
    process = os.getpid()
    # A forked process does not have the thread.
    return lambda: future.result() if os.getpid() == process else task()


def run_side_by_side(tasks: Sequence[Callable[[], T]], device: torch.device) -> list[T]:
    """Run tasks, each in a thread of its own if there are several (see `start`). No other thread
    forks the process meanwhile: the tasks must not enter `no_fork`. When this returns or raises, no
    task runs any more: they write to the same tensors.

    RETURNS (list): Their results.
    """
    if torch.is_inference_mode_enabled():  # A setting of each thread.
        tasks = [torch.inference_mode()(task) for task in tasks]
    futures: list[Optional[Future[T]]] = []
    with no_fork():
        try:
            for task in tasks:
                futures.append(_submit(task, device, "parts") if len(tasks) > 1 else None)
            pairs = zip(tasks, futures)
            return [task() if future is None else future.result() for task, future in pairs]
        finally:
            submitted = [future for future in futures if future is not None]
            for future in submitted:
                future.cancel()
            wait(submitted)


def _submit(
    task: Callable[[], T], device: torch.device, pool: Literal["tasks", "parts"]
) -> Optional[Future[T]]:
    """RETURNS (Optional[Future]): None if the task is to run in this thread."""
    # A thread's first call copies the number of the process, which `_use_one_thread` changes for a
    # moment.
    with _STARTING:
        n_threads = torch.get_num_threads()
    if device.type != "cpu" or n_threads == 1:
        return None
    try:
        return _pool(n_threads, pool).submit(task)
    except RuntimeError:  # The main thread has ended, or no thread can be started.
        return None


@lru_cache(maxsize=2)  # The threads of a pool end when nothing refers to it.
def _pool(n_threads: int, name: str) -> ThreadPoolExecutor:
    """There are two of them, for the last number of threads: while a thread waits to fork, those of
    `start` may all wait in `no_fork`, until a thread inside it has the results of
    `run_side_by_side`."""
    # Threads of Python: PyTorch's operators run without the global interpreter lock.
    pool = ThreadPoolExecutor(n_threads, f"spacy-elmo-{name}", initializer=_use_one_thread)
    # All threads begin here, so that later calls leave the number of new threads alone.
    barrier = threading.Barrier(n_threads)
    for future in [pool.submit(barrier.wait, 10) for _ in range(n_threads)]:
        future.result()
    return pool


@contextmanager
def one_thread() -> Iterator[None]:
    """A context with one thread inside operators, for an instant (see `_use_one_thread`)."""
    with _STARTING:
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)


def _use_one_thread() -> None:
    """Set the number of this thread. PyTorch makes it the number of threads that begin later as
    well; another thread sets that back. A thread of the user that calls PyTorch for the first time
    in this instant gets 1, too."""
    with _STARTING:
        number_of_new_threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            other = threading.Thread(target=torch.set_num_threads, args=(number_of_new_threads,))
            other.start()
            other.join()
        except RuntimeError:  # It cannot be started. This thread is slower, but right.
            torch.set_num_threads(number_of_new_threads)


def _after_fork_in_child() -> None:
    """A child has none of the threads, and another thread may have held the lock."""
    global _STARTING
    _STARTING = threading.Lock()
    _pool.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
