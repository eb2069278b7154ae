"""Models of ELMoForManyLangs (Che et al. 2018): a folder, or a folder in it named `*.model`.

| file               | what it has                                                       |
|--------------------|-------------------------------------------------------------------|
| config.json        | arguments of the training; `config_path` names the architecture   |
| the architecture   | JSON; often missing: that of the published models is built in     |
| char.dic, word.dic | per line an entry, a tab and the row of its embedding             |
| token_embedder.pkl | the state dict of `ConvTokenEmbedder`                             |
| encoder.pkl        | the state dict of `ElmobiLm`: see `allennlp_modules`              |

Begin and end of a word are swapped there (`elmoformanylangs/elmo.py`): the entry `<eow>` comes
first. The reader gives each its right name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import MISSING
from functools import partial
from os.path import isfile
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple, Optional

import torch

from ..bilm.config import DICTIONARY_SPECIALS, BiLMConfig
from ..bilm.model import BiLM
from ..bilm.token_encoder import UNKNOWN
from .allennlp_modules import read_state, state_map
from .options import read_json
from .parameters import empty_model
from .pickles import read_tensors

NAME = "manylangs"
DESCRIPTION = "a model of ELMoForManyLangs"
SUFFIXES = ()

_CONFIG, _ENCODER, _EMBEDDER = "config.json", "encoder.pkl", "token_embedder.pkl"
_CHARACTERS, _WORDS = "char.dic", "word.dic"
_TABLE, _CONVOLUTION = "{}_emb_layer.embedding.weight", "convolutions.{}"
# An entry of white space is stripped when a line is read: the original puts this in its place.
_WHITESPACE = "\u3000"
_SWAPPED = {"<bow>": "<eow>", "<eow>": "<bow>"}

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
    n_lines (int): Lines of the file: the rows of its table.
    """

    entries: list[str]
    rows: list[int]
    n_lines: int


def detect(path: Path, start: bytes) -> bool:
    """RETURNS (bool): Whether this is a folder of a model."""
    return path.is_dir() and bool(_model_folders(path))


def read(path: Path, options: Optional[Path] = None) -> BiLM:
    """Read a folder.

    options (Optional[Path]): The architecture. By default it is where config.json says.
    RAISES (ValueError): If a file is missing, damaged or contradicts another.
    """
    folder, *others = _model_folders(path)
    if others:
        names = ", ".join(one.name for one in (folder, *others))
        raise ValueError(f"{path} holds several models ({names}): give one of these folders")
    architecture, source = _read_architecture(folder, options)
    dictionaries = {"char": _read_dictionary(folder / _CHARACTERS, DICTIONARY_SPECIALS)}
    if _section(architecture, "token_embedder").get("word_dim"):
        dictionaries["word"] = _read_dictionary(folder / _WORDS, (UNKNOWN,))
    try:
        config = _make_config(architecture, dictionaries)
    except ValueError as error:
        raise ValueError(
            f"{source}: {error} (here, lstm is its encoder and char_cnn its token_embedder)"
        ) from error
    words = dictionaries["word"].entries if "word" in dictionaries else None
    model = empty_model(config, words, folder)
    layers, encoder = state_map(config, _CONVOLUTION)
    # One file after the other: each is in memory twice while it is converted.
    values = read_state(
        folder / _ENCODER, model, read_tensors(folder / _ENCODER), layers, options=source
    )
    shapes = {}
    for name, dictionary in dictionaries.items():
        parameter, table = f"token_encoder.{name}_embedding.weight", _TABLE.format(name)
        rows = torch.tensor(dictionary.rows)
        encoder[parameter] = [table], partial(torch.index_select, dim=0, index=rows)
        shapes[table] = dictionary.n_lines, model.get_parameter(parameter).shape[1]
    source = f"{source}; a row of a table for each line of {_CHARACTERS} and {_WORDS}"
    tensors = read_tensors(folder / _EMBEDDER)
    values |= read_state(folder / _EMBEDDER, model, tensors, encoder, shapes, source)
    model.load_state_dict(values, assign=True)
    return model


def _model_folders(path: Path) -> list[Path]:
    """RETURNS (list): The folder if it is of a model, or of a part of one, else those in it."""

    def is_model(folder: Path) -> bool:
        return any((folder / name).is_file() for name in (_ENCODER, _EMBEDDER))

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
        # This function returns False for impossible names, too.
        files = [x for x in (named if is_inside else name, name) if isfile(folder / x)]
        if not files and name in _PUBLISHED_NAMES:
            return _PUBLISHED, f"the published architecture, as {folder} lacks {name}"
        if not files:
            raise ValueError(
                f"{folder} lacks its architecture, {name or named!r:.80}: copy the JSON file with "
                f"the sections encoder and token_embedder there, or give it as the options"
            )
        options = folder / files[0]
    return read_json(options), str(options)


def _section(architecture: Any, name: str) -> Mapping[str, Any]:
    """RETURNS (Mapping): A section of an architecture; empty if it has none."""
    section = architecture.get(name) if isinstance(architecture, Mapping) else None
    return section if isinstance(section, Mapping) else {}


def _make_config(architecture: Any, dictionaries: Mapping[str, _Dictionary]) -> BiLMConfig:
    """RAISES (ValueError): If a setting is missing, wrong, or of a network that is not an ELMo."""
    encoder, embedder = (_section(architecture, name) for name in ("encoder", "token_embedder"))
    kinds = encoder.get("name"), embedder.get("name")
    if kinds != ("elmo", "cnn") or embedder.get("char_dim") == 0:
        raise ValueError(
            "only models with an encoder of the name 'elmo' and a token_embedder of the name 'cnn' "
            f"with characters are read, found {kinds!r:.80}, char_dim {embedder.get('char_dim')}"
        )

    def select(section: Mapping, *names: str) -> dict[str, Any]:
        return {name: section.get(name, MISSING) for name in names}

    lstm = select(encoder, "dim", "projection_dim", "n_layers", "cell_clip", "proj_clip")
    char_cnn = select(
        embedder, "activation", "filters", "n_highway", "max_characters_per_token", "word_dim"
    )
    char_cnn["embedding"] = {"dim": embedder.get("char_dim", MISSING)}
    char_cnn["characters"] = [_SWAPPED.get(x, x) for x in dictionaries["char"].entries]
    words = dictionaries.get("word")
    return BiLMConfig.from_options(
        {
            "lstm": {**lstm, "use_skip_connections": True, "projection": True},
            "char_cnn": {**char_cnn, "projection": True},
            "n_tokens_vocab": words and len(words.entries),
        }
    )


def _read_dictionary(path: Path, specials: Collection[str]) -> _Dictionary:
    """Read a dictionary file, as the original does: an entry that comes again has its last row.

    specials (Collection[str]): Entries that must be there.
    RAISES (ValueError): If the file is missing, is not UTF-8, has a line of another kind, or lacks
        an entry.
    """
    try:
        # Not splitlines(): it splits at entries of some scripts.
        lines = path.read_bytes().decode("utf8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path} cannot be read as UTF-8 text, and a model of ELMoForManyLangs needs it: "
            f"{error}"
        ) from error
    rows: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        fields = line.strip().split("\t")
        entry, row = [_WHITESPACE, *fields] if len(fields) == 1 else [*fields, ""][:2]
        is_row = row.isascii() and row.isdecimal() and len(row) < 10
        if len(fields) > 2 or not is_row or int(row) >= len(lines):
            raise ValueError(
                f"{path}, line {number}: expected an entry, a tab and a number below the number of "
                f"lines ({len(lines)}), found {line!r:.80}"
            )
        rows[entry] = int(row)
    if absent := [entry for entry in specials if entry not in rows]:
        raise ValueError(f"{path} lacks the entries {', '.join(absent)}")
    entries = sorted(rows, key=rows.__getitem__)
    return _Dictionary(entries, [rows[entry] for entry in entries], len(lines))
