"""What a frozen biLM computed for the sequences of the training data, kept from epoch to epoch."""

from __future__ import annotations

import math
import os
import tempfile
import threading
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Optional, Union

import numpy
from spacy.util import registry

from ..parallel import no_fork

# Bound of what is remembered of sequences that came once.
_MAX_SEEN = 2**20


@registry.misc("spacy-elmo.ActivationCache.v1")
class ActivationCache:
    """Activations by sequence. Entries are never evicted: every sequence recurs once per epoch, so
    that evicting the oldest would always evict the one needed next.

    Entries are in main memory, also if the biLM is on a GPU. What does not fit goes to a file that
    has no name and disappears with the process. A copy, or a pickle, of a cache is empty. A forked
    process can read the entries of its parent.

    memory_mb (float): Bound of what is kept in memory, in MiB.
    half_precision (bool): Keep float16: half the bytes, values rounded to 11 bits.
    folder (Optional[Union[str, Path]]): For what does not fit into memory; None for none.
    folder_mb (Optional[float]): Bound of what is written to the folder, in MiB; None for none.
    RAISES (ValueError): If a bound is negative.
    """

    # The config system checks settings by these.
    memory_mb: float
    half_precision: bool
    folder: Optional[Union[str, Path]]
    folder_mb: Optional[float]

    def __init__(
        self,
        memory_mb: float = 1024,
        half_precision: bool = False,
        folder: Optional[Union[str, Path]] = None,
        folder_mb: Optional[float] = None,
    ) -> None:
        for name, value in (("memory_mb", memory_mb), ("folder_mb", folder_mb)):
            if value is not None and value < 0:
                raise ValueError(f"activation cache: {name} must be 0 or more, found {value}")
        self.memory_mb = memory_mb
        self.half_precision = half_precision
        self.folder = folder
        self.folder_mb = folder_mb
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        # An array, or its offset in the file and its shape.
        self._entries: dict[Any, Any] = {}
        self._seen: set[int] = set()
        self._file: Optional[IO[bytes]] = None
        self._process = os.getpid()
        self._source: Callable[[], Any] = lambda: None
        self.bytes_in_memory = self.bytes_on_disk = 0

    def __reduce__(self) -> tuple:
        return type(self), (self.memory_mb, self.half_precision, self.folder, self.folder_mb)

    def __len__(self) -> int:
        return len(self._entries)

    def bind(self, source: Any) -> None:
        """Set the source of the activations, an object that is replaced when its results change.
        Another source clears the cache."""
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
        entry = self._entries.get(key)
        if not isinstance(entry, tuple):
            return entry
        with no_fork(), self._lock:
            if self._file is None:
                return None  # Cleared meanwhile.
            dtype = "float16" if self.half_precision else "float32"
            # Not read: a forked process shares the position of the file with its parent.
            return numpy.array(numpy.memmap(self._file, dtype, "r", *entry))

    def comes_again(self, key: Any) -> bool:
        """RETURNS (bool): Whether this was asked for the sequence before."""
        number = hash(key)
        if number in self._seen:
            return True
        if len(self._seen) >= _MAX_SEEN:
            self._seen.clear()
        self._seen.add(number)
        return False

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
        with no_fork(), self._lock:
            if key in self._entries:
                return activations
            if self.bytes_in_memory + n_bytes <= self.memory_mb * 2**20:
                # A copy: a view would keep the whole batch.
                self._entries[key] = activations.copy()
                self.bytes_in_memory += n_bytes
            elif self.folder is not None and self._process == os.getpid():
                bound = math.inf if self.folder_mb is None else self.folder_mb * 2**20
                if self.bytes_on_disk + n_bytes <= bound:
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
            self._file.flush()
        except OSError as error:
            warnings.warn(
                f"activation cache: cannot write to {self.folder} ({error}); training continues, "
                "and computes again what does not fit into memory",
                stacklevel=2,
            )
            self.folder = None
            return
        self._entries[key] = self.bytes_on_disk, activations.shape
        self.bytes_on_disk += activations.nbytes
