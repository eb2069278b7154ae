"""The bidirectional language model (Peters et al. 2018, section 3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Optional, cast

import numpy
import torch
from torch import Tensor, nn

from .batches import PackedBatch, pack_batches
from .characters import BOS, EOS
from .config import BiLMConfig
from .derived import fingerprint
from .forking import FORK_GATE
from .lstm import BiLSTM, LayerState
from .precision import Precision, check_precision, product_precision
from .token_encoder import CharCNN, build_token_encoder
from .transfer import to_device
from .type_cache import TypeCache

# Maps activations (L+1, tokens, 2P) to features (tokens, width).
Reduce = Callable[[Tensor], Tensor]

DEFAULT_MAX_TOKENS = 2048
DEFAULT_CACHE_BYTES = 64 << 20


class BiLM(nn.Module):
    """A token encoder under two stacks of LSTMs, one for each direction.

    config (BiLMConfig): The hyper-parameters.
    vocabulary (Optional[Sequence[str]]): The words by row, for word input only.

    Settings, which change speed or arithmetic but belong to no checkpoint:
    precision (str): Arithmetic of inference: float32, float16 or int8 on a CPU, float32, tf32 or
        bfloat16 on a GPU. In int8, all rows of an LSTM's product share one scale: every layer but
        the token encoder's depends on the sentences of the same batch, a little. While tf32 runs,
        float32 products of other threads use TF32, too.
    max_tokens (int): Tokens per batch at inference.
    stateful (bool): Carry each row's LSTM state from one call to the next, as older
        implementations do: row i goes on from row i of the last call. For comparisons only.
    type_cache (TypeCache): Encodings of word types seen before.
    mixed_precision (bool): Train with bfloat16 products (`torch.autocast`); weights, gradients and
        results stay float32.
    """

    @FORK_GATE  # In a forked process, this comes before the weights are read.
    def __init__(self, config: BiLMConfig, vocabulary: Optional[Sequence[str]] = None) -> None:
        super().__init__()
        self.config = config
        self.token_encoder = build_token_encoder(config, vocabulary)
        self.lstm = BiLSTM(config.lstm)
        self.precision: Precision = "float32"
        self.max_tokens = DEFAULT_MAX_TOKENS
        self.stateful = False
        self.mixed_precision = False
        self.type_cache = TypeCache(DEFAULT_CACHE_BYTES)
        self._states: Optional[list[LayerState]] = None

    @property
    def vocabulary(self) -> Optional[list[str]]:
        """The words by row, or None for character input."""
        if isinstance(self.token_encoder, CharCNN):
            return None
        return self.token_encoder.vocabulary

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    def unfreeze(self, n_layers: Optional[int] = None) -> None:
        """Say which weights training changes (gradual unfreezing, Howard and Ruder 2018).

        n_layers (Optional[int]): How many, from the top: the LSTM layers, then the token encoder.
            None: all.
        """
        n_layers = self.config.n_activations if n_layers is None else n_layers
        bottom = self.config.n_activations - n_layers
        parts: list[Sequence[nn.Module]] = [[self.token_encoder]]
        parts += zip(self.lstm.forward_layers, self.lstm.backward_layers)
        for number, modules in enumerate(parts):
            for module in modules:
                module.requires_grad_(number >= bottom)
                if number < bottom:
                    module.zero_grad()

    @FORK_GATE
    def forward(
        self,
        types: Sequence[str],
        index: numpy.ndarray,
        lengths: Sequence[int],
        *,
        targets: Optional[numpy.ndarray] = None,
        n_rows: Optional[int] = None,
        keep_layers: bool = True,
        reduce: Optional[Reduce] = None,
    ) -> tuple[Optional[Tensor], Optional[Tensor]]:
        """All layers' activations, and a function of them.

        With gradients enabled, autograd records everything as one batch. Else this is inference:
        packed weights, the type cache, and one batch of `max_tokens` at a time.

        types (Sequence[str]): Distinct word types.
        index (ndarray): The type of each token, all sequences concatenated, shape (tokens,).
        lengths (Sequence[int]): Tokens per sequence, sentence boundaries not included.
        targets (Optional[ndarray]): The row of the result that each token goes to, -1 for none.
            By default every token has its own.
        n_rows (Optional[int]): Rows of the result; the default is one per token. Rows that no
            token goes to are zero.
        keep_layers (bool): Whether to return the activations.
        reduce (Optional[Callable]): Applied to the activations of one batch at a time.
        RETURNS (tuple): The activations (L+1, n_rows, 2P) if they are kept, and the reduced
            features (n_rows, width) if there is a function. Layer 0 is the token encoder, twice.
        RAISES (ValueError): If the precision is not for the weights' device.
        """
        if targets is None:
            targets = numpy.arange(len(index))
        n_rows = len(index) if n_rows is None else n_rows
        if torch.is_grad_enabled():
            layers = self._forward_train(types, index, lengths, targets, n_rows)
            return layers if keep_layers else None, reduce(layers) if reduce else None
        return self._forward_infer(types, index, lengths, targets, n_rows, keep_layers, reduce)

    def _forward_train(
        self,
        types: Sequence[str],
        index: numpy.ndarray,
        lengths: Sequence[int],
        targets: numpy.ndarray,
        n_rows: int,
    ) -> Tensor:
        self.invalidate()  # Whoever computes gradients is about to change the weights.
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.mixed_precision):
            vectors = self.token_encoder([*types, BOS, EOS]).to(self.dtype)
            layers = vectors.new_zeros(self.config.n_activations, n_rows, self.config.output_dim)
            for batch in pack_batches(lengths, 0):
                result = self._encode_batch(batch, vectors, index, self.lstm)
                kept, at = _kept(targets[batch.tokens], layers.device)
                layers = layers.index_copy(1, at, result[:, kept])
        if not layers.requires_grad:  # There is no token: the gradient is zero, but it is there.
            weights = [weight for weight in self.parameters() if weight.requires_grad]
            layers = layers + sum(weight.flatten()[:0].sum() for weight in weights)
        return layers

    @torch.inference_mode()
    def _forward_infer(
        self,
        types: Sequence[str],
        index: numpy.ndarray,
        lengths: Sequence[int],
        targets: numpy.ndarray,
        n_rows: int,
        keep_layers: bool,
        reduce: Optional[Reduce],
    ) -> tuple[Optional[Tensor], Optional[Tensor]]:
        check_precision(self.precision, self.device)
        config = self.config
        with product_precision(self.precision, self.device):
            vectors = self._encode_types([*types, BOS, EOS])
            layers = features = None
            if keep_layers:
                layers = _zeros(vectors, config.n_activations, n_rows, config.output_dim)
            for batch in pack_batches(lengths, 0 if self.stateful else self.max_tokens):
                FORK_GATE.let_forks_pass()
                result = self._encode_batch(batch, vectors, index, self._infer_lstm(batch))
                kept, at = _kept(targets[batch.tokens], result.device)
                result = result[:, kept]
                if layers is not None:
                    layers.index_copy_(1, at, result)
                if reduce is not None and len(at):
                    reduced = reduce(result)
                    if features is None:
                        features = _zeros(vectors, n_rows, reduced.shape[1])
                    features.index_copy_(0, at, reduced)
            if reduce is not None and features is None:  # No tokens; one of zeros tells the width.
                token = vectors.new_zeros(config.n_activations, 1, config.output_dim)
                features = _zeros(vectors, n_rows, reduce(token).shape[1])
        return layers, features

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
        # The gate is not entered before: the caller's iterators may fork, or wait for a thread that
        # does. Gradients may be wanted of what is computed from the result.
        with FORK_GATE, torch.inference_mode(False), torch.no_grad():
            layers, _ = self(list(types), numpy.array(index, dtype=numpy.int64), lengths)
            return [
                part.clone(memory_format=torch.contiguous_format)
                for part in cast(Tensor, layers).split(lengths, dim=1)
            ]

    def reset_states(self) -> None:
        """Start again from zero states (`stateful` only)."""
        self._states = None

    def invalidate(self) -> None:
        """Forget everything derived from the weights. Needed only after writing to them behind
        PyTorch's back, if anything was computed without gradients since the last computation with
        them: through `parameter.data`, or by an optimizer with `fused=True`. Other changes are
        noticed."""
        self.token_encoder.invalidate()
        self.lstm.invalidate()
        self.type_cache.clear()

    def _encode_types(self, types: list[str]) -> Tensor:
        encoder = self.token_encoder
        if not isinstance(encoder, CharCNN):
            return encoder.infer(types)
        precision = self.precision
        # A token that is spelled like a boundary makes that text occur twice.
        distinct = list(dict.fromkeys(types))
        vectors = self.type_cache.lookup(
            distinct,
            (precision, fingerprint(encoder)),
            lambda missing: encoder.infer(missing, precision),
        )
        if len(distinct) == len(types):
            return vectors
        row = {text: i for i, text in enumerate(distinct)}
        return vectors[to_device(numpy.array([row[text] for text in types]), vectors.device)]

    def _encode_batch(
        self,
        batch: PackedBatch,
        vectors: Tensor,
        index: numpy.ndarray,
        lstm: Callable[[Tensor, Sequence[int]], list[Tensor]],
    ) -> Tensor:
        """Activations of the batch's tokens, in the order of `batch.tokens`."""
        n_types = len(vectors) - 2
        boundary = numpy.where(batch.inputs == -1, n_types, n_types + 1)
        inputs = numpy.where(batch.inputs < 0, boundary, index[numpy.maximum(batch.inputs, 0)])
        x = vectors[to_device(inputs, vectors.device)]
        rows = to_device(batch.rows, vectors.device)
        p = self.config.projection_dim
        result = x.new_empty(self.config.n_activations, len(batch.tokens), 2 * p)
        for number, layer in enumerate((x, *lstm(x, batch.sizes))):
            for direction in (0, 1):
                column = direction * p
                result[number, :, column : column + p] = layer[direction][rows[direction]]
        return result

    def _infer_lstm(self, batch: PackedBatch) -> Callable[[Tensor, Sequence[int]], list[Tensor]]:
        if not self.stateful:
            return lambda x, sizes: self.lstm.infer(x, sizes, self.precision)
        return lambda x, sizes: self._infer_stateful(x, sizes, batch.order)

    def _infer_stateful(
        self, x: Tensor, sizes: Sequence[int], order: numpy.ndarray
    ) -> list[Tensor]:
        """Row i of the call starts from the state in which the last call left its row i."""
        lstm = self.config.lstm
        n_rows = int(order.max()) + 1
        if self._states is None:
            self._states = [
                (x.new_zeros(2, 0, lstm.projection_dim), x.new_zeros(2, 0, lstm.dim))
                for _ in range(lstm.n_layers)
            ]
        at = to_device(order, x.device)
        self._states = [(_grow(h, n_rows), _grow(c, n_rows)) for h, c in self._states]
        active = [(h[:, at].contiguous(), c[:, at].contiguous()) for h, c in self._states]
        outputs = self.lstm.infer(x, sizes, self.precision, active)
        for (h, c), (new_h, new_c) in zip(self._states, active):
            h[:, at] = new_h
            c[:, at] = new_c
        return outputs


def _zeros(like: Tensor, *shape: int) -> Tensor:
    """Zeros that the caller may use for training something else, unlike an inference tensor."""
    with torch.inference_mode(False):
        return torch.zeros(shape, dtype=like.dtype, device=like.device)


def _kept(rows: numpy.ndarray, device: torch.device) -> tuple[slice | Tensor, Tensor]:
    """Which tokens of a batch have a row in the result (not -1), and those rows."""
    if (rows >= 0).all():
        return slice(None), to_device(rows, device)
    kept = numpy.flatnonzero(rows >= 0)
    return to_device(kept, device), to_device(rows[kept], device)


def _grow(state: Tensor, n_rows: int) -> Tensor:
    """Add zero rows up to n_rows; shape (2, rows, width)."""
    missing = n_rows - state.shape[1]
    if missing <= 0:
        return state
    return torch.cat((state, state.new_zeros(2, missing, state.shape[2])), dim=1)
