"""Telling what a file or a folder holds, by its first bytes and its names. Nothing is unpacked."""

from __future__ import annotations

import gzip
import re
import zipfile
import zlib
from pathlib import Path
from typing import Optional

_HDF5 = b"\x89HDF\r\n\x1a\n"
_ZIP = b"PK\x03\x04"
_GZIP = b"\x1f\x8b"
_PICKLE = b"\x80"
_FASTTEXT = b"\xba\x16\x4f\x2f"
_TF_CHECKPOINT_LIST = b"model_checkpoint"
_TF_CHECKPOINT_SUFFIX = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})")

# What other programs write: "X is ...".
_PICKLED = (
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
_FASTTEXT_MODEL = "a fastText model, which holds word vectors without context, and no biLM"


def detect(path: Path) -> str:
    """Tell a file's kind by its first bytes.

    RETURNS (str): "hdf5", "safetensors", "options" or "unknown".
    RAISES (ValueError): If it is empty, a pickle, or known to be something else that is not read.
    """
    with path.open("rb") as file:
        start = file.read(512)
    if not start:
        raise ValueError(f"{path} is empty")
    # The length of the header, then the header as JSON. Before pickles: a length may begin as they
    # do, with 0x80.
    if start[8:9] == b"{" and int.from_bytes(start[:8], "little") <= path.stat().st_size:
        return "safetensors"
    if start.startswith(_HDF5):
        return "hdf5"
    if start.lstrip().startswith(b"{"):
        return "options"
    if (other := _other_file(path, start)) is not None:
        raise ValueError(f"{path} is {other}")
    return "unknown"


def other_folder(folder: Path) -> Optional[str]:
    """RETURNS (Optional[str]): What a folder of another program is, and what to do about it."""
    if any(folder.glob("*.model/encoder.pkl")):
        return _MANY_LANGS
    return _of_names({path.name for path in folder.iterdir()})


def _other_file(path: Path, start: bytes) -> Optional[str]:
    if start.startswith(_PICKLE):
        return _PICKLED
    if start.startswith(_ZIP):
        return _zip(path)
    if start.startswith(_GZIP):
        try:
            with gzip.open(path) as file:
                start = file.read(512)
        except (OSError, EOFError, zlib.error):
            start = b""
        if not _is_tar(start):
            return "compressed with gzip: unpack it"
    if _is_tar(start):
        # The name of the first file in it, which is the config in every archive of AllenNLP.
        if start.startswith((b"config.json\0", b"./config.json\0")):
            return _ALLENNLP
        return "a tar archive: unpack it, and give the options and the weights that are in it"
    if start.startswith(_FASTTEXT):
        return _FASTTEXT_MODEL
    if path.name == "saved_model.pb":
        return _SAVED_MODEL
    if start.startswith(_TF_CHECKPOINT_LIST) or _TF_CHECKPOINT_SUFFIX.fullmatch(path.suffix):
        return _TF_CHECKPOINT
    return None


def _zip(path: Path) -> str:
    try:
        with zipfile.ZipFile(path) as file:
            names = {Path(name).name for name in file.namelist()}
    except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError):  # All of zipfile.
        return "a damaged zip archive: not read"
    if "data.pkl" in names:
        return _PICKLED
    if any(name.endswith((".hdf5", ".h5", ".safetensors")) for name in names):
        return (
            "a zip archive of weights (from the NLPL repository?): unpack it, and give the folder"
        )
    other = _of_names(names)
    return "a zip archive without weights" if other is None else f"a zip archive of {other}"


def _is_tar(start: bytes) -> bool:
    return start[257:262] == b"ustar"


def _of_names(names: set[str]) -> Optional[str]:
    """What files of these names are, side by side."""
    if {"encoder.pkl", "token_embedder.pkl"} <= names:
        return _MANY_LANGS
    if "saved_model.pb" in names:
        return _SAVED_MODEL
    if "config.json" in names and names & {"weights.th", "best.th"}:
        return _ALLENNLP
    if any(_TF_CHECKPOINT_SUFFIX.fullmatch(Path(name).suffix) for name in names):
        return _TF_CHECKPOINT
    return None
