"""Token encodings by word type.

Without context a token's encoding depends on its text alone, and in running text most tokens are
repeats: the character CNN of a frozen biLM has to see a type only once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Optional

import numpy
from torch import Tensor

from .forking import Lock
from .transfer import to_device

# A dictionary entry, its row number and its share of the hash table, in bytes.
_ENTRY_BYTES = 120
# A text takes its header and up to 4 bytes for each character. Its real size would not do for the
# accounts: it grows when somebody asks for the text's UTF-8.
_TEXT_BYTES = 76
_CHARACTER_BYTES = 4


class TypeCache:
    """A least-recently-used cache of token encodings, bounded in bytes and thread-safe.

    A copy or a pickle of it is empty.

    max_bytes (int): Bound on vectors, texts and book-keeping together. 0: never keep anything.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._lock = Lock()
        self._table: Optional[Tensor] = None
        self._clear(None)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def n_bytes(self) -> int:
        """What the entries occupy, in bytes."""
        return self._bytes

    def clear(self) -> None:
        with self._lock:
            self._clear(None)

    def lookup(
        self, types: Sequence[str], key: Hashable, encode: Callable[[list[str]], Tensor]
    ) -> Tensor:
        """Encode types, computing only those that are not known yet.

        types (Sequence[str]): Distinct texts.
        key (Hashable): Identifies the weights. A new key empties the cache.
        encode (Callable): Maps a list of texts to their encodings, shape (texts, width).
        RETURNS (Tensor): Shape (types, width), float32.
        """
        hits: list[int] = []
        rows: list[int] = []
        misses: list[int] = []
        known: Optional[Tensor] = None
        with self._lock:
            if key != self._key:
                self._clear(key)
            for i, text in enumerate(types):
                row = self._rows.get(text)
                if row is None:
                    misses.append(i)
                else:
                    hits.append(i)
                    rows.append(row)
                    self._rows.move_to_end(text)
            if rows:
                assert self._table is not None
                # A copy: the rows may be given away as soon as the lock is released.
                known = self._table[_index(rows, self._table)]
        if not misses and known is not None:
            return known
        missing = [types[i] for i in misses]
        new = encode(missing)
        self._store(missing, new, key)
        if known is None:
            return new
        result = new.new_empty(len(types), new.shape[1])
        result[_index(hits, new)] = known
        result[_index(misses, new)] = new
        return result

    def _store(self, types: Sequence[str], vectors: Tensor, key: Hashable) -> None:
        row_bytes = vectors.shape[1] * vectors.element_size() + _ENTRY_BYTES + _TEXT_BYTES
        with self._lock:
            if key != self._key:  # The weights changed while these were computed.
                return
            positions, rows = [], []
            for i, text in enumerate(types):
                cost = row_bytes + _CHARACTER_BYTES * len(text)
                if text in self._rows or cost > self.max_bytes:
                    continue
                while self._bytes + cost > self.max_bytes:
                    old, row = self._rows.popitem(last=False)
                    self._free.append(row)
                    self._bytes -= row_bytes + _CHARACTER_BYTES * len(old)
                self._rows[text] = row = self._free.pop() if self._free else len(self._rows)
                self._bytes += cost
                positions.append(i)
                rows.append(row)
            if not rows:
                return
            self._reserve(max(rows) + 1, vectors)
            assert self._table is not None
            index = _index(rows, vectors)
            # If a type was evicted by a later one of this very call, both wrote to one row. Indexed
            # assignment leaves open which write wins, so drop the evicted ones.
            if len(set(rows)) < len(rows):
                last = {row: position for row, position in zip(rows, positions)}
                index = _index(list(last), vectors)
                positions = list(last.values())
            self._table[index] = vectors[_index(positions, vectors)]

    def _reserve(self, n_rows: int, like: Tensor) -> None:
        have = 0 if self._table is None else len(self._table)
        if n_rows <= have:
            return
        most = self.max_bytes // (like.shape[1] * like.element_size() + _ENTRY_BYTES)
        table = like.new_empty(min(max(n_rows, 2 * have, 256), max(most, n_rows)), like.shape[1])
        if self._table is not None:
            table[:have] = self._table
        self._table = table

    def _clear(self, key: Hashable) -> None:
        self._key = key
        self._rows: OrderedDict[str, int] = OrderedDict()
        self._free: list[int] = []
        self._table = None
        self._bytes = 0

    def __reduce__(self) -> tuple:
        return TypeCache, (self.max_bytes,)


def _index(rows: list[int], like: Tensor) -> Tensor:
    return to_device(numpy.array(rows, dtype=numpy.int64), like.device)
