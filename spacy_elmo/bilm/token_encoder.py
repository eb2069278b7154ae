"""From a token's text to a vector without context: layer 0 of the biLM."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Optional, cast

import numpy
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..torch_private import Product
from .config import DICTIONARY_SPECIALS, N_CHARACTERS, BiLMConfig, CharCNNConfig
from .mixed_precision import COMPILED_PER_SIZE, product_dtype
from .packing import to_device

BOS, EOS, UNK = SPECIAL_WORDS = "<S>", "</S>", "<UNK>"

# bilm-tf's ids. Characters are bytes of UTF-8, with ids 0..255. The network adds one to all ids: 0
# is kept for masking.
_BEGIN_SENTENCE, _END_SENTENCE, _BEGIN_WORD, _END_WORD, _PADDING = range(256, 261)
_SHIFT = 1
_DICTIONARY_BOS, _DICTIONARY_EOS, UNKNOWN, _PAD, _BEGIN, _END = DICTIONARY_SPECIALS

# Word types per run of the convolutions: their windows should stay in the processor's cache.
_TYPES_PER_CHUNK = {"cpu": 128, "cuda": 8192}


def character_ids(
    tokens: Sequence[str], max_characters: int, dictionary: Optional[Mapping[str, int]] = None
) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Number the characters of tokens, between two word boundaries, `max_characters` with these at
    most, padded to the longest token.

    dictionary (Optional[Mapping]): The rows of Unicode characters and of `DICTIONARY_SPECIALS`, as
        in ELMoForManyLangs. None: the bytes of UTF-8, as in bilm-tf; lone surrogates are dropped.
    RETURNS (tuple): Ids as the network reads them, shape (tokens, longest), and the number of ids
        that are not padding, shape (tokens,).
    """
    if dictionary is None:
        special, shift = {BOS: [_BEGIN_SENTENCE], EOS: [_END_SENTENCE]}, _SHIFT
        begin, end, padding = _BEGIN_WORD, _END_WORD, _PADDING
    else:
        rows, unknown, shift = dictionary.get, dictionary[UNKNOWN], 0
        special = {name: [dictionary[name]] for name in (_DICTIONARY_BOS, _DICTIONARY_EOS)}
        begin, end, padding = (dictionary[name] for name in (_BEGIN, _END, _PAD))
    most, spelled = max_characters - 2, []
    for token in tokens:
        if token in special:
            spelled.append(special[token])
        elif dictionary is None:
            spelled.append([*token.encode("utf8", "ignore")[:most]])
        else:
            spelled.append([rows(character, unknown) for character in token[:most]])
    lengths = numpy.array([len(characters) + 2 for characters in spelled], dtype=numpy.int64)
    ids = numpy.full((len(spelled), int(lengths.max(initial=2))), padding, dtype=numpy.int64)
    for row, characters, length in zip(ids, spelled, lengths.tolist()):
        row[:length] = begin, *characters, end
    return ids + shift, lengths


def _look_up(
    types: Iterable[str], rows: Mapping[str, int], unknown: str, embedding: nn.Embedding
) -> Tensor:
    """RETURNS (Tensor): The vectors of words, shape (types, width)."""
    ids = numpy.array([rows.get(text, rows[unknown]) for text in types], dtype=numpy.int64)
    return embedding(to_device(ids, embedding.weight.device))


def _highway(width: int) -> nn.ModuleDict:
    """Weights of `g * relu(transform(x)) + (1 - g) * x` with `g = sigmoid(carry(x))` (Srivastava et
    al. 2015)."""
    carry, transform = nn.Linear(width, width), nn.Linear(width, width)
    for linear in (carry, transform):
        nn.init.normal_(linear.weight, std=width**-0.5)
    nn.init.constant_(carry.bias, -2.0)
    nn.init.zeros_(transform.bias)
    return nn.ModuleDict({"carry": carry, "transform": transform})


class CharCNN(nn.Module):
    """Character embeddings, convolutions, max over time, highways, projection (Józefowicz et al.
    2016, section 3.2; Peters et al. 2018, section 3.4). In models of ELMoForManyLangs, the
    projection reads an embedding of the words of a vocabulary as well (Che et al. 2018).

    Attributes: `boundaries`, the texts of the tokens that begin and end a sentence; `dictionary`,
    as of `character_ids`; `padding`, the id behind the ids of a token.
    """

    def __init__(
        self,
        config: CharCNNConfig,
        output_dim: int,
        has_projection: bool,
        vocabulary: Optional[Sequence[str]] = None,
    ) -> None:
        super().__init__()
        if not has_projection and config.n_filters != output_dim:
            n = config.n_filters
            raise ValueError(f"char_cnn has {n} filters, no projection, and width {output_dim}")
        self.config = config
        self.boundaries, self.padding = (BOS, EOS), _PADDING + _SHIFT
        self.dictionary: Optional[dict[str, int]] = None
        if config.characters is None:
            rows, padding_row = N_CHARACTERS, 0
        else:
            self.dictionary = {entry: row for row, entry in enumerate(config.characters)}
            self.boundaries = _DICTIONARY_BOS, _DICTIONARY_EOS
            self.padding = self.dictionary[_PAD]
            rows, padding_row = len(config.characters), None
        self.char_embedding = nn.Embedding(rows, config.embedding_dim, padding_row)
        self.vocabulary = None if vocabulary is None else list(vocabulary)
        self.word_embedding: Optional[nn.Embedding] = None
        if self.vocabulary is not None:
            self._word_ids = {word: row for row, word in enumerate(self.vocabulary)}
            if UNKNOWN not in self._word_ids:
                raise ValueError(f"the vocabulary lacks {UNKNOWN}, which stands for unknown words")
            self.word_embedding = nn.Embedding(len(self.vocabulary), config.word_dim)
        convolutions = (nn.Conv1d(config.embedding_dim, n, width) for width, n in config.filters)
        self.convolutions = cast("list[nn.Conv1d]", nn.ModuleList(convolutions))
        highways = (_highway(config.n_filters) for _ in range(config.n_highway))
        self.highways = cast("list[nn.ModuleDict]", nn.ModuleList(highways))
        n_features = config.n_filters + config.word_dim
        self.projection = nn.Linear(n_features, output_dim) if has_projection else None
        self._initialize()

    def _initialize(self) -> None:
        nn.init.uniform_(self.char_embedding.weight, -1.0, 1.0)
        if self.dictionary is None:
            nn.init.zeros_(self.char_embedding.weight[0].detach())
        if self.word_embedding is not None:
            nn.init.xavier_uniform_(self.word_embedding.weight)
        for conv in self.convolutions:
            if self.config.activation == "relu":
                nn.init.uniform_(conv.weight, -0.05, 0.05)
            else:
                nn.init.normal_(conv.weight, std=conv.weight[0].numel() ** -0.5)
            nn.init.zeros_(cast(Tensor, conv.bias))
        if self.projection is not None:
            nn.init.normal_(self.projection.weight, std=self.projection.in_features**-0.5)
            nn.init.zeros_(self.projection.bias)

    def forward(self, types: Sequence[str], products: Optional[Sequence[Product]] = None) -> Tensor:
        """Encode word types, shape (types, P), with products of `linears`, or with autograd."""
        weight = self.char_embedding.weight
        size = _TYPES_PER_CHUNK.get(weight.device.type, 8192)
        few_sizes = False
        if products is None:
            few_sizes = (weight.device.type, product_dtype(weight)) == COMPILED_PER_SIZE
            products = [partial(F.linear, weight=w, bias=b) for w, b in self.linears()]
        n_types, max_characters = len(types), self.config.max_characters_per_token
        if few_sizes:  # Full chunks only, with empty texts.
            types = [*types, *[""] * (-n_types % size)]
        ids, lengths = character_ids(types, max_characters, self.dictionary)
        # In order of length, so that each chunk is as narrow as it can be.
        order, max_width = numpy.argsort(lengths, kind="stable"), self.config.max_width
        pooled = []
        for start in range(0, max(len(order), 1), size):
            chunk = order[start : start + size]
            # Each filter sees one window of padding alone: all such windows have the same value.
            width = int(lengths[chunk].max(initial=0)) + max_width
            if few_sizes:
                step = 4 if width <= 16 else 16
                width = -(-width // step) * step
            width = min(width, max_characters)
            padded = numpy.full((len(chunk), width), self.padding)
            padded[:, : ids.shape[1]] = ids[chunk, :width]
            pooled.append(self._pool(to_device(padded, weight.device), products))
        y = torch.cat(pooled)
        linears = iter(products[len(self.convolutions) :])
        for _ in self.highways:
            gate = next(linears)(y).sigmoid_()
            y = torch.lerp(y, next(linears)(y).relu_(), gate)
        if self.word_embedding is not None:
            y = torch.cat((self.embed_words([types[i] for i in order]), y), dim=1)
        if self.projection is not None:
            y = next(linears)(y)
        return y[to_device(numpy.argsort(order)[:n_types], weight.device)]

    def linears(self) -> list[tuple[Tensor, Optional[Tensor]]]:
        """RETURNS (list): Weight, shape (out, in), and bias of each matrix product, in the order of
        use: first the convolutions, without a bias."""
        linears = [cast(nn.Linear, linear) for one in self.highways for linear in one.values()]
        if self.projection is not None:
            linears.append(self.projection)
        return [
            # Not permuted: `DistributedDataParallel` would warn of the gradient's strides.
            *((torch.cat(conv.weight.unbind(2), 1), None) for conv in self.convolutions),
            *((linear.weight, linear.bias) for linear in linears),
        ]

    def embed_words(self, types: Sequence[str]) -> Tensor:
        """RETURNS (Tensor): Shape (types, word_dim)."""
        assert self.word_embedding is not None
        most = self.config.max_characters_per_token - 2
        texts = (text if text in self.boundaries else text[:most] for text in types)
        return _look_up(texts, self._word_ids, UNKNOWN, self.word_embedding)

    def _pool(self, ids: Tensor, products: Sequence[Product]) -> Tensor:
        """Convolutions, max over time, activation. RETURNS (Tensor): Shape (types, filters)."""
        embedded = F.embedding(ids, self.char_embedding.weight)
        n_types, length, dim = embedded.shape
        pooled = []
        for conv, product in zip(self.convolutions, products):
            [width] = conv.kernel_size
            # All windows as rows of one matrix: this is faster than a small convolution.
            windows = embedded.unfold(1, width, 1).transpose(2, 3).reshape(-1, width * dim)
            scores = product(windows).view(n_types, length - width + 1, conv.out_channels)
            maximum = scores.amax(1)
            pooled.append(maximum + cast(Tensor, conv.bias).to(maximum.dtype))
        y = torch.cat(pooled, dim=1)
        return torch.relu_(y) if self.config.activation == "relu" else torch.tanh_(y)


class WordEmbedding(nn.Module):
    """One vector per word of a vocabulary with `<S>`, `</S>`, and `<UNK>` for unknown words."""

    boundaries = BOS, EOS

    def __init__(self, vocabulary: Sequence[str], output_dim: int) -> None:
        super().__init__()
        self.vocabulary = list(vocabulary)
        self._ids = {word: row for row, word in enumerate(self.vocabulary)}
        if absent := [word for word in SPECIAL_WORDS if word not in self._ids]:
            why = f"a bilm-tf vocabulary begins with {', '.join(SPECIAL_WORDS)}, one word per line"
            raise ValueError(f"the vocabulary lacks {', '.join(absent)}: {why}")
        self.embedding = nn.Embedding(len(self.vocabulary), output_dim)
        # As bilm-tf. PyTorch's own start, of variance 1, drowns what a short training adds.
        nn.init.xavier_uniform_(self.embedding.weight)

    def forward(self, types: Sequence[str]) -> Tensor:
        """RETURNS (Tensor): The types' vectors, shape (types, P)."""
        return _look_up(types, self._ids, UNK, self.embedding)


def build_token_encoder(
    config: BiLMConfig, vocabulary: Optional[Sequence[str]]
) -> CharCNN | WordEmbedding:
    """RETURNS: The encoder that the configuration asks for.
    RAISES (ValueError): If word input comes without a vocabulary of the right size."""
    char_cnn, width, n_words = config.char_cnn, config.lstm.projection_dim, config.n_tokens_vocab
    if char_cnn is not None and not char_cnn.word_dim:
        return CharCNN(char_cnn, width, config.has_char_projection)
    if vocabulary is None:
        raise ValueError("a biLM with word input needs its vocabulary: give vocab.txt")
    if (found := len(vocabulary)) != n_words:
        raise ValueError(f"n_tokens_vocab is {n_words}, but the vocabulary has {found} words")
    if char_cnn is None:
        return WordEmbedding(vocabulary, width)
    return CharCNN(char_cnn, width, config.has_char_projection, vocabulary)
