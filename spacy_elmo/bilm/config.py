"""Hyper-parameters of a biLM and their on-disk form, `options.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Optional, get_args

Activation = Literal["relu", "tanh"]

# 256 bytes, begin/end sentence, begin/end word, padding. Row 0 of the table is kept for masking.
N_CHARACTERS = 262
# Two of these frame every token (begin-word, end-word).
DEFAULT_MAX_CHARACTERS = 50

# Upper bounds, far above every published biLM, so that damaged options cannot ask for a model that
# takes forever to build or whose sizes overflow.
MAX_WIDTH = 2**16  # Cells, projections, embeddings, all filters together, characters per token.
MAX_LAYERS = 256  # LSTM layers per direction, highway layers, kinds of filters.
MAX_WORDS = 10**8
MIN_CLIP, MAX_CLIP = 1e-30, 1e30  # Within the range of float32.


@dataclass(frozen=True)
class CharCNNConfig:
    """The character encoder (Kim et al. 2015; Józefowicz et al. 2016, section 3.2).

    filters (tuple): Pairs of (width in characters, number of filters): at most 256 pairs, and
        65,536 filters in total.
    activation (str): "relu" or "tanh", applied after max-pooling.
    n_highway (int): Number of highway layers over the pooled filters, at most 256.
    embedding_dim (int): Width of one character embedding, at most 65,536.
    max_characters_per_token (int): Longer tokens are cut; includes the two word boundaries. At most
        65,536.
    projection (Optional[bool]): Whether a projection follows the highways. By default there is
        one exactly if the number of filters differs from the biLM's width (bilm-tf's rule).
    """

    filters: tuple[tuple[int, int], ...]
    activation: Activation = "relu"
    n_highway: int = 0
    embedding_dim: int = 16
    max_characters_per_token: int = DEFAULT_MAX_CHARACTERS
    projection: Optional[bool] = None

    def __post_init__(self) -> None:
        if not self.filters:
            raise ValueError("char_cnn.filters is empty: give at least one [width, number] pair")
        _check_whole("the number of char_cnn.filters", len(self.filters), MAX_LAYERS)
        for pair in self.filters:
            if len(pair) != 2:
                raise ValueError(f"char_cnn.filters: expected [width, number] pairs, found {pair}")
            for value in pair:
                _check_whole("char_cnn.filters", value, MAX_WIDTH)
        _check_whole("the total of char_cnn.filters", self.n_filters, MAX_WIDTH)
        _check_choice("char_cnn.activation", self.activation, get_args(Activation))
        _check_whole("char_cnn.n_highway", self.n_highway, MAX_LAYERS, least=0)
        _check_whole("char_cnn.embedding.dim", self.embedding_dim, MAX_WIDTH)
        _check_whole("char_cnn.max_characters_per_token", self.max_characters_per_token, MAX_WIDTH)
        if self.projection is not None:
            _check_bool("char_cnn.projection", self.projection)
        widest = max(width for width, _ in self.filters)
        if self.max_characters_per_token < max(widest, 3):
            raise ValueError(
                f"char_cnn.max_characters_per_token is {self.max_characters_per_token}, but the "
                f"widest filter needs {widest} characters and a framed character needs 3"
            )

    @property
    def n_filters(self) -> int:
        """Total number of filters: the width of the encoding before the projection."""
        return sum(number for _, number in self.filters)

    @property
    def max_width(self) -> int:
        """Width of the widest filter, in characters."""
        return max(width for width, _ in self.filters)


@dataclass(frozen=True)
class LSTMConfig:
    """The two stacks of LSTMs (Sak et al. 2014 for the projection).

    dim (int): Cells per direction and layer, at most 65,536.
    projection_dim (int): Width P of each direction's output. Equal to dim: no projection.
    n_layers (int): Layers per direction, at most 256.
    cell_clip (Optional[float]): Clip of the cell state, from 1e-30 to 1e30. None: no clipping.
    proj_clip (Optional[float]): Clip of the projected output, likewise. None: no clipping.
    use_skip_connections (bool): Add each layer's input to its output, from the second layer on.
    """

    dim: int
    projection_dim: int
    n_layers: int = 2
    cell_clip: Optional[float] = 3.0
    proj_clip: Optional[float] = 3.0
    use_skip_connections: bool = True

    def __post_init__(self) -> None:
        _check_whole("lstm.dim", self.dim, MAX_WIDTH)
        _check_whole("lstm.projection_dim", self.projection_dim, MAX_WIDTH)
        _check_whole("lstm.n_layers", self.n_layers, MAX_LAYERS)
        for name in ("cell_clip", "proj_clip"):
            value = getattr(self, name)
            if value is not None and not (_is_number(value) and MIN_CLIP <= value <= MAX_CLIP):
                raise ValueError(
                    f"lstm.{name} must be a positive number from {MIN_CLIP:g} to {MAX_CLIP:g}, or "
                    f"null for no clipping, found {value!r}"
                )
        _check_bool("lstm.use_skip_connections", self.use_skip_connections)
        if self.projection_dim > self.dim:
            raise ValueError(
                f"lstm.projection_dim is {self.projection_dim}, more than lstm.dim ({self.dim}): "
                "a projection only narrows; set it to lstm.dim for none"
            )

    @property
    def has_projection(self) -> bool:
        """Whether the layers' outputs are projected (and clipped) to projection_dim."""
        return self.projection_dim != self.dim


@dataclass(frozen=True)
class BiLMConfig:
    """Everything needed to build a biLM. `from_options` and `to_options` are inverses.

    lstm (LSTMConfig): The LSTMs.
    char_cnn (Optional[CharCNNConfig]): The character encoder. None: word embeddings.
    n_tokens_vocab (Optional[int]): Rows of the word embedding, at most 100 million; only for word
        input.
    """

    lstm: LSTMConfig
    char_cnn: Optional[CharCNNConfig] = None
    n_tokens_vocab: Optional[int] = None

    def __post_init__(self) -> None:
        if self.char_cnn is None:
            if self.n_tokens_vocab is None:
                raise ValueError(
                    "a biLM needs char_cnn (character input) or n_tokens_vocab (word input)"
                )
            _check_whole("n_tokens_vocab", self.n_tokens_vocab, MAX_WORDS)

    @property
    def projection_dim(self) -> int:
        """P: width of the token encoder and of one direction."""
        return self.lstm.projection_dim

    @property
    def output_dim(self) -> int:
        """2P: width of a layer's activations, both directions."""
        return 2 * self.lstm.projection_dim

    @property
    def n_activations(self) -> int:
        """L+1: number of layers a mix sees, the token encoder included."""
        return self.lstm.n_layers + 1

    @property
    def has_char_projection(self) -> bool:
        """Whether the character encoder ends in a projection."""
        if self.char_cnn is None:
            return False
        if self.char_cnn.projection is not None:
            return self.char_cnn.projection
        return self.char_cnn.n_filters != self.projection_dim

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> BiLMConfig:
        """Read the contents of an `options.json`. Training-only keys are ignored.

        options (Mapping): The parsed JSON.
        RETURNS (BiLMConfig): The configuration.
        RAISES (ValueError): If a setting is missing or has an impossible value.
        """
        if not isinstance(options, Mapping):
            raise ValueError(f"options must be a JSON object, found {type(options).__name__}")
        lstm = _section(options, "lstm")
        assert lstm is not None
        lstm_config = LSTMConfig(
            dim=_required(lstm, "lstm", "dim"),
            projection_dim=lstm.get("projection_dim", lstm["dim"]),
            n_layers=lstm.get("n_layers", 1),
            cell_clip=lstm.get("cell_clip"),
            proj_clip=lstm.get("proj_clip"),
            use_skip_connections=lstm.get("use_skip_connections", False),
        )
        char_cnn = _section(options, "char_cnn", required=False)
        if char_cnn is None:
            return cls(lstm_config, n_tokens_vocab=_required(options, "options", "n_tokens_vocab"))
        n_characters = char_cnn.get("n_characters", N_CHARACTERS)
        if n_characters not in (N_CHARACTERS - 1, N_CHARACTERS):
            raise ValueError(
                f"char_cnn.n_characters is {n_characters!r}: expected 261 (training) or "
                "262 (inference, with the masking row)"
            )
        embedding = _section(char_cnn, "embedding")
        assert embedding is not None
        filters = _required(char_cnn, "char_cnn", "filters")
        if not isinstance(filters, (list, tuple)) or not all(
            isinstance(pair, (list, tuple)) for pair in filters
        ):
            raise ValueError(f"char_cnn.filters must be a list of pairs, found {filters!r}")
        return cls(
            lstm_config,
            CharCNNConfig(
                filters=tuple(tuple(pair) for pair in filters),
                activation=char_cnn.get("activation", "relu"),
                n_highway=char_cnn.get("n_highway", 0),
                embedding_dim=_required(embedding, "char_cnn.embedding", "dim"),
                max_characters_per_token=char_cnn.get(
                    "max_characters_per_token", DEFAULT_MAX_CHARACTERS
                ),
                projection=char_cnn.get("projection"),
            ),
        )

    def to_options(self) -> dict[str, Any]:
        """RETURNS (dict): The contents of an `options.json` for inference (262 characters)."""
        lstm = self.lstm
        options: dict[str, Any] = {
            "lstm": {
                "dim": lstm.dim,
                "projection_dim": lstm.projection_dim,
                "n_layers": lstm.n_layers,
                "cell_clip": lstm.cell_clip,
                "proj_clip": lstm.proj_clip,
                "use_skip_connections": lstm.use_skip_connections,
            }
        }
        char_cnn = self.char_cnn
        if char_cnn is None:
            options["n_tokens_vocab"] = self.n_tokens_vocab
            return options
        options["char_cnn"] = {
            "activation": char_cnn.activation,
            "embedding": {"dim": char_cnn.embedding_dim},
            "filters": [list(pair) for pair in char_cnn.filters],
            "n_highway": char_cnn.n_highway,
            "n_characters": N_CHARACTERS,
            "max_characters_per_token": char_cnn.max_characters_per_token,
        }
        if char_cnn.projection is not None:
            options["char_cnn"]["projection"] = char_cnn.projection
        return options


def _section(
    options: Mapping[str, Any], name: str, *, required: bool = True
) -> Optional[Mapping[str, Any]]:
    value = options.get(name)
    if value is None and not required:
        return None
    if not isinstance(value, Mapping):
        raise ValueError(f"options: the section {name!r} is missing or not an object: {value!r}")
    return value


def _required(options: Mapping[str, Any], where: str, name: str) -> Any:
    if name not in options:
        raise ValueError(f"{where}: the setting {name!r} is missing")
    return options[name]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _check_whole(name: str, value: Any, most: int, *, least: int = 1) -> None:
    kind = "a positive whole number, at most" if least else "a whole number from 0 to"
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{name} must be {kind} {most}, found {value!r}")


def _check_bool(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, found {value!r}")


def _check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, found {value!r}")
