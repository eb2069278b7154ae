"""Recognise files of other programs that are not read, to say what to do. Nothing is unpacked."""

from __future__ import annotations

import gzip
import re
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Optional

_TF_CHECKPOINT_NAME = re.compile(r".*\.(index|meta|data-\d{5}-of-\d{5})", re.DOTALL)

# "PATH is ..."
_PICKLE = (
    "a pickle (a PyTorch checkpoint?), which may execute code when read: refused. Convert it to "
    "safetensors where you trust it"
)
_MANY_LANGS = (
    "a model of ELMoForManyLangs, which is not read yet: take weights in the format of AllenNLP or "
    "bilm-tf (options.json and HDF5), or train some"
)
_TF_CHECKPOINT = (
    "a TensorFlow checkpoint, which is not read yet: convert it to HDF5 with bilm-tf's "
    "bin/dump_weights.py, and use that with its options.json"
)
_SAVED_MODEL = (
    "a TensorFlow SavedModel, which is not read. That of TF Hub (google/elmo) has the weights of "
    "AllenNLP's original model: take its options.json and HDF5"
)
_ALLENNLP = (
    "an AllenNLP model archive, which is not read yet: take the files that its config.json names "
    "as options_file and weight_file"
)


def describe_foreign(path: Path) -> Optional[str]:
    """RETURNS (Optional[str]): What the file or folder is, and what to do about it; None if it is
    not recognised."""
    if path.is_dir():
        files = (*path.iterdir(), *path.glob("*.model/*.pkl"))
        return _describe_names({file.name for file in files})
    with path.open("rb") as file:
        start = file.read(512)
    if start.startswith(b"\x80"):
        return _PICKLE
    if start.startswith(b"PK\x03\x04"):
        return _describe_zip(path)
    if start.startswith(b"\xba\x16\x4f\x2f"):
        return "a fastText model, which holds word vectors without context, and no biLM"
    if start.startswith(b"model_checkpoint"):
        return _TF_CHECKPOINT
    is_gzip = start.startswith(b"\x1f\x8b")
    if is_gzip:
        try:
            with gzip.open(path) as unpacked:
                start = unpacked.read(512)
        except (OSError, EOFError, zlib.error):
            start = b""
    if start[257:262] == b"ustar":
        # A tar archive starts with the name of its first file. AllenNLP writes the config first.
        if start.startswith((b"config.json\0", b"./config.json\0")):
            return _ALLENNLP
        return "a tar archive: unpack it, and give the options and the weights that are in it"
    return "compressed with gzip: unpack it" if is_gzip else _describe_names({path.name})


def _describe_zip(path: Path) -> str:
    try:
        with zipfile.ZipFile(path) as file:
            names = {Path(name).name for name in file.namelist()}
    except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError):  # All of zipfile.
        return "a damaged zip archive: not read"
    if "data.pkl" in names:
        return _PICKLE
    if any(name.endswith((".hdf5", ".h5", ".safetensors")) for name in names):
        return (
            "a zip archive of weights (from the NLPL repository?): unpack it, and give the folder"
        )
    other = _describe_names(names)
    return "a zip archive without weights" if other is None else f"a zip archive of {other}"


def _describe_names(names: Collection[str]) -> Optional[str]:
    """RETURNS (Optional[str]): What files of these names are, in one folder or archive."""
    if {"encoder.pkl", "token_embedder.pkl"} <= set(names):
        return _MANY_LANGS
    if "saved_model.pb" in names:
        return _SAVED_MODEL
    if "config.json" in names and ("weights.th" in names or "best.th" in names):
        return _ALLENNLP
    if any(map(_TF_CHECKPOINT_NAME.fullmatch, names)):
        return _TF_CHECKPOINT
    return None
