"""Runs a biLM fast: weights are packed once, and each word type is encoded once."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Optional
from weakref import WeakKeyDictionary

import numpy
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .. import torch_private
from ..bilm.int8 import Int8Weight, named_weights
from ..bilm.lstm_layer import LayerState
from ..bilm.mixed_precision import autocast, bfloat16_is_faster
from ..bilm.packing import PackedBatch, pack_sentences, split_sentences, to_device
from ..bilm.validation import token_lists
from ..kernels import Kernel, load_kernels
from ..parallel import no_fork, start
from ..torch_private import Product, tf32_products
from .callers import Callers
from .packed import pack_lstm, pack_token_encoder, runs_layers
from .settings import Precision, Settings, check_precision
from .type_cache import LOCK, TypeCache

if TYPE_CHECKING:
    from ..bilm import BiLM

logger = logging.getLogger("spacy.elmo")  # spaCy's commands show what loggers of spaCy say.

MIN_COSINE = 0.9999  # For each token and layer, with float32.

_SAMPLE = [
    text.split()
    for text in (
        "Yes .",
        "The river bank was closed on 3 May 2019 , because of the flood .",
        "“ It 's one of the strangest things I 've ever seen , ” she told http://example.org/news "
        "after a long , tiring and altogether unsuccessful day in Kraków , where nobody - not even "
        "the mayor himself - had wanted to talk to her about money , time or the weather .",
        "WE NEED MORE INTERNATIONALIZATION !!!",
    )
]


class Session:
    """Inference with the present weights of a biLM, by several threads if they like.
    RAISES (ValueError): If the precision is not for the device of the weights."""

    def __init__(self, bilm: BiLM, settings: Settings) -> None:
        check_precision(settings.precision, bilm.device)
        if settings.precision == "auto":
            settings = choose_precision(bilm, settings)
        self.settings = settings
        self.device, self.dtype = bilm.device, bilm.dtype
        self.n_layers, self.width = bilm.config.n_activations, bilm.config.output_dim
        self.type_cache = TypeCache(int(settings.type_cache_mb * 2**20))
        self.trained_mix = bilm.trained_mix
        self._token_encoder, self._lstm = bilm.token_encoder, bilm.lstm
        self._max_tokens = 0 if settings.stateful else settings.max_tokens(bilm.device)
        self._callers = Callers(self._max_tokens)
        self._packed: Any = None
        self._states: Optional[list[LayerState]] = None
        self._checksum: Optional[str] = None
        # Held within `no_fork`. Other sessions need not wait while this one packs its weights.
        self._lock = threading.Lock()

    def batches(
        self, types: Sequence[str], index: numpy.ndarray, lengths: Sequence[int] | numpy.ndarray
    ) -> Iterator[tuple[numpy.ndarray, Tensor]]:
        """Run the biLM over sentences of similar length, one batch after the other. The arguments
        are those of `BiLM.forward`. A call that fits into one batch may be run with those of other
        threads.

        YIELDS (tuple): The numbers of a batch's tokens, shape (n,), and all layers' activations,
            shape (L+1, n, 2P). Layer 0 is the token encoder, twice.
        """
        sizes = numpy.asarray(lengths, dtype=numpy.int64)
        n_tokens = int(len(index) + 2 * numpy.count_nonzero(sizes))
        if 0 < n_tokens <= self._callers.max_tokens:
            run = self._run_one_batch
            yield numpy.arange(len(index)), self._callers.run(run, (types, index, sizes), n_tokens)
        else:
            yield from self._run_batches(types, index, sizes)

    def _run_one_batch(
        self, types: Sequence[str], index: numpy.ndarray, sizes: numpy.ndarray
    ) -> Tensor:
        [(_, layers)] = self._run_batches(types, index, sizes)
        return layers

    def _run_batches(
        self, types: Sequence[str], index: numpy.ndarray, sizes: numpy.ndarray
    ) -> Iterator[tuple[numpy.ndarray, Tensor]]:
        starts = numpy.cumsum(sizes) - sizes
        products, lstm = self._packed or self._pack()
        types = [*types, *self._token_encoder.boundaries]
        encode = partial(self._encode, products)
        # Words are only looked up.
        vectors = self.type_cache.lookup(types, encode) if products else encode(types)
        boundaries = len(types) - 2, len(types) - 1
        if self.settings.stateful:
            self._grow_states(len(sizes))
        # On a GPU, batched products serve both directions at once.
        groups = [[0, 1]] if len(lstm[0]) == 1 else [[0], [1]]
        # Some batches start early, so that no thread idles while the caller uses one.
        n_ahead = min(torch.get_num_threads() // 2, 8) if len(groups) > 1 else 0
        running: deque[tuple[numpy.ndarray, Tensor, list[Callable[[], None]]]] = deque()
        for numbers in [*split_sentences(sizes, self._max_tokens), *[None] * n_ahead]:
            if numbers is not None:
                batch = pack_sentences(index, starts[numbers], sizes[numbers], *boundaries)
                with no_gradients():  # The caller may compute gradients of a mix.
                    layers = vectors.new_empty(self.n_layers, len(batch.tokens), self.width)
                run = partial(self._run, lstm, batch, vectors, layers, numbers[batch.order])
                tasks = [start(partial(run, group), self.device) for group in groups]
                running.append((batch.tokens, layers, tasks))
            if running and (numbers is None or len(running) > n_ahead):
                tokens, layers, tasks = running.popleft()
                for wait in tasks:
                    wait()
                yield tokens, layers

    def embed(self, sentences: Iterable[Iterable[str]]) -> list[Tensor]:
        """Run the biLM over sentences of tokens.
        RETURNS (list): For each sentence, shape (L+1, tokens, 2P). No two share memory.
        RAISES (ValueError): If the sentences, or one of them, are a string, or a token is none; if
            the weights are of several types."""
        types: dict[str, int] = {}
        index: list[int] = []
        lengths: list[int] = []
        for sentence in token_lists(sentences):
            index.extend(types.setdefault(token, len(types)) for token in sentence)
            lengths.append(len(sentence))
        sentence_numbers = numpy.repeat(numpy.arange(len(lengths)), lengths)
        with no_gradients():
            shape = self.n_layers, 0, self.width
            results = [torch.empty(shape, device=self.device, dtype=self.dtype) for _ in lengths]
        for tokens, layers in self.batches(list(types), numpy.array(index, dtype=int), lengths):
            numbers, sizes = numpy.unique(sentence_numbers[tokens], return_counts=True)
            with no_gradients():
                for number, part in zip(numbers, layers.split(sizes.tolist(), dim=1)):
                    results[number] = part.clone(memory_format=torch.contiguous_format)
        return results

    @property
    def checksum(self) -> str:
        """A checksum of samples of all weights. Whatever trains a biLM changes nearly all."""
        with no_fork(), self._lock:
            if self._checksum is None:
                checksum = hashlib.blake2b(digest_size=16)
                parts = nn.ModuleDict({"token_encoder": self._token_encoder, "lstm": self._lstm})
                for name, weight in named_weights(parts):
                    values = weight.dequantize() if isinstance(weight, Int8Weight) else weight
                    step = max(1, values.numel() // 1024)
                    sample = values.reshape(-1)[::step].float().cpu().numpy()
                    checksum.update(f"{name} {tuple(values.shape)}".encode() + sample.tobytes())
                self._checksum = checksum.hexdigest()
            return self._checksum

    def _encode(self, products: list[Product], types: Sequence[str]) -> Tensor:
        """RETURNS (Tensor): Shape (types, P)."""
        forward: Callable[..., Tensor] = self._token_encoder.forward
        encode = inference(self.settings.precision, self.device)(forward)
        if not products:
            return encode(types)
        size = 128 if self.device.type == "cpu" else 2048
        # The type cache passes shorter types first: a chunk of short types has fewer windows.
        chunks = (types[i : i + size] for i in range(0, len(types), size))
        parts = [start(partial(encode, chunk, products), self.device) for chunk in chunks]
        with torch.inference_mode():
            return torch.cat([wait() for wait in parts])

    def _run(
        self,
        lstm: list[list[Callable[..., None]]],
        batch: PackedBatch,
        vectors: Tensor,
        result: Tensor,
        sentences: numpy.ndarray,
        directions: list[int],
    ) -> None:
        """Run one batch forward (0), backward (1), or in both directions by batched products, with
        the encodings of all types. `result` takes all layers, shape (L+1, tokens, 2P): the halves
        of the directions. `sentences` has the number of the sentence in each row."""
        skip, states = self._lstm.config.use_skip_connections, self._states
        which: Any = directions[0] if len(directions) == 1 else slice(None)
        with inference(self.settings.precision, self.device):
            x = F.embedding(to_device(batch.inputs[which], self.device), vectors)
            rows = to_device(batch.token_rows, self.device)
            for number, both in enumerate(result):
                if number > 0:
                    run, y = lstm[number - 1][directions[0]], torch.empty_like(x)
                    if states is None:
                        run(x, batch.batch_sizes, y=y)
                    else:
                        index = to_device(sentences, self.device)
                        kept = [part[which] for part in states[number - 1]]
                        state = [part.index_select(-2, index) for part in kept]
                        run(x, batch.batch_sizes, y=y, state=state)
                        for part, after in zip(kept, state):
                            part.index_copy_(-2, index, after)
                    x = y.add_(x) if number > 1 and skip else y
                for direction, layer in zip(directions, x.view(len(directions), *x.shape[-2:])):
                    half = both.chunk(2, dim=1)[direction]
                    torch.index_select(layer, 0, rows[direction], out=half)

    def _grow_states(self, n_rows: int) -> None:
        """Append zeros to the states, up to so many rows."""
        config = self._lstm.config
        with inference(self.settings.precision, self.device):
            empty = torch.zeros(2, 0, 1, dtype=self.dtype, device=self.device)
            pair = empty.expand(2, 0, config.projection_dim), empty.expand(2, 0, config.dim)
            states = self._states or [pair] * config.n_layers
            more = 0, 0, 0, max(n_rows - states[0][0].shape[1], 0)
            self._states = [(F.pad(h, more), F.pad(c, more)) for h, c in states]

    def _pack(self) -> tuple[list[Product], list[list[Callable[..., None]]]]:
        # With gradients, PyTorch waits for the GIL while it holds a lock of the weights.
        with no_fork(), self._lock, torch.no_grad():
            if self._packed is None:
                weights = (*self._token_encoder.parameters(), *self._lstm.parameters())
                if len(types := sorted({str(weight.dtype) for weight in weights})) > 1:
                    # Kernels would read past the end of the smaller ones.
                    what = f"the weights of the biLM are of several types ({', '.join(types)})"
                    raise ValueError(f"{what}: give them one, such as with bilm.float()")
                products = pack_token_encoder(self._token_encoder, self.settings.precision)
                self._packed = products, pack_lstm(self._lstm, self.settings)
            return self._packed


@contextlib.contextmanager
def no_gradients() -> Iterator[None]:
    """A context that makes tensors of which the caller may compute gradients."""
    with no_fork(), torch.inference_mode(False), torch.no_grad():
        yield


@contextlib.contextmanager
def inference(precision: Precision, device: torch.device) -> Iterator[None]:
    """A context in which a biLM runs: within `no_fork`, without autograd, with products of this
    precision, whatever `torch.autocast` or the process's settings say around it."""
    tf32 = tf32_products if precision == "tf32" else contextlib.nullcontext
    with no_fork(), torch.inference_mode(), autocast(device, False), tf32():
        yield


_CHOSEN: WeakKeyDictionary[BiLM, dict[tuple[torch.device, str], Precision]] = WeakKeyDictionary()


def choose_precision(bilm: BiLM, settings: Settings) -> Settings:
    """Choose by the kind of device, and compare with float32 on a small sample. RETURNS (Settings):
    With the same precision for later weights of this network on this device."""
    chosen, key = _CHOSEN.setdefault(bilm, {}), (bilm.device, settings.kernel)
    if key not in chosen:
        choice: Precision = "float32"
        trial = Settings("float32", type_cache_mb=0, kernel=settings.kernel)
        for candidate in _candidates(bilm.device, settings.kernel):
            exact, vectors = (
                Session(bilm, replace(trial, precision=precision)).embed(_SAMPLE)
                for precision in ("float32", candidate)
            )
            cosines = (F.cosine_similarity(*pair, dim=-1).min() for pair in zip(exact, vectors))
            if min(cosines) >= MIN_COSINE:
                choice = candidate
                break
        chosen[key] = choice  # Not before: another thread would take it.
        logger.info("precision 'auto': the biLM runs in %s on %s", chosen[key], bilm.device)
    return replace(settings, precision=chosen[key])


def _candidates(device: torch.device, kernel: Kernel) -> list[Precision]:
    """RETURNS (list): What may be faster than float32 and reach `MIN_COSINE`, the fastest first."""
    if device.type == "cpu":
        if bfloat16_is_faster():
            return ["bfloat16"]
        cell = load_kernels(kernel, device, torch.float32, torch.float32)
        return ["float16"] if runs_layers(cell, "float16") else []
    is_recent = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    return ["bfloat16", "tf32"] if is_recent else []


# The version of the weights, the parameters (so that no other gets their `id`), and sessions.
_SESSIONS: WeakKeyDictionary[BiLM, tuple[Any, list[Tensor], dict[Settings, Session]]]
_SESSIONS = WeakKeyDictionary()


def current_session(bilm: BiLM, settings: Settings = Settings()) -> Session:
    """Get the session for the present weights. This is the one place that notices changed weights.

    PyTorch counts in-place changes of a tensor, but not those made through `parameter.data`:
    whoever makes them calls `BiLM.invalidate`. It counts none of an inference tensor: a biLM with
    such weights (moved or read in `torch.inference_mode`) gets a new session at every call.

    RETURNS (Session): The same one for the same settings, until the weights change.
    RAISES (ValueError): If the precision is not for the device of the weights.
    """
    if settings.precision == "auto":  # It may run the biLM: not within `no_fork`.
        settings = choose_precision(bilm, settings)
    parameters: list[Tensor] = list(bilm.parameters())
    changes = torch_private.CHANGES
    weights = [
        # An object equals no other: without a count, every call reads the weights again.
        (id(p), p.data_ptr(), object() if p.is_inference() else getattr(p, changes, object()))
        for p in parameters
    ]
    version = bilm.n_invalidations, bilm.trained_mix, weights
    last_version, _, sessions = _SESSIONS.get(bilm, (None, [], {}))
    if last_version == version and (session := sessions.get(settings)) is not None:
        return session
    with no_fork(), LOCK:
        last_version, _, sessions = _SESSIONS.get(bilm, (None, [], {}))
        if last_version != version:
            # Free the old ones before the new one packs its weights.
            sessions.clear()
            _SESSIONS[bilm] = version, parameters, sessions
        if settings not in sessions:
            sessions[settings] = Session(bilm, settings)
        return sessions[settings]
