"""Models of ELMoForManyLangs (Che et al. 2018): a folder, or a folder in it named `*.model`.

| file               | what it has                                                       |
|--------------------|-------------------------------------------------------------------|
| config.json        | arguments of the training; `config_path` names the architecture   |
| the architecture   | JSON; often missing: that of the published models is built in     |
| char.dic, word.dic | per line an entry, a tab and the row of its embedding             |
| token_embedder.pkl | the state dict of `ConvTokenEmbedder`                             |
| encoder.pkl        | the state dict of `ElmobiLm`: see `state_dicts`                   |

Begin and end of a word are swapped there (`elmoformanylangs/elmo.py`): the entry `<eow>` comes
first. The reader gives each its right name.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from os.path import isfile
from pathlib import Path, PureWindowsPath
from typing import Any, Optional

import torch

from ..bilm.config import BiLMConfig
from ..bilm.model import BiLM
from .options import read_options
from .parameters import empty_model, fill
from .state_dicts import read_state, read_tensors, state_map

NAME = "manylangs"
DESCRIPTION = "a model of ELMoForManyLangs"
SUFFIXES = ()

_CONFIG, _ENCODER, _EMBEDDER = "config.json", "encoder.pkl", "token_embedder.pkl"
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


def detect(path: Path, start: bytes) -> bool:
    """RETURNS (bool): Whether this is a folder of a model."""
    return path.is_dir() and bool(_model_folders(path))


def read(path: Path, options: Optional[Path] = None) -> BiLM:
    """Read a folder. The options are the architecture; by default, config.json names it."""
    folder, *others = _model_folders(path)
    if others:
        names = ", ".join(one.name for one in (folder, *others))
        raise ValueError(f"it holds several models ({names}): give one of these folders")
    architecture = _read_architecture(folder, options)
    dictionaries = {"char": _read_dictionary(folder / "char.dic")}
    if architecture["token_embedder"]["word_dim"]:
        dictionaries["word"] = _read_dictionary(folder / "word.dic")
    entries = {name: list(rows) for name, (rows, _) in dictionaries.items()}
    config = _make_config(architecture, entries)
    layers, encoder = state_map(config, _CONVOLUTION)
    # One file after the other: each is in memory twice while it is converted.
    values = read_state(read_tensors(folder / _ENCODER), layers)
    tensors = read_tensors(folder / _EMBEDDER)
    for name, (rows, n_lines) in dictionaries.items():
        table = _TABLE.format(name)
        if len(tensors[table]) != n_lines:
            raise ValueError(f"{table} has not the {n_lines:,} rows of {name}.dic")
        index = torch.tensor(list(rows.values()))
        select = partial(torch.index_select, dim=0, index=index)
        encoder[f"token_encoder.{name}_embedding.weight"] = [table], select
    values |= read_state(tensors, encoder)
    model = empty_model(config, entries.get("word"))
    fill(model, values)
    return model


def _model_folders(path: Path) -> list[Path]:
    """RETURNS (list): The folder if it is of a model, or of a part of one, else those in it."""

    def is_model(folder: Path) -> bool:
        return any((folder / name).is_file() for name in (_ENCODER, _EMBEDDER))

    return [path] if is_model(path) else [x for x in sorted(path.glob("*.model")) if is_model(x)]


def _read_architecture(folder: Path, options: Optional[Path]) -> Mapping[str, Any]:
    """RETURNS (Mapping): The contents of the architecture's file."""
    if options is None:
        # Often a path of the machine of the training. No file outside of the folder is read.
        named = str(read_options(folder / _CONFIG, dict)["config_path"])
        options = folder / PureWindowsPath(named).name
        # This function returns False for impossible names, too.
        if not isfile(options):
            if options.name in _PUBLISHED_NAMES:
                return _PUBLISHED
            raise ValueError(
                f"{folder} lacks its architecture, {named!r:.80}: copy the JSON file with the "
                "sections encoder and token_embedder there, or give it as the options"
            )
    return read_options(options, dict)


def _make_config(architecture: Mapping[str, Any], entries: Mapping[str, list[str]]) -> BiLMConfig:
    """RAISES (Exception): If a setting is missing, wrong, or of a network that is not an ELMo."""
    encoder, embedder = architecture["encoder"], architecture["token_embedder"]
    kinds = encoder["name"], embedder["name"]
    if kinds != ("elmo", "cnn") or embedder["char_dim"] == 0:
        raise ValueError(
            "only models with an encoder of the name 'elmo' and a token_embedder of the name 'cnn' "
            f"with characters are read, found {kinds!r:.80}, char_dim {embedder['char_dim']}"
        )
    names = ("dim", "projection_dim", "n_layers", "cell_clip", "proj_clip")
    lstm = {name: encoder[name] for name in names} | {"use_skip_connections": True}
    names = ("activation", "filters", "n_highway", "max_characters_per_token", "word_dim")
    char_cnn = {name: embedder[name] for name in names}
    char_cnn["embedding"] = {"dim": embedder["char_dim"]}
    char_cnn["characters"] = [_SWAPPED.get(x, x) for x in entries["char"]]
    lstm["projection"] = char_cnn["projection"] = True
    n_words = len(entries["word"]) if "word" in entries else None
    return BiLMConfig.from_options({"lstm": lstm, "char_cnn": char_cnn, "n_tokens_vocab": n_words})


def _read_dictionary(path: Path) -> tuple[dict[str, int], int]:
    """Read a dictionary file, as the original does: an entry that comes again has its last row.
    RETURNS (tuple): The row of each entry, sorted, and the number of lines (rows of the table)."""
    # Not splitlines(): it splits at entries of some scripts.
    lines = path.read_bytes().decode("utf8").removesuffix("\n").split("\n")
    rows: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        *entry, row = line.strip().split("\t")
        if len(entry) > 1 or not row.isdecimal() or int(row[:9]) >= len(lines):
            raise ValueError(
                f"{path}, line {number}: expected an entry, a tab and a number below the number of "
                f"lines ({len(lines)}), found {line!r:.80}"
            )
        rows[entry[0] if entry else _WHITESPACE] = int(row)
    return dict(sorted(rows.items(), key=lambda item: item[1])), len(lines)
