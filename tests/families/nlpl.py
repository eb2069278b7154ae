"""Archives of the NLPL repository: zips that hold a model of either family (section C).

An architecture is a dict of `contents` ("hdf5", "checkpoint" or "manylangs"), `model` (the
architecture of that family), `vocabulary` ("vocab.txt", "vocab.txt.gz" or None), and `lemmatized`.
Weights are those of the family.
"""

from __future__ import annotations

import gzip
import json
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy
from numpy import ndarray

from . import bilm_tf, manylangs, one_layer_hdf5
from .network import Architecture, Weights, pick

ADDRESS = "http://vectors.nlpl.eu/repository/20/211.zip"


def random_architecture(rng: numpy.random.Generator) -> Architecture:
    contents = pick(rng, "hdf5", "checkpoint", "manylangs")
    is_manylangs = contents == "manylangs"
    model = (
        manylangs.random_architecture(rng)
        if is_manylangs
        else bilm_tf.random_architecture(rng, characters=True)
    )
    vocabulary = pick(rng, "vocab.txt", "vocab.txt.gz", None)
    lemmatized = bool(rng.random() < 0.3)
    return {
        "contents": contents,
        "model": model,
        "vocabulary": vocabulary,
        "lemmatized": lemmatized,
    }


def family(architecture: Architecture):  # type: ignore[no-untyped-def]
    """The module whose names the weights have."""
    return manylangs if architecture["contents"] == "manylangs" else bilm_tf


def random_weights(architecture: Architecture, rng: numpy.random.Generator) -> Weights:
    return family(architecture).random_weights(architecture["model"], rng)


def random_sentences(architecture: Architecture, rng: numpy.random.Generator) -> list[list[str]]:
    return family(architecture).random_sentences(architecture["model"], rng)


def reference(
    architecture: Architecture, weights: Weights, sentences: Sequence[Sequence[str]]
) -> list[ndarray]:
    """All layers of every sentence from zero states, shape (L + 1, tokens, 2P) each."""
    return family(architecture).reference(architecture["model"], weights, sentences)


def files(architecture: Architecture, weights: Weights) -> dict[str, bytes]:
    """The files of an archive by their names: a Norwegian model, of lemmas or not."""
    model, contents = architecture["model"], architecture["contents"]
    corpus = {"description": "Norwegian Wikipedia", "language": "nob"}
    corpus |= {"lemmatized": architecture["lemmatized"], "case preserved": True}
    meta = {"corpus": [corpus], "creators": [{"name": "Some One"}], "handle": ADDRESS, "id": 211}
    members = {"README": b"A model of NLPL.\n", "meta.json": json.dumps(meta).encode()}
    if contents == "manylangs":
        return members | manylangs.files(model, weights)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if contents == "hdf5":
            tensors = one_layer_hdf5.from_checkpoint(model, weights)
            one_layer_hdf5.write_hdf5(folder / "model.hdf5", tensors)
        else:
            bilm_tf.write(
                folder, model, weights, prefix="model.ckpt", checkpoint=False, vocabulary=False
            )
        (folder / "options.json").write_text(json.dumps(bilm_tf.options(model)))
        members |= {path.name: path.read_bytes() for path in folder.iterdir()}
    if architecture["vocabulary"] is not None:
        text = bilm_tf.vocabulary_text(model).encode()
        packed = architecture["vocabulary"].endswith(".gz")
        members[architecture["vocabulary"]] = gzip.compress(text) if packed else text
    return members


def write(path: Path, architecture: Architecture, weights: Weights) -> Path:
    """RETURNS (Path): The archive."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files(architecture, weights).items():
            archive.writestr(name, content)
    return path
