"""Hyper-parameters of a biLM and their on-disk form, `options.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, field
from typing import Annotated, Any, Final, Literal, Optional

from pydantic import Field
from pydantic.dataclasses import dataclass

from .validation import SETTINGS, Bool, Number, Text, Whole, setting_names, validate

# 256 bytes, begin/end sentence, begin/end word, padding. Row 0 of the table is kept for masking.
N_CHARACTERS: Final = 262

# Entries of a dictionary that are no characters. The two boundaries are tokens as well.
DICTIONARY_SPECIALS: Final = ("<bos>", "<eos>", "<oov>", "<pad>", "<bow>", "<eow>")

# Bounds far above every published biLM: damaged options must not take hours to build.
MAX_WIDTH = 2**16  # Cells, projections, embeddings, filters of one width, characters per token.
MAX_LAYERS = 256  # LSTM layers per direction, highway layers, kinds of filters.

Width = Annotated[Whole, Field(ge=1, le=MAX_WIDTH)]
Clip = Optional[Annotated[Number, Field(ge=1e-30, le=1e30)]]  # Within the range of float32.
Activation = Literal["relu", "tanh"]
Filter = tuple[Width, Width]


@dataclass(frozen=True, config=SETTINGS)
class CharCNNConfig:
    """The character encoder (Kim et al. 2015; Józefowicz et al. 2016, section 3.2).

    filters (tuple): Pairs of (width in characters, number of filters).
    activation (str): "relu" or "tanh", applied after max-pooling.
    n_highway (int): Number of highway layers over the pooled filters.
    embedding_dim (int): Width of one character embedding.
    max_characters_per_token (int): Longer tokens are cut; includes the two word boundaries.
    projection (Optional[bool]): Whether a projection follows the highways. None: if the number of
        filters differs from the biLM's width (bilm-tf's rule).
    characters (Optional[tuple]): What each row of the character table stands for, if characters are
        those of Unicode (ELMoForManyLangs): see `character_ids`. None: bytes, as in bilm-tf.
    word_dim (int): Width of a word embedding that the projection reads beside the filters (in
        ELMoForManyLangs). 0: none.
    """

    filters: Annotated[tuple[Filter, ...], Field(min_length=1, max_length=MAX_LAYERS)]
    activation: Activation = "relu"
    n_highway: Annotated[Whole, Field(ge=0, le=MAX_LAYERS)] = 0
    # In files, the embedding is a section.
    embedding_dim: Annotated[Width, Field(validation_alias="embedding.dim")] = 16
    max_characters_per_token: Width = 50
    projection: Optional[Bool] = None
    characters: Optional[Annotated[tuple[Text, ...], Field(max_length=2**21)]] = field(
        default=None, repr=False
    )
    word_dim: Annotated[Whole, Field(ge=0, le=MAX_WIDTH)] = 0

    def __post_init__(self) -> None:
        if self.max_characters_per_token < max(self.max_width, 3):
            raise ValueError(
                f"max_characters_per_token is {self.max_characters_per_token}, but the "
                f"widest filter needs {self.max_width} characters and a framed character needs 3"
            )
        if self.characters is not None:
            absent = set(DICTIONARY_SPECIALS).difference(self.characters)
            if absent or len(set(self.characters)) < len(self.characters):
                why = f"lack the entries {', '.join(absent)}" if absent else "hold an entry twice"
                raise ValueError(f"characters {why}")
        if self.word_dim and (self.characters is None or self.projection is False):
            raise ValueError(
                f"word_dim is {self.word_dim}: it needs characters (a dictionary) and a projection"
            )

    @property
    def n_filters(self) -> int:
        """Width of the encoding before the projection."""
        return sum(number for _, number in self.filters)

    @property
    def max_width(self) -> int:
        """Width of the widest filter, in characters."""
        return max(width for width, _ in self.filters)


@dataclass(frozen=True, config=SETTINGS)
class LSTMConfig:
    """The two stacks of LSTMs (Sak et al. 2014 for the projection).

    dim (int): Cells per direction and layer.
    projection_dim (int): Width P of each direction's output. Equal to dim: no projection.
    n_layers (int): Layers per direction.
    cell_clip (Optional[float]): Clip of the cell state. None: no clipping.
    proj_clip (Optional[float]): Clip of the projected output. None: no clipping.
    use_skip_connections (bool): Add each layer's input to its output, from the second layer on.
    projection (Optional[bool]): Whether outputs are projected. None: if projection_dim differs from
        dim (bilm-tf's rule).
    """

    dim: Width
    projection_dim: Width
    n_layers: Annotated[Whole, Field(ge=1, le=MAX_LAYERS)] = 2
    cell_clip: Clip = 3.0
    proj_clip: Clip = 3.0
    use_skip_connections: Bool = True
    projection: Optional[Bool] = None

    def __post_init__(self) -> None:
        wider = self.projection is None and self.projection_dim > self.dim
        if wider or (self.projection is False and self.projection_dim != self.dim):
            widths = f"projection_dim is {self.projection_dim}, and lstm.dim {self.dim}"
            raise ValueError(f"{widths}: a projection only narrows, and without one they are equal")

    @property
    def has_projection(self) -> bool:
        """Whether the layers' outputs are projected (and clipped) to projection_dim."""
        return self.projection_dim != self.dim if self.projection is None else self.projection


@dataclass(frozen=True, config=SETTINGS)
class BiLMConfig:
    """Everything needed to build a biLM. `from_options` and `to_options` are inverses.

    char_cnn (Optional[CharCNNConfig]): The character encoder. None: word embeddings.
    n_tokens_vocab (Optional[int]): Rows of the word embedding.
    """

    lstm: LSTMConfig
    char_cnn: Optional[CharCNNConfig] = None
    n_tokens_vocab: Optional[Annotated[Whole, Field(ge=1, le=10**8)]] = None

    def __post_init__(self) -> None:
        if (self.char_cnn is None or self.char_cnn.word_dim) and self.n_tokens_vocab is None:
            why = "" if self.char_cnn is None else "; char_cnn.word_dim asks for words"
            raise ValueError(f"char_cnn or n_tokens_vocab (for word input) is missing{why}")

    @property
    def output_dim(self) -> int:
        """2P: width of a layer's activations."""
        return 2 * self.lstm.projection_dim

    @property
    def n_activations(self) -> int:
        """L+1: number of layers a mix sees, the token encoder included."""
        return self.lstm.n_layers + 1

    @property
    def has_char_projection(self) -> bool:
        """Whether the character encoder ends in a projection."""
        if (char_cnn := self.char_cnn) is None:
            return False
        needed = char_cnn.word_dim > 0 or char_cnn.n_filters != self.lstm.projection_dim
        return needed if char_cnn.projection is None else char_cnn.projection

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> BiLMConfig:
        """Read the contents of an `options.json`. What only bilm-tf's training uses is ignored.
        RAISES (ValueError): Naming all settings that are missing or have an impossible value."""
        if not isinstance(options, Mapping):
            raise ValueError(f"options must be a JSON object, found {type(options).__name__}")
        settings = settings_from_options(options)
        for name, kind in (("lstm", LSTMConfig), ("char_cnn", CharCNNConfig)):
            if isinstance(settings.get(name), Mapping):
                settings[name] = _select_fields(kind, settings[name])
        return validate(cls, _select_fields(cls, settings))

    def to_options(self) -> dict[str, Any]:
        """RETURNS (dict): The contents of an `options.json` for inference (262 characters)."""
        options: dict[str, Any] = {"lstm": dict(vars(self.lstm))}
        if (char_cnn := self.char_cnn) is None or char_cnn.word_dim:
            options["n_tokens_vocab"] = self.n_tokens_vocab
        if char_cnn is not None:
            options["char_cnn"] = {**vars(char_cnn), "n_characters": N_CHARACTERS}
            options["char_cnn"]["filters"] = [list(pair) for pair in char_cnn.filters]
            options["char_cnn"]["embedding"] = {"dim": options["char_cnn"].pop("embedding_dim")}
            if char_cnn.characters is not None:
                options["char_cnn"]["characters"] = list(char_cnn.characters)
        # What is not in published files is left out where it is not needed.
        unused = {"projection": None, "characters": None, "word_dim": 0}
        for section in (options["lstm"], options.get("char_cnn", {})):
            for name in [x for x in unused if section.get(x, ...) == unused[x]]:
                del section[name]
        return options


def settings_from_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """RETURNS (dict): The contents of an `options.json` under the names that `validate` reads, and
    with bilm-tf's defaults."""
    settings = dict(options)
    if isinstance(lstm := options.get("lstm"), Mapping):
        settings["lstm"] = {
            "n_layers": 1, "cell_clip": None, "proj_clip": None, "use_skip_connections": False,
            **({"projection_dim": lstm["dim"]} if "dim" in lstm else {}),
            **lstm,
        }  # fmt: skip
    if isinstance(char_cnn := options.get("char_cnn"), Mapping):
        # A file has 261 characters, or 262 with the masking row, as the network always has.
        embedding, unread = char_cnn.get("embedding"), ("embedding", "n_characters")
        embedding = {"dim": MISSING, **(embedding if isinstance(embedding, Mapping) else {})}
        settings["char_cnn"] = {
            **{name: value for name, value in char_cnn.items() if name not in unread},
            **{f"embedding.{name}": value for name, value in embedding.items()},
        }
        if not char_cnn.get("word_dim"):  # The words that bilm-tf's training predicts.
            settings["n_tokens_vocab"] = None
    return settings


def _select_fields(kind: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: settings[name] for name in setting_names(kind) if name in settings}
