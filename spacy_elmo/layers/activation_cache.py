"""What a frozen biLM computed for the sequences of the training data, kept from epoch to epoch."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple, Optional, Union

import numpy
from spacy.util import registry


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
    folder (Optional[Union[str, Path]]): Where what does not fit goes; None for nowhere.
    folder_mb (Optional[float]): Bound of what goes to the folder, in MiB; None for none.
    RAISES (ValueError): If a bound is negative.
    """
    for name, value in (("memory_mb", memory_mb), ("folder_mb", folder_mb)):
        if value is not None and value < 0:
            raise ValueError(f"activation cache: {name} must be 0 or more, found {value}")
    folder_bytes = None if folder_mb is None else int(folder_mb * 2**20)
    return ActivationCache(int(memory_mb * 2**20), half_precision, folder, folder_bytes)


class _OnDisk(NamedTuple):
    offset: int
    shape: tuple[int, ...]
    dtype: numpy.dtype


class ActivationCache:
    """Activations by sequence. What was there first stays: training comes back to every sequence
    once per epoch, an order in which throwing out the oldest would throw out what is needed next.

    Everything is in NumPy arrays, so that the bound holds for main memory also where the biLM is on
    a GPU, whose memory it needs itself. What does not fit goes to a file that has no name and is
    gone with the process. A copy, or a pickle, of a cache is empty; a forked process has what was
    in memory.

    memory_bytes (int): Bound of what is kept in memory.
    half_precision (bool): Keep float16.
    folder (Optional[Union[str, Path]]): Where what does not fit goes; None for nowhere. It is
        looked at when it is needed first: a pipeline loads also where there is no such folder.
    folder_bytes (Optional[int]): Bound of what goes there; None for none.
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
        self._process = os.getpid()
        self._entries: dict[Any, Union[numpy.ndarray, _OnDisk]] = {}
        self._file: Optional[IO[bytes]] = None
        self._source: Any = None
        self.bytes_in_memory = 0
        self.bytes_on_disk = 0

    def __reduce__(self) -> tuple:
        settings = (self.memory_bytes, self.half_precision, self.folder, self.folder_bytes)
        return type(self), settings

    def bind(self, source: Any) -> None:
        """Say what computes the activations, and forget those of anything else.

        source (Any): Compared for equality: the weights and how they are used.
        """
        if source != self._source:
            self.clear()
            self._source = source

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Any) -> Optional[numpy.ndarray]:
        """RETURNS (Optional[ndarray]): What was put, perhaps as float16. Must not be changed."""
        with self._own():
            entry = self._entries.get(key)
            return self._read(entry) if isinstance(entry, _OnDisk) else entry

    def put(self, key: Any, activations: numpy.ndarray) -> numpy.ndarray:
        """Keep activations if there is room for them.

        key (Any): Hashable; tells sequences apart.
        activations (ndarray): Of shape (L+1, tokens, 2P).
        RETURNS (ndarray): What `get` would return: float16 also if there was no room, so that
            values do not depend on that.
        """
        if self.half_precision:
            activations = activations.astype("float16")
        with self._own():
            if key in self._entries:
                return activations
            n_bytes = activations.nbytes
            if self.bytes_in_memory + n_bytes <= self.memory_bytes:
                # A copy: a view would keep the whole batch.
                self._entries[key] = activations.copy()
                self.bytes_in_memory += n_bytes
            elif self.folder is not None and (
                self.folder_bytes is None or self.bytes_on_disk + n_bytes <= self.folder_bytes
            ):
                try:
                    self._entries[key] = self._write(activations)
                except OSError as error:
                    warnings.warn(
                        f"activation cache: cannot write to {self.folder} ({error}); training "
                        "goes on, and computes what does not fit into memory",
                        stacklevel=2,
                    )
                    self.folder = None
            return activations

    @contextlib.contextmanager
    def _own(self) -> Iterator[None]:
        """One thread at a time; and a forked process, which shares its parent's file and the place
        in it, and perhaps a lock that nobody is left to open, begins with its own."""
        if self._process != os.getpid():
            self._process, self._lock, self._file = os.getpid(), threading.Lock(), None
            self._entries = {
                key: entry for key, entry in self._entries.items() if not isinstance(entry, _OnDisk)
            }
            self.bytes_on_disk = 0
        with self._lock:
            yield

    def clear(self) -> None:
        """Forget everything, and free memory and disk."""
        with self._own():
            self._entries = {}
            self.bytes_in_memory = self.bytes_on_disk = 0
            if self._file is not None:
                self._file.close()
                self._file = None

    def _write(self, activations: numpy.ndarray) -> _OnDisk:
        if self._file is None:
            self._file = tempfile.TemporaryFile(  # noqa: SIM115 (lives as long as the cache)
                dir=self.folder, prefix="spacy-elmo-"
            )
        data = activations.tobytes()
        entry = _OnDisk(self.bytes_on_disk, activations.shape, activations.dtype)
        self._file.seek(entry.offset)
        self._file.write(data)
        self.bytes_on_disk += len(data)
        return entry

    def _read(self, entry: _OnDisk) -> numpy.ndarray:
        assert self._file is not None
        self._file.seek(entry.offset)
        size = int(numpy.prod(entry.shape)) * entry.dtype.itemsize
        return numpy.frombuffer(self._file.read(size), dtype=entry.dtype).reshape(entry.shape)
