"""Models of ELMoForManyLangs (Che et al. 2018): a folder, or a folder in it named `*.model`.

| file               | what it has                                                       |
|--------------------|-------------------------------------------------------------------|
| config.json        | arguments of the training; `config_path` names the architecture   |
| the architecture   | JSON; often missing: that of the published models is built in     |
| char.dic, word.dic | per line an entry, a tab and the row of its embedding             |
| token_embedder.pkl | the state dict of `ConvTokenEmbedder`                             |
| encoder.pkl        | the state dict of `ElmobiLm`: see `allennlp_modules`                       |

Begin and end of a word are swapped there (`elmoformanylangs/elmo.py`): the entry `<eow>` comes
first. The reader gives each its right name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import MISSING
from os.path import isfile
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from ..bilm.config import DICTIONARY_SPECIALS, BiLMConfig
from ..bilm.model import BiLM
from ..bilm.token_encoder import UNKNOWN
from .allennlp_modules import highway_parameters, highway_shapes, lstm_parameters, lstm_shapes
from .options import read_json
from .parameters import check_tensors, empty_model, to_float32
from .pickles import read_tensors

NAME = "manylangs"
DESCRIPTION = "a model of ELMoForManyLangs"
SUFFIXES = ()

_CONFIG, _ENCODER, _EMBEDDER = "config.json", "encoder.pkl", "token_embedder.pkl"
_CHARACTERS, _WORDS = "char.dic", "word.dic"
_WORD_TABLE, _CHARACTER_TABLE = "word_emb_layer.embedding.weight", "char_emb_layer.embedding.weight"
# An entry of white space is stripped when a line is read: the original puts this in its place.
_WHITESPACE = "\u3000"
_SWAPPED = {"<bow>": "<eow>", "<eow>": "<bow>"}
# Names of settings in messages, and those of the architecture's file.
_SETTINGS = {
    "char_cnn.embedding.dim": "token_embedder.char_dim",
    "char_cnn.": "token_embedder.",
    "lstm.": "encoder.",
}

# The architecture of all published models; both names stand for the same.
_PUBLISHED_NAMES = ("cnn_50_100_512_4096_sample.json", "cnn_0_100_512_4096_sample.json")
_PUBLISHED = {
    "encoder": {
        "name": "elmo", "dim": 4096, "projection_dim": 512, "n_layers": 2,
        "cell_clip": 3, "proj_clip": 3,
    },
    "token_embedder": {
        "name": "cnn", "activation": "relu", "n_highway": 2, "word_dim": 100, "char_dim": 50,
        "max_characters_per_token": 50,
        "filters": [[1, 32], [2, 32], [3, 64], [4, 128], [5, 256], [6, 512], [7, 1024]],
    },
}  # fmt: skip


class _Dictionary(NamedTuple):
    """A dictionary file.

    entries (list[str]): In the order of their rows.
    rows (list[int]): The row of each. Rows of entries that come again are left out.
    n_lines (int): Lines of the file.
    """

    entries: list[str]
    rows: list[int]
    n_lines: int


def detect(path: Path, start: bytes) -> bool:
    """RETURNS (bool): Whether this is a folder of a model."""
    return path.is_dir() and bool(_model_folders(path))


def missing_files(folder: Path) -> list[str]:
    """RETURNS (list): What a folder that has a part of a model lacks; empty if it has none."""
    needed = {_CONFIG, _CHARACTERS, _ENCODER, _EMBEDDER}
    there = {name for name in needed if (folder / name).is_file()}
    if there == {_CONFIG}:  # Many programs have a file of this name.
        there = there if b'"config_path"' in (folder / _CONFIG).read_bytes() else set()
    return sorted(needed - there) if there else []


def read(path: Path, options: Optional[Path] = None) -> BiLM:
    """Read a folder.

    options (Optional[Path]): The architecture. By default it is where config.json says.
    RAISES (ValueError): If a file is missing, damaged or contradicts another.
    """
    folder, *others = _model_folders(path)
    if others:
        names = ", ".join(one.name for one in (folder, *others))
        raise ValueError(f"{path} holds several models ({names}): give one of these folders")
    characters = _read_dictionary(folder / _CHARACTERS, DICTIONARY_SPECIALS)
    characters = characters._replace(entries=[_SWAPPED.get(x, x) for x in characters.entries])
    architecture, source = _read_architecture(folder, options)
    words = None
    if _has_words(architecture):
        words = _read_dictionary(folder / _WORDS, (UNKNOWN,))
    try:
        config = _make_config(architecture, characters, words)
    except ValueError as error:
        message = str(error)
        for ours, theirs in _SETTINGS.items():
            message = message.replace(ours, theirs)
        raise ValueError(f"{source}: {message}") from error
    model = empty_model(config, words and words.entries, folder)
    shapes = _embedder_shapes(config, folder, characters, words)
    try:
        # One file after the other: each is in memory twice while it is converted.
        lstm = config.lstm
        values = lstm_parameters(lstm, _read_state(folder / _ENCODER, lstm_shapes(lstm)))
        tensors = _read_state(folder / _EMBEDDER, shapes)
        values.update(_embedder_parameters(config, tensors, characters, words))
    except ValueError as error:
        if architecture is not _PUBLISHED:
            raise
        raise ValueError(f"{error}. The options are {source}") from error
    model.load_state_dict(values, assign=True)
    return model


def _model_folders(path: Path) -> list[Path]:
    """RETURNS (list): The folder if it is of a model, else those of models in it."""

    def is_model(folder: Path) -> bool:
        return all((folder / name).is_file() for name in (_ENCODER, _EMBEDDER))

    return [path] if is_model(path) else [x for x in sorted(path.glob("*.model")) if is_model(x)]


def _read_architecture(folder: Path, options: Optional[Path]) -> tuple[Any, str]:
    """RETURNS (tuple): The contents of the architecture's file, and what to call it in messages."""
    if options is None:
        config = read_json(folder / _CONFIG)
        named = config.get("config_path") if isinstance(config, Mapping) else None
        if not isinstance(named, str):
            raise ValueError(f"{folder / _CONFIG}: config_path must be text, found {named!r:.80}")
        # Often a path of the machine of the training. No file outside of the folder is read.
        inside, name = PurePosixPath(named), PureWindowsPath(named).name
        is_inside = not inside.is_absolute() and ".." not in inside.parts
        candidates = [named, name] if is_inside else [name]
        # This function returns False for impossible names, too.
        files = [x for x in candidates if isfile(folder / x)]
        if files:
            options = folder / files[0]
        elif name in _PUBLISHED_NAMES:
            return _PUBLISHED, f"the published architecture, as {folder} lacks {name}"
        else:
            raise ValueError(
                f"{folder} lacks its architecture, {name or named!r:.80}: copy the JSON file with "
                f"the sections encoder and token_embedder there, or give it as the options"
            )
    return read_json(options), str(options)


def _has_words(architecture: Any) -> bool:
    section = architecture.get("token_embedder") if isinstance(architecture, Mapping) else None
    return isinstance(section, Mapping) and bool(section.get("word_dim"))


def _make_config(
    architecture: Any, characters: _Dictionary, words: Optional[_Dictionary]
) -> BiLMConfig:
    """RAISES (ValueError): If a setting is missing, wrong, or of a network that is not an ELMo."""
    sections = []
    for section, name in (("encoder", "elmo"), ("token_embedder", "cnn")):
        settings = architecture.get(section) if isinstance(architecture, Mapping) else None
        if not isinstance(settings, Mapping):
            raise ValueError(f"no section {section!r}: is it an architecture of ELMoForManyLangs?")
        if settings.get("name") != name:
            raise ValueError(
                f"{section}.name is {settings.get('name')!r:.80}, but only {name!r} is read"
            )
        sections.append(settings)
    encoder, embedder = sections
    if embedder.get("char_dim") == 0:
        raise ValueError("token_embedder.char_dim is 0, but only models with characters are read")

    def select(section: Mapping, *names: str) -> dict[str, Any]:
        return {name: section.get(name, MISSING) for name in names}

    lstm = select(encoder, "dim", "projection_dim", "n_layers", "cell_clip", "proj_clip")
    char_cnn = select(
        embedder, "activation", "filters", "n_highway", "max_characters_per_token", "word_dim"
    )
    char_cnn["embedding"] = {"dim": embedder.get("char_dim", MISSING)}
    return BiLMConfig.from_options(
        {
            "lstm": {**lstm, "use_skip_connections": True, "projection": True},
            "char_cnn": {**char_cnn, "projection": True, "characters": characters.entries},
            "n_tokens_vocab": words and len(words.entries),
        }
    )


def _read_dictionary(path: Path, specials: Collection[str]) -> _Dictionary:
    """Read a dictionary file, as the original does: an entry that comes again has its last row.

    specials (Collection[str]): Entries that must be there.
    RAISES (ValueError): If the file is missing, is not UTF-8, has a line of another kind, or lacks
        an entry.
    """
    if not path.is_file():
        raise ValueError(f"a model of ELMoForManyLangs needs {path.name}: no such file: {path}")
    try:
        # Not splitlines(): it splits at entries of some scripts.
        lines = path.read_bytes().decode("utf8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error}") from error
    rows: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        fields = line.strip().split("\t")
        entry, row = [_WHITESPACE, *fields] if len(fields) == 1 else [*fields, ""][:2]
        if len(fields) > 2 or not (row.isascii() and row.isdecimal() and len(row) < 10):
            raise ValueError(
                f"{path}, line {number}: expected an entry, a tab and a number, found {line!r:.80}"
            )
        rows[entry] = int(row)
    if absent := [entry for entry in specials if entry not in rows]:
        raise ValueError(f"{path} lacks the entries {', '.join(absent)}")
    entries = sorted(rows, key=rows.__getitem__)
    return _Dictionary(entries, [rows[entry] for entry in entries], len(lines))


def _embedder_shapes(
    config: BiLMConfig, folder: Path, characters: _Dictionary, words: Optional[_Dictionary]
) -> dict[str, tuple[int, ...]]:
    """RETURNS (dict): The shapes of the tensors in token_embedder.pkl.
    RAISES (ValueError): If a dictionary has rows beyond its table."""
    char_cnn = config.char_cnn
    assert char_cnn is not None
    shapes: dict[str, tuple[int, ...]] = {}
    for name, file, dictionary, dim in (
        (_WORD_TABLE, _WORDS, words, char_cnn.word_dim),
        (_CHARACTER_TABLE, _CHARACTERS, characters, char_cnn.embedding_dim),
    ):
        if dictionary is not None:
            if dictionary.rows[-1] >= dictionary.n_lines:
                raise ValueError(
                    f"{folder / file} has {dictionary.n_lines} lines, but the entry "
                    f"{dictionary.entries[-1]!r:.80} has the row {dictionary.rows[-1]}"
                )
            shapes[name] = dictionary.n_lines, dim
    for i, (width, number) in enumerate(char_cnn.filters):
        shapes[f"convolutions.{i}.weight"] = number, char_cnn.embedding_dim, width
        shapes[f"convolutions.{i}.bias"] = (number,)
    shapes.update(highway_shapes(char_cnn.n_filters, char_cnn.n_highway, "highways."))
    p = config.projection_dim
    shapes["projection.weight"] = p, char_cnn.word_dim + char_cnn.n_filters
    shapes["projection.bias"] = (p,)
    return shapes


def _embedder_parameters(
    config: BiLMConfig,
    tensors: Mapping[str, Tensor],
    characters: _Dictionary,
    words: Optional[_Dictionary],
) -> dict[str, Tensor]:
    """RETURNS (dict): The parameters of a `CharCNN` by name."""
    assert config.char_cnn is not None
    values = {
        f"token_encoder.{name}": tensor.clone()  # Tensors of a pickle may share memory.
        for name, tensor in tensors.items()
        if name.startswith(("convolutions.", "projection."))
    }
    values.update(highway_parameters(config.char_cnn.n_highway, tensors, "highways."))
    rows = torch.tensor(characters.rows)
    values["token_encoder.char_embedding.weight"] = tensors[_CHARACTER_TABLE][rows]
    if words is not None:
        rows = torch.tensor(words.rows)
        values["token_encoder.word_embedding.weight"] = tensors[_WORD_TABLE][rows]
    return values


def _read_state(path: Path, expected: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """RETURNS (dict): The tensors of a pickle, float32.
    RAISES (ValueError): If a name, a shape, a type or a value is another one."""
    tensors = read_tensors(path)
    for table, file in ((_WORD_TABLE, _WORDS), (_CHARACTER_TABLE, _CHARACTERS)):
        if table in expected and table in tensors and tensors[table].dim() == 2:
            n_lines, n_rows = expected[table][0], len(tensors[table])
            if n_lines != n_rows:
                raise ValueError(
                    f"{path.with_name(file)} has {n_lines} lines, but {path.name} has {n_rows} "
                    f"embeddings ({table}): they are of different models, or the download is "
                    "damaged"
                )
    stored = {x: (t.shape, str(t.dtype).removeprefix("torch.")) for x, t in tensors.items()}
    check_tensors(path, expected, stored)
    return {name: to_float32(path, name, tensor) for name, tensor in tensors.items()}
