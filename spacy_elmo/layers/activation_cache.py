"""What a frozen biLM computed for the sequences of the training data, kept from epoch to epoch."""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Optional, Union

import numpy
from spacy.util import registry

from ..bilm.forking import no_fork


@registry.misc("spacy-elmo.ActivationCache.v1")
def make_activation_cache(
    memory_mb: float = 1024,
    half_precision: bool = False,
    folder: Optional[Union[str, Path]] = None,
    folder_mb: Optional[float] = None,
) -> ActivationCache:
    """See `ActivationCache`.

    memory_mb (float): Bound of what is kept in memory, in MiB.
    half_precision (bool): Keep float16: half the bytes, values rounded to 11 bits.
    folder (Optional[Union[str, Path]]): For what does not fit into memory; None for none.
    folder_mb (Optional[float]): Bound of what is written to the folder, in MiB; None for none.
    RAISES (ValueError): If a bound is negative.
    """
    for name, value in (("memory_mb", memory_mb), ("folder_mb", folder_mb)):
        if value is not None and value < 0:
            raise ValueError(f"activation cache: {name} must be 0 or more, found {value}")
    folder_bytes = None if folder_mb is None else int(folder_mb * 2**20)
    return ActivationCache(int(memory_mb * 2**20), half_precision, folder, folder_bytes)


class ActivationCache:
    """Activations by sequence. Entries are never evicted: every sequence recurs once per epoch, so
    that evicting the oldest would always evict the one needed next.

    Everything is in NumPy arrays, so that the bound is one of main memory also if the biLM is on a
    GPU, whose memory it needs itself. What does not fit goes to a file that has no name and
    disappears with the process. The folder is not used before it is needed: a pipeline loads also
    if there is no such folder. A copy, or a pickle, of a cache is empty. A forked process has what
    was in memory.

    memory_bytes, half_precision, folder, folder_bytes: See `make_activation_cache`.

    The attribute `expected` is the set of keys whose activations are to be kept.
    """

    def __init__(
        self,
        memory_bytes: int,
        half_precision: bool = False,
        folder: Optional[Union[str, Path]] = None,
        folder_bytes: Optional[int] = None,
    ) -> None:
        self.memory_bytes = memory_bytes
        self.half_precision = half_precision
        self.folder = folder
        self.folder_bytes = folder_bytes
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._in_memory: dict[Any, numpy.ndarray] = {}
        # The offset in the file, and the shape.
        self._on_disk: dict[Any, tuple[int, tuple[int, ...]]] = {}
        self._file: Optional[IO[bytes]] = None
        self.expected: set[Any] = set()
        self._process = os.getpid()
        self._source: Callable[[], Any] = lambda: None
        self.bytes_in_memory = self.bytes_on_disk = 0

    def __reduce__(self) -> tuple:
        settings = (self.memory_bytes, self.half_precision, self.folder, self.folder_bytes)
        return type(self), settings

    def __len__(self) -> int:
        return len(self._in_memory) + len(self._on_disk)

    def bind(self, source: Any) -> None:
        """Name what computes the activations, and forget those of anything else.

        source (Any): An object that is replaced when its results change.
        """
        if source is not self._source():
            self.clear()
            self._source = weakref.ref(source)

    def clear(self) -> None:
        """Forget everything, and free memory and disk."""
        with no_fork(), self._lock:
            if self._file is not None:
                self._file.close()
            self._forget()

    def get(self, key: Any) -> Optional[numpy.ndarray]:
        """RETURNS (Optional[ndarray]): What was put, perhaps as float16. Must not be changed."""
        if key not in self._on_disk:
            return self._in_memory.get(key)
        with self._exclusive():
            if key not in self._on_disk or self._file is None:
                return None  # Of the parent process, or cleared meanwhile.
            offset, shape = self._on_disk[key]
            self._file.seek(offset)
            dtype = numpy.dtype("float16" if self.half_precision else "float32")
            data = self._file.read(math.prod(shape) * dtype.itemsize)
        return numpy.frombuffer(data, dtype).reshape(shape)

    def put(self, key: Any, activations: numpy.ndarray) -> numpy.ndarray:
        """Keep activations if there is room for them.

        key (Any): Hashable; distinguishes sequences.
        activations (ndarray): Of shape (L+1, tokens, 2P).
        RETURNS (ndarray): What `get` would return: float16 also if there was no room, so that
            values do not depend on that.
        """
        if self.half_precision:
            activations = activations.astype("float16")
        n_bytes = activations.nbytes
        with self._exclusive():
            if key in self._in_memory or key in self._on_disk:
                return activations
            if self.bytes_in_memory + n_bytes <= self.memory_bytes:
                # A copy: a view would keep the whole batch.
                self._in_memory[key] = activations.copy()
                self.bytes_in_memory += n_bytes
            elif self.folder is not None and (
                self.folder_bytes is None or self.bytes_on_disk + n_bytes <= self.folder_bytes
            ):
                self._write(key, activations)
        return activations

    def _write(self, key: Any, activations: numpy.ndarray) -> None:
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(  # noqa: SIM115 (open as long as the cache)
                    dir=self.folder, prefix="spacy-elmo-"
                )
            self._file.seek(self.bytes_on_disk)
            self._file.write(activations.tobytes())
            self._file.flush()  # A forked process must not write it a second time.
        except OSError as error:
            warnings.warn(
                f"activation cache: cannot write to {self.folder} ({error}); training continues, "
                "and computes again what does not fit into memory",
                stacklevel=2,
            )
            self.folder = None
            return
        self._on_disk[key] = self.bytes_on_disk, activations.shape
        self.bytes_on_disk += activations.nbytes

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Hold the lock. A forked process starts without the file, whose position it would share
        with its parent."""
        with no_fork(), self._lock:
            if self._process != os.getpid():
                self._process, self._file = os.getpid(), None
                self._on_disk, self.bytes_on_disk = {}, 0
            yield
