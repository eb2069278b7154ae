"""Handlers of signals, for the time of a `with` block."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

# Of the system, a user, a lost connection, and a scheduler. Not every system has all.
_NAMES = ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1")
STOP_SIGNALS = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]


@contextlib.contextmanager
def handle_signals(handler: Callable[[int, Any], object], *numbers: int) -> Iterator[None]:
    """Call a handler when one of these signals comes. Those that the process was started to ignore
    (`nohup`) stay ignored. Only the main thread can: in another one, nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        numbers = ()
    numbers = tuple(n for n in numbers if signal.getsignal(n) is not signal.SIG_IGN)
    previous = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in previous.items():
            signal.signal(number, old)
