"""Recognise files of other programs that are not read, to say what to do. Nothing is unpacked."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Optional

# "PATH is ..."
_PICKLE = (
    "a pickle (a PyTorch checkpoint?), which may execute code when read: refused. Convert it to "
    "safetensors where you trust it; of ELMoForManyLangs and AllenNLP, give the whole folder"
)
_SAVED_MODEL = (
    "a TensorFlow SavedModel, which is not read. That of TF Hub (google/elmo) has the weights of "
    "AllenNLP's original model: take its options.json and HDF5"
)
_TRANSFORMERS = (
    "a model of Hugging Face's transformers, and no ELMo: use it with spacy-transformers or "
    "spacy-curated-transformers"
)
_FLAIR = "a language model of flair, whose LSTMs read characters: use it with flair"
_PIPELINE = "a packed pipeline of spaCy: install it with pip, or unpack it and give its folder"
_WORD_VECTORS = (
    "a file of word vectors without context (word2vec, GloVe, fastText), and no biLM: use it with "
    "`spacy init vectors`"
)
_VECTOR_FILE = re.compile(r"(glove\..*\.txt|.*\.vec|GoogleNews-vectors.*\.bin)(\.gz)?", re.DOTALL)
_VECTOR_START = re.compile(rb"(\d+ \d+\s*\n)|(\S+( -?\d+\.\d+(e-?\d+)?){8})")


def describe_foreign(path: Path) -> Optional[str]:
    """RETURNS (Optional[str]): What the file or folder is, and what to do about it; None if it is
    not recognised."""
    if path.is_dir():
        return _describe_names({file.name for file in path.iterdir()})
    with path.open("rb") as file:
        start = file.read(4096)
    if start.startswith((b"\x80", b"PK\x03\x04")) and b"is_forward_lm" in start:
        return _FLAIR
    if start.startswith(b"\x80") or (start.startswith(b"PK") and b"/data.pkl" in start[:512]):
        return _PICKLE
    if start.startswith(b"PK"):
        return "a zip archive"
    if start.startswith(b"\xba\x16\x4f\x2f") or _VECTOR_START.match(start):
        return _WORD_VECTORS
    if start[257:262] == b"ustar":
        return "a tar archive"
    if start.startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ")):
        return "compressed: unpack it"
    return _describe_names({path.name})


def _describe_names(names: Collection[str]) -> Optional[str]:
    """RETURNS (Optional[str]): What files of these names are, in one folder or archive."""
    if {"saved_model.pb", "tfhub_module.pb"} & set(names):
        return _SAVED_MODEL
    if "config.json" in names and {"pytorch_model.bin", "model.safetensors", "tf_model.h5"} & {
        *names
    }:
        return _TRANSFORMERS
    if "config.cfg" in names:
        return _PIPELINE
    if any(map(_VECTOR_FILE.fullmatch, names)):
        return _WORD_VECTORS
    return None
