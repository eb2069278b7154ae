"""From a token's text to a vector without context: layer 0 of the biLM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

import numpy
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .characters import BOS, EOS, PADDING, SHIFT, character_ids
from .config import N_CHARACTERS, BiLMConfig, CharCNNConfig
from .derived import Derived, fingerprint
from .forking import FORK_GATE
from .module_list import ModuleList
from .precision import Precision, Product, compiles_per_size, pack, product_dtype
from .transfer import to_device

UNK = "<UNK>"
SPECIAL_WORDS = (BOS, EOS, UNK)
# Word types per run of the convolutions: their windows should stay in the processor's cache.
_TYPES_PER_CHUNK = {"cpu": 128, "cuda": 8192}


class Highway(nn.Module):
    """`g * relu(transform(x)) + (1 - g) * x` with `g = sigmoid(carry(x))` (Srivastava et al. 2015).

    The names are bilm-tf's, where "carry" gates the transformed input.

    width (int): Width of input and output.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.carry = nn.Linear(width, width)
        self.transform = nn.Linear(width, width)
        for linear in (self.carry, self.transform):
            nn.init.normal_(linear.weight, std=width**-0.5)
        nn.init.constant_(self.carry.bias, -2.0)
        nn.init.zeros_(self.transform.bias)

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.sigmoid(self.carry(x))
        return x + gate * (torch.relu(self.transform(x)) - x)


class CharCNN(nn.Module):
    """Character embeddings, convolutions, max over time, highways, projection.

    Józefowicz et al. 2016, section 3.2; Peters et al. 2018, section 3.4.

    config (CharCNNConfig): The hyper-parameters.
    output_dim (int): P, width of the encoding.
    has_projection (bool): Whether a projection to output_dim ends it.
    """

    def __init__(self, config: CharCNNConfig, output_dim: int, has_projection: bool) -> None:
        super().__init__()
        if not has_projection and config.n_filters != output_dim:
            raise ValueError(
                f"char_cnn has {config.n_filters} filters and no projection, but the LSTMs read "
                f"vectors of width {output_dim}"
            )
        self.config = config
        self.output_dim = output_dim
        self.char_embedding = nn.Embedding(N_CHARACTERS, config.embedding_dim, padding_idx=0)
        self.convolutions: ModuleList[nn.Conv1d] = ModuleList(
            nn.Conv1d(config.embedding_dim, number, width) for width, number in config.filters
        )
        self.highways: ModuleList[Highway] = ModuleList(
            Highway(config.n_filters) for _ in range(config.n_highway)
        )
        self.projection = nn.Linear(config.n_filters, output_dim) if has_projection else None
        self.reset_parameters()
        self._packed = Derived()

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.char_embedding.weight, -1.0, 1.0)
        with torch.no_grad():
            self.char_embedding.weight[0] = 0.0
        for conv in self.convolutions:
            assert conv.bias is not None
            if self.config.activation == "relu":
                nn.init.uniform_(conv.weight, -0.05, 0.05)
            else:
                nn.init.normal_(conv.weight, std=conv.weight[0].numel() ** -0.5)
            nn.init.zeros_(conv.bias)
        if self.projection is not None:
            nn.init.normal_(self.projection.weight, std=self.config.n_filters**-0.5)
            nn.init.zeros_(self.projection.bias)

    def forward(self, types: Sequence[str]) -> Tensor:
        """Encode word types with autograd.

        types (Sequence[str]): Their texts.
        RETURNS (Tensor): Shape (types, P).
        """
        return self.encode(*character_ids(types, self.config.max_characters_per_token))

    def encode(self, ids: numpy.ndarray, lengths: numpy.ndarray) -> Tensor:
        """The same for types whose characters are known already.

        ids (ndarray): Shifted character ids (see `characters`), shape (types, characters).
        lengths (ndarray): Ids per type that are not padding.
        RETURNS (Tensor): Shape (types, P).
        """
        weight = self.char_embedding.weight
        device, n = weight.device, len(ids)
        size = _TYPES_PER_CHUNK.get(device.type, 8192)
        few_sizes = compiles_per_size(device, product_dtype(weight))
        if few_sizes:
            # Full chunks only, with types that are nothing but padding.
            more = -n % size
            ids = numpy.pad(ids, ((0, more), (0, 0)), constant_values=PADDING + SHIFT)
            lengths = numpy.pad(lengths, (0, more))
        # In order of length, so that each chunk is as narrow as it can be.
        order = numpy.argsort(lengths, kind="stable")
        chunks = [order[start : start + size] for start in range(0, len(order), size)]
        pooled = [self._pool(self._pad(ids[chunk], lengths[chunk], few_sizes)) for chunk in chunks]
        y = torch.cat(pooled) if pooled else weight.new_empty(0, self.config.n_filters)
        for highway in self.highways:
            y = highway(y)
        if self.projection is not None:
            y = self.projection(y)
        return y[to_device(numpy.argsort(order)[:n], device)]

    def _pool(self, ids: Tensor) -> Tensor:
        """Convolutions, max over time, activation."""
        embedded = self.char_embedding(ids)
        n, length, _ = embedded.shape
        pooled = []
        for conv, (width, number) in zip(self.convolutions, self.config.filters):
            # All windows as rows of one matrix: the gradient of a small convolution is slow.
            windows = embedded.unfold(1, width, 1).reshape(n * (length - width + 1), -1)
            scores = F.linear(windows, conv.weight.flatten(1), conv.bias)
            pooled.append(self._activate(scores.view(n, -1, number).amax(1)))
        return torch.cat(pooled, dim=1)

    @torch.inference_mode()
    def infer(self, types: Sequence[str], precision: Precision = "float32") -> Tensor:
        """The same without autograd: short types together, everything in place, and weights packed
        where the precision asks for it. A type's vector does not depend on the others.

        types (Sequence[str]): Their texts.
        precision (str): Arithmetic of the products. "int8" is computed like "float16".
        RETURNS (Tensor): Shape (types, P).
        """
        key = (precision, fingerprint(self))
        packed: _PackedCharCNN = self._packed.get(key, lambda: self._pack(precision))
        device = self.char_embedding.weight.device
        # In order of length, so that each chunk is as narrow as it can be.
        order = numpy.argsort([len(text) for text in types], kind="stable")
        result = self.char_embedding.weight.new_empty(len(types), self.output_dim)
        size = _TYPES_PER_CHUNK.get(device.type, 8192)
        for start in range(0, len(types), size):
            FORK_GATE.let_forks_pass()
            chunk = order[start : start + size]
            y = self._convolve(packed, self._padded_ids([types[i] for i in chunk]))
            for carry, transform in packed.highways:
                y = torch.lerp(y, transform(y, None).relu_(), carry(y, None).sigmoid_())
            if packed.projection is not None:
                y = packed.projection(y, None)
            result[to_device(chunk, device)] = y
        return result

    def invalidate(self) -> None:
        """Forget the packed weights."""
        self._packed.clear()

    def _convolve(self, packed: _PackedCharCNN, ids: Tensor) -> Tensor:
        embedded = F.embedding(ids, self.char_embedding.weight)
        n, length, dim = embedded.shape
        y = embedded.new_empty(n, self.config.n_filters)
        column = 0
        for product, conv, (width, number) in zip(
            packed.convolutions, self.convolutions, self.config.filters
        ):
            # All windows as rows of one matrix, which is faster here than a small convolution.
            windows = embedded.as_strided(
                (n, length - width + 1, width * dim), (length * dim, dim, 1)
            )
            scores = product(windows.reshape(-1, width * dim), None)
            assert conv.bias is not None
            pooled = scores.view(n, -1, number).amax(1).add_(conv.bias)
            y[:, column : column + number] = self._activate(pooled)
            column += number
        return y

    def _padded_ids(self, types: Sequence[str]) -> Tensor:
        """Character ids padded so far that every filter sees one window of padding alone, if it
        would have seen any at full length: all such windows have the same value."""
        return self._pad(*character_ids(types, self.config.max_characters_per_token))

    def _pad(self, ids: numpy.ndarray, lengths: numpy.ndarray, few_sizes: bool = False) -> Tensor:
        most = self.config.max_characters_per_token
        longest = int(lengths.max(initial=0)) + self.config.max_width
        if few_sizes:
            step = 4 if longest <= 16 else 16
            longest = -(-longest // step) * step
        longest = min(longest, most)
        padded = numpy.full((len(ids), longest), PADDING + SHIFT)
        padded[:, : ids.shape[1]] = ids[:, :longest]
        return to_device(padded, self.char_embedding.weight.device)

    def _activate(self, x: Tensor) -> Tensor:
        return torch.relu(x) if self.config.activation == "relu" else torch.tanh(x)

    def _pack(self, precision: Precision) -> _PackedCharCNN:
        # 8-bit products quantise all rows of a call with one scale: a type's vector, which the type
        # cache keeps, would depend on the types that happened to be new at the same time. Products
        # with half-precision weights are as fast here.
        arithmetic: Precision = "float16" if precision == "int8" else precision

        def product(weight: Tensor, bias: Optional[Tensor]) -> Product:
            return pack(weight, bias, arithmetic, many_rows=True)

        return _PackedCharCNN(
            convolutions=[
                product(conv.weight.permute(0, 2, 1).flatten(1), None) for conv in self.convolutions
            ],
            highways=[
                (
                    product(highway.carry.weight, highway.carry.bias),
                    product(highway.transform.weight, highway.transform.bias),
                )
                for highway in self.highways
            ],
            projection=None
            if self.projection is None
            else product(self.projection.weight, self.projection.bias),
        )


@dataclass
class _PackedCharCNN:
    convolutions: list[Product]
    highways: list[tuple[Product, Product]]
    projection: Optional[Product]


class WordEmbedding(nn.Module):
    """One vector per word of a fixed vocabulary; unknown words share that of `<UNK>`.

    vocabulary (Sequence[str]): The words by row. Must contain `<S>`, `</S>` and `<UNK>`.
    output_dim (int): P, width of the vectors.
    """

    def __init__(self, vocabulary: Sequence[str], output_dim: int) -> None:
        super().__init__()
        self.vocabulary = list(vocabulary)
        self._ids = {word: row for row, word in enumerate(self.vocabulary)}
        absent = [word for word in SPECIAL_WORDS if word not in self._ids]
        if absent:
            raise ValueError(
                f"the vocabulary lacks {', '.join(absent)}: a bilm-tf vocabulary begins with "
                f"{', '.join(SPECIAL_WORDS)}, one word per line"
            )
        self.embedding = nn.Embedding(len(self.vocabulary), output_dim)
        # As bilm-tf. PyTorch's own start, of variance 1, drowns what a short training adds to it.
        nn.init.xavier_uniform_(self.embedding.weight)

    def forward(self, types: Sequence[str]) -> Tensor:
        """RETURNS (Tensor): The types' vectors, shape (types, P)."""
        unknown = self._ids[UNK]
        ids = [self._ids.get(text, unknown) for text in types]
        return self.embedding(
            to_device(numpy.array(ids, dtype=numpy.int64), self.embedding.weight.device)
        )

    def infer(self, types: Sequence[str], precision: Precision = "float32") -> Tensor:
        """The same; a look-up is exact in every precision."""
        return self.forward(types)

    def invalidate(self) -> None:
        """Nothing is derived from the weights."""


def build_token_encoder(
    config: BiLMConfig, vocabulary: Optional[Sequence[str]]
) -> CharCNN | WordEmbedding:
    """RETURNS: The encoder that the configuration asks for.
    RAISES (ValueError): If word input comes without a vocabulary of the right size."""
    if config.char_cnn is not None:
        return CharCNN(config.char_cnn, config.projection_dim, config.has_char_projection)
    if vocabulary is None:
        raise ValueError("a biLM with word input needs its vocabulary: give vocab.txt")
    if len(vocabulary) != config.n_tokens_vocab:
        raise ValueError(
            f"n_tokens_vocab is {config.n_tokens_vocab}, but the vocabulary has "
            f"{len(vocabulary)} words"
        )
    return WordEmbedding(vocabulary, config.projection_dim)
