"""Threads that run parts of a call side by side, and forks of the process beside them.

Each has one thread inside PyTorch's operators: the steps of an LSTM are too small for more.

A forked process (`nlp.pipe(n_process=2)`) has only the thread that forked it. Locks that others
hold then, such as PyTorch's, stay locked for ever. So a fork waits until no other thread runs a
biLM, and keeps other threads from beginning meanwhile.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import lru_cache
from typing import Optional, TypeVar

import torch

T = TypeVar("T")
# Entered as it is, not through the condition, whose methods are Python's: an interrupt (Ctrl-C)
# that comes there would leave it locked.
_lock = threading.RLock()
_changed = threading.Condition(_lock)
_inside: dict[int, int] = {}  # How many times each thread has entered `no_fork`.
_forking: list[int] = []  # Threads that want to fork, the next one first.
_limited: Optional[threading.local] = None  # In a forked process: threads that were inside.
_setting = threading.Lock()  # Held to read or set the number of threads inside operators.


@contextmanager
def no_fork() -> Iterator[None]:
    """A context, or a decorator of functions, during which no other thread forks the process. A
    thread may enter it again while it is inside. A thread that forks does not wait for itself."""
    thread, entered = threading.get_ident(), False
    try:
        with _lock:
            if thread not in _inside and _forking:
                _changed.wait_for(lambda: not _forking or _forking[0] == thread)
            _inside[thread] = _inside.get(thread, 0) + 1
            entered = True
        # GNU OpenMP would wait for ever for threads that a forked process does not have. The user
        # may choose another number later.
        if _limited is not None and not hasattr(_limited, "limited"):
            _limited.limited = True
            if torch.get_num_threads() > 1:
                torch.set_num_threads(1)
        yield
    finally:
        if entered:
            with _lock:
                _inside[thread] -= 1
                if not _inside[thread]:
                    del _inside[thread]
                    if _forking:
                        _changed.notify_all()


def start(task: Callable[[], T], device: torch.device) -> Callable[[], T]:
    """Run a task in another thread, as many at a time as `torch.get_num_threads` says in this one;
    with one, or on a GPU, in this thread when the result is needed. A thread inside `no_fork` must
    neither start nor await a task that enters it: with a fork waiting, the task would not run.
    RETURNS (Callable): Waits for the task, and returns what it returns. To be called once."""
    future, process = _submit(task, device, "tasks"), os.getpid()
    if future is None:
        return task
    # A forked process does not have the thread.
    return lambda: future.result() if os.getpid() == process else task()


def run_side_by_side(tasks: Sequence[Callable[[], T]], device: torch.device) -> list[T]:
    """Run tasks, each in a thread of its own if there are several (see `start`); within `no_fork`,
    which they must not enter. When this returns or raises, no task runs any more."""
    if torch.is_inference_mode_enabled():  # A setting of each thread.
        tasks = [torch.inference_mode()(task) for task in tasks]
    with no_fork():
        futures = [_submit(x, device, "parts") if len(tasks) > 1 else None for x in tasks]
        try:
            pairs = zip(tasks, futures)
            return [task() if future is None else future.result() for task, future in pairs]
        finally:
            wait([future for future in futures if future is not None and not future.cancel()])


def _submit(task: Callable[[], T], device: torch.device, pool: str) -> Optional[Future[T]]:
    """RETURNS (Optional[Future]): None if the task is to run in this thread."""
    with _setting:  # A thread's first call copies the number of the process.
        n_threads = torch.get_num_threads()
    if device.type != "cpu" or n_threads == 1:
        return None
    try:
        return _pool(n_threads, pool).submit(task)
    except RuntimeError:  # The main thread has ended, or no thread can be started.
        return None


@lru_cache(maxsize=2)  # The threads of a pool end when nothing refers to it.
def _pool(n_threads: int, name: str) -> ThreadPoolExecutor:
    """Two pools, or a fork could dead-lock: all threads of "tasks" may wait in `no_fork` for a
    thread that waits for "parts"."""
    pool = ThreadPoolExecutor(n_threads, f"spacy-elmo-{name}", initializer=_use_one_thread)
    # All threads begin here, so that later calls leave the number of new threads alone.
    barrier = threading.Barrier(n_threads)
    for future in [pool.submit(barrier.wait, 10) for _ in range(n_threads)]:
        future.result()
    return pool


def _use_one_thread() -> None:
    """Limit this thread to one thread inside operators. `set_num_threads` also changes the default
    of threads that begin later, which another thread restores."""
    with _setting:
        default = torch.get_num_threads()
        torch.set_num_threads(1)
        other = threading.Thread(target=torch.set_num_threads, args=(default,))
        other.start()
        other.join()


def _before_fork() -> None:
    thread = threading.get_ident()
    with _lock:
        _forking.append(thread)
        _changed.notify_all()
        # A thread that wants to fork from inside does nothing else now.
        _changed.wait_for(lambda: _forking[0] == thread and _inside.keys() <= set(_forking))


def _after_fork() -> None:
    with _lock:
        _forking.remove(threading.get_ident())
        _changed.notify_all()


def _after_fork_in_child() -> None:
    """Forget the other threads: a child has none of them."""
    global _lock, _changed, _setting, _limited
    _lock, _setting, _limited = threading.RLock(), threading.Lock(), threading.local()
    _changed = threading.Condition(_lock)
    for thread in _inside.keys() - {threading.get_ident()}:
        del _inside[thread]
    _forking.clear()
    _pool.cache_clear()


if hasattr(os, "register_at_fork"):
    hooks = {"after_in_parent": _after_fork, "after_in_child": _after_fork_in_child}
    os.register_at_fork(before=_before_fork, **hooks)
