"""Runs a biLM fast: weights are packed once, and each word type is encoded once."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, cast
from weakref import WeakKeyDictionary

import numpy
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.weak import WeakIdRef

from ..bilm.characters import BOS, EOS
from ..bilm.forking import FORK_GATE
from ..bilm.lstm_function import LayerState
from ..bilm.packing import PackedBatch, pack_sentences, split_sentences, to_device
from ..bilm.token_encoder import CharCNN
from .linear import inference
from .packed import PackedBiLM, pack_bilm
from .settings import Settings, check_precision

if TYPE_CHECKING:
    from ..bilm import BiLM

# Word types that are encoded at once. In between, other threads may fork.
_TYPES_PER_CALL = 2048

# Numbers of each weight tensor that go into a checksum.
_CHECKSUM_SAMPLE = 1024

# Of an entry: a dictionary entry and a row number; the header of a text; one of its characters.
# The present size of a text would not do: it grows when somebody asks for its UTF-8.
_ENTRY_BYTES = 120
_TEXT_BYTES = 76
_CHARACTER_BYTES = 4


class Session:
    """Inference with the present weights of a biLM; see `current_session`, which replaces a session
    when the weights change. Several threads may use one session.

    bilm (BiLM): The network. Weights that are not packed are read from its tensors.
    settings (Settings): How to run it.
    RAISES (ValueError): If the precision is not for the device of the weights.
    """

    def __init__(self, bilm: BiLM, settings: Settings) -> None:
        check_precision(settings.precision, bilm.device)
        self.settings = settings
        self.device, self.dtype = bilm.device, bilm.dtype
        self.n_layers, self.width = bilm.config.n_activations, bilm.config.output_dim
        self.type_cache = TypeCache(int(settings.type_cache_mb * 2**20))
        self._token_encoder, self._lstm = bilm.token_encoder, bilm.lstm
        self._max_tokens = 0 if settings.stateful else settings.max_tokens(bilm.device)
        self._lock = threading.Lock()
        self._packed: Optional[PackedBiLM] = None
        self._states: Optional[list[LayerState]] = None
        self._checksum: Optional[str] = None

    def batches(
        self, types: Sequence[str], index: numpy.ndarray, lengths: Sequence[int] | numpy.ndarray
    ) -> Iterator[tuple[numpy.ndarray, Tensor]]:
        """Run the biLM over sentences of similar length, one batch after the other.

        types (Sequence[str]): Distinct word types.
        index (ndarray): The type of each token, all sentences concatenated, shape (tokens,).
        lengths (Sequence[int] | ndarray): Tokens per sentence, boundaries not included.
        YIELDS (tuple): The numbers of a batch's tokens, shape (n,), and all layers' activations,
            shape (L+1, n, 2P). Layer 0 is the token encoder, twice.
        """
        sizes = numpy.asarray(lengths, dtype=numpy.int64)
        starts = numpy.cumsum(sizes) - sizes
        vectors = self._encode_types([*types, BOS, EOS])
        boundaries = len(types), len(types) + 1
        for numbers in split_sentences(sizes, self._max_tokens):
            batch = pack_sentences(index, starts[numbers], sizes[numbers], *boundaries)
            yield batch.tokens, self._run(batch, vectors, numbers)

    def embed(self, sentences: Iterable[Iterable[str]]) -> list[Tensor]:
        """Tokens in, activations out.

        sentences (Iterable[Iterable[str]]): Sentences as tokens; may be empty.
        RETURNS (list): For each sentence, shape (L+1, tokens, 2P). No two share memory.
        RAISES (ValueError): If a sentence is a string: it must be cut into tokens first.
        """
        types: dict[str, int] = {}
        index: list[int] = []
        lengths: list[int] = []
        for number, tokens in enumerate(sentences):
            if isinstance(tokens, (str, bytes)):
                raise ValueError(
                    f"sentence {number} is a string ({tokens[:40]!r}): give a list of tokens"
                )
            before = len(index)
            index.extend(types.setdefault(token, len(types)) for token in tokens)
            lengths.append(len(index) - before)
        # Ordinary tensors: the caller may compute gradients of what is computed from them.
        with torch.inference_mode(False), torch.no_grad():
            shape = (self.n_layers, len(index), self.width)
            layers = torch.empty(shape, device=self.device, dtype=self.dtype)
            for numbers, part in self.batches(list(types), numpy.array(index, dtype=int), lengths):
                with FORK_GATE:
                    layers.index_copy_(1, to_device(numbers, self.device), part)
            with FORK_GATE:
                copies = layers.split(lengths, dim=1)
                return [part.clone(memory_format=torch.contiguous_format) for part in copies]

    def reset_states(self) -> None:
        """Start again from zero states (`stateful` only)."""
        self._states = None

    @property
    def checksum(self) -> str:
        """A checksum of evenly spaced samples of all weights, the same in every process. Whatever
        trains a biLM changes nearly all weights, and reading all would take as long as a batch."""
        with FORK_GATE, self._lock:
            if self._checksum is None:
                self._checksum = self._compute_checksum()
            return self._checksum

    def _compute_checksum(self) -> str:
        checksum = hashlib.blake2b(digest_size=16)
        for prefix, module in (("token_encoder", self._token_encoder), ("lstm", self._lstm)):
            for name, weight in module.named_parameters(prefix):
                flat = weight.detach().reshape(-1)
                sample = flat[:: max(1, len(flat) // _CHECKSUM_SAMPLE)].float().cpu().numpy()
                checksum.update(f"{name} {tuple(weight.shape)}".encode() + sample.tobytes())
        return checksum.hexdigest()

    def _encode_types(self, types: Sequence[str]) -> Tensor:
        """RETURNS (Tensor): Shape (types, P)."""
        encoder, products = self._token_encoder, (self._packed or self._pack()).token_encoder
        parts = []
        for start in range(0, len(types), _TYPES_PER_CALL):
            chunk = types[start : start + _TYPES_PER_CALL]
            with inference(self.settings.precision, self.device):
                if isinstance(encoder, CharCNN):
                    encode = partial(encoder.forward, products=products)
                    parts.append(self.type_cache.lookup(chunk, encode))
                else:
                    parts.append(encoder(chunk))
                if len(parts) > 1:
                    parts = [torch.cat(parts)]
        return parts[0]

    def _run(self, batch: PackedBatch, vectors: Tensor, sentences: numpy.ndarray) -> Tensor:
        """Run one batch.

        vectors (Tensor): The encodings of all types, shape (types, P).
        sentences (ndarray): The numbers of the batch's sentences, for `stateful`.
        RETURNS (Tensor): All layers of the batch's tokens, shape (L+1, tokens, 2P).
        """
        config = self._lstm.config
        with inference(self.settings.precision, self.device):
            x = F.embedding(to_device(batch.inputs, self.device), vectors)
            rows = sentences[batch.order]
            states = self._take_states(rows) if self.settings.stateful else None
            layers = [x]
            for number, runs in enumerate((self._packed or self._pack()).lstm):
                y = torch.empty_like(x)
                # Batched products serve both directions at once; else each has its own.
                directions: list[Any] = [slice(None)] if len(runs) == 1 else [0, 1]
                for direction, run in zip(directions, runs):
                    state = None
                    if states is not None:
                        h, c = states[number]
                        state = h[direction], c[direction]
                    run(x[direction], batch.batch_sizes, y=y[direction], state=state)
                if number > 0 and config.use_skip_connections:
                    y += x
                layers.append(y)
                x = y
            if states is not None:
                self._put_states(rows, states)
            token_rows = to_device(batch.token_rows, self.device)
            with torch.inference_mode(False):  # The caller may compute gradients of a mix.
                result = x.new_empty(self.n_layers, len(batch.tokens), self.width)
            for layer, both in zip(layers, result):
                for direction, side in enumerate(both.chunk(2, dim=1)):
                    torch.index_select(layer[direction], 0, token_rows[direction], out=side)
            return result

    def _take_states(self, rows: numpy.ndarray) -> list[LayerState]:
        """RETURNS (list): Copies of some rows of the last call's states; zeros for new rows."""
        config, n_rows = self._lstm.config, int(rows.max()) + 1
        widths = config.projection_dim, config.dim
        if self._states is None:
            empty = [
                torch.zeros(2, 0, width, dtype=self.dtype, device=self.device) for width in widths
            ]
            self._states = [(empty[0], empty[1])] * config.n_layers
        missing = max(n_rows - self._states[0][0].shape[1], 0)
        self._states = [
            (F.pad(h, (0, 0, 0, missing)), F.pad(c, (0, 0, 0, missing))) for h, c in self._states
        ]
        index = to_device(rows, self.device)
        return [(h[:, index].contiguous(), c[:, index].contiguous()) for h, c in self._states]

    def _put_states(self, rows: numpy.ndarray, states: list[LayerState]) -> None:
        index = to_device(rows, self.device)
        for kept, new in zip(cast("list[LayerState]", self._states), states):
            for all_rows, values in zip(kept, new):
                all_rows[:, index] = values

    def _pack(self) -> PackedBiLM:
        with FORK_GATE, self._lock:
            if self._packed is None:
                self._packed = pack_bilm(self._token_encoder, self._lstm, self.settings)
            return self._packed


class TypeCache:
    """Encodings of word types, bounded in bytes. Without context a token's encoding depends on its
    text alone, and in running text most tokens are repeats: the character CNN has to read a type
    only once. A full cache starts again: the frequent types are back after a few sentences.

    Threads may share it, within `FORK_GATE`.

    max_bytes (int): Bound on vectors, texts and book-keeping together. 0: never keep anything.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._lock = threading.RLock()
        self.clear()

    def __len__(self) -> int:
        return len(self._rows)

    def clear(self) -> None:
        """Forget all types."""
        with self._lock:
            self._rows: dict[str, int] = {}
            # Rows are only appended, so that a thread may read older ones without the lock.
            self._table: Optional[Tensor] = None
            self.n_bytes = 0

    def lookup(self, types: Sequence[str], encode: Callable[[list[str]], Tensor]) -> Tensor:
        """Encode types, computing only those that are not in the cache.

        types (Sequence[str]): Texts.
        encode (Callable): Maps a list of texts, shorter ones first, to their encodings, shape
            (texts, width).
        RETURNS (Tensor): A new tensor, shape (types, width).
        """
        with self._lock:
            rows = numpy.array([self._rows.get(text, -1) for text in types], dtype=numpy.int64)
            table = self._table
        if table is not None and (rows >= 0).all():
            return table[to_device(rows, table.device)]
        hits, misses = numpy.flatnonzero(rows >= 0), numpy.flatnonzero(rows < 0)
        missing = sorted(dict.fromkeys(types[i] for i in misses.tolist()), key=len)
        new = encode(missing)
        with self._lock:
            self._store(missing, new)
        position = {text: i for i, text in enumerate(missing)}
        rows[misses] = [position[types[i]] for i in misses.tolist()]
        result = new.new_empty(len(types), new.shape[1])
        for numbers, source in ((hits, table), (misses, new)):
            if source is not None:
                index, source_rows = (to_device(x, new.device) for x in (numbers, rows[numbers]))
                result[index] = source[source_rows]
        return result

    def _store(self, texts: Sequence[str], vectors: Tensor) -> None:
        row_bytes = vectors.shape[1] * vectors.element_size() + _ENTRY_BYTES + _TEXT_BYTES
        # Another thread may have added some meanwhile.
        new = {text: i for i, text in enumerate(texts) if text not in self._rows}
        n_bytes = numpy.cumsum([row_bytes + _CHARACTER_BYTES * len(text) for text in new])
        n_new = int(numpy.searchsorted(n_bytes, self.max_bytes, side="right"))
        if not n_new:
            return
        if self.n_bytes + n_bytes[n_new - 1] > self.max_bytes:
            self.clear()
        first, last = len(self._rows), len(self._rows) + n_new
        if self._table is None or last > len(self._table):
            # Twice the rows, so that few copies are made, but no more than there is room for.
            size = max(last, min(2 * last, self.max_bytes // row_bytes))
            table = vectors.new_empty(size, vectors.shape[1])
            if self._table is not None:
                table[:first] = self._table[:first]
            self._table = table
        kept = numpy.array(list(new.values())[:n_new], dtype=numpy.int64)
        self._table[first:last] = vectors[to_device(kept, vectors.device)]
        self._rows.update(zip(new, range(first, last)))
        self.n_bytes += int(n_bytes[n_new - 1])


class _Sessions(NamedTuple):
    version: Hashable
    by_settings: dict[Settings, Session]


_SESSIONS: WeakKeyDictionary[BiLM, _Sessions] = WeakKeyDictionary()
_SESSIONS_LOCK = threading.Lock()


def current_session(bilm: BiLM, settings: Settings = Settings()) -> Session:
    """Get the session for the present weights. This is the one place that notices changed weights:
    whatever is derived from weights belongs to a session.

    PyTorch counts in-place changes of a tensor. It does not count those made through
    `parameter.data`: whoever makes them calls `BiLM.invalidate`. Nor does it count those of an
    inference tensor: a biLM with such weights (moved or read in `torch.inference_mode`) gets a new
    session at every call.

    bilm (BiLM): The network.
    settings (Settings): How to run it.
    RETURNS (Session): The same one until the weights change.
    RAISES (ValueError): If the precision is not for the device of the weights.
    """
    weights = tuple(
        (WeakIdRef(p), p.data_ptr(), object() if p.is_inference() else p._version)
        for p in bilm.parameters()
    )
    version = bilm.n_invalidations, weights
    with FORK_GATE, _SESSIONS_LOCK:
        sessions = _SESSIONS.get(bilm)
        if sessions is None or sessions.version != version:
            # Free the old ones before the new one packs its weights.
            sessions = _SESSIONS[bilm] = _Sessions(version, {})
        if settings not in sessions.by_settings:
            sessions.by_settings[settings] = Session(bilm, settings)
        return sessions.by_settings[settings]
