"""Encodings of word types, kept from call to call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Optional

import numpy
import torch
from torch import Tensor

from ..bilm.packing import to_device
from ..parallel import no_fork

# Guards type caches and the list of sessions. Held within `no_fork`, and only for microseconds.
LOCK = threading.RLock()

# Bytes of a dictionary entry, a row number and the header of a text; of one of its characters. The
# present size of a text would not do: it grows when somebody asks for its UTF-8.
_ENTRY_BYTES, _CHARACTER_BYTES = 196, 4


class TypeCache:
    """Encodings of word types, bounded in bytes (vectors, texts and book-keeping together). A full
    cache starts again: the frequent types are back after a few sentences. Threads may share it."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.clear()

    def __len__(self) -> int:
        return len(self._rows)

    def clear(self) -> None:
        """Forget all types."""
        with no_fork(), LOCK:
            self._rows: dict[str, int] = {}
            # Rows are only appended, so that a thread may read older ones without the lock.
            self._table: Optional[Tensor] = None
            self.n_bytes = 0

    def lookup(self, types: Sequence[str], encode: Callable[[list[str]], Tensor]) -> Tensor:
        """Encode types as a new tensor, shape (types, width), calling `encode` for those that are
        not in the cache, shorter ones first."""
        # Outside of inference mode, because later calls change what is made here.
        with no_fork(), torch.inference_mode(False), torch.no_grad(), LOCK:
            rows = numpy.array([self._rows.get(text, -1) for text in types], dtype=numpy.int64)
            table = self._table
            if table is not None and (rows >= 0).all():
                return table[to_device(rows, table.device)]
        hits, misses = numpy.flatnonzero(rows >= 0), numpy.flatnonzero(rows < 0)
        missing = sorted(dict.fromkeys(types[i] for i in misses.tolist()), key=len)
        new = encode(missing)
        with no_fork(), torch.inference_mode(False), torch.no_grad(), LOCK:
            self._store(missing, new)
            position = {text: i for i, text in enumerate(missing)}
            rows[misses] = [position[types[i]] for i in misses.tolist()]
            result = new.new_empty(len(types), new.shape[1])
            for numbers, source in ((hits, table), (misses, new)):
                if source is not None:
                    source_rows = to_device(rows[numbers], new.device)
                    result[to_device(numbers, new.device)] = source[source_rows]
            return result

    def _store(self, texts: Sequence[str], vectors: Tensor) -> None:
        row_bytes = vectors.shape[1] * vectors.element_size() + _ENTRY_BYTES
        # Another thread may have added some meanwhile.
        new = {text: i for i, text in enumerate(texts) if text not in self._rows}
        n_bytes = numpy.cumsum([row_bytes + _CHARACTER_BYTES * len(text) for text in new])
        n_new = int(numpy.searchsorted(n_bytes, self.max_bytes, side="right"))
        if not n_new:
            return
        if self.n_bytes + n_bytes[n_new - 1] > self.max_bytes:
            self.clear()
        first, last = len(self._rows), len(self._rows) + n_new
        if self._table is None:  # A CPU's memory is taken where it is written.
            self._table = vectors.new_empty(self.max_bytes // row_bytes, vectors.shape[1])
        kept = numpy.array(list(new.values())[:n_new], dtype=numpy.int64)
        self._table[first:last] = vectors[to_device(kept, vectors.device)]
        self._rows.update(zip(new, range(first, last)))
        self.n_bytes += int(n_bytes[n_new - 1])
