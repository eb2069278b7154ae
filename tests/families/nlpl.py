"""Archives of the NLPL repository: zips that hold a model of either family (section C).

An architecture is a dict of `contents` ("hdf5", "hdf5 and checkpoint", "checkpoint" or
"manylangs"), `model` (the architecture of that family), `vocabulary` ("vocab.txt",
"vocab.txt.gz" or None), `n_characters` (261 or 262) and `lemmatized`. Weights are those of the
family: with a checkpoint, its output layer is among them.
"""

from __future__ import annotations

import gzip
import io
import json
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy
from numpy import ndarray

from . import bilm_tf, manylangs, one_layer_hdf5
from .network import Architecture, Weights, pick

README = (
    "This is a model of the NLPL word vector repository.\n"
    "Permanent address: http://vectors.nlpl.eu/repository/20/{id}.zip\n"
)


def random_architecture(rng: numpy.random.Generator) -> Architecture:
    contents = pick(rng, "hdf5", "hdf5 and checkpoint", "checkpoint", "manylangs")
    if contents == "manylangs":
        model = manylangs.random_architecture(rng)
    else:
        model = bilm_tf.random_architecture(rng, characters=True)
    return {
        "contents": contents,
        "model": model,
        "vocabulary": pick(rng, "vocab.txt", "vocab.txt.gz", None),
        "n_characters": pick(rng, 261, 262),
        "lemmatized": bool(rng.random() < 0.3),
    }


def random_weights(architecture: Architecture, rng: numpy.random.Generator) -> Weights:
    return family(architecture).random_weights(architecture["model"], rng)


def random_sentences(architecture: Architecture, rng: numpy.random.Generator) -> list[list[str]]:
    return family(architecture).random_sentences(architecture["model"], rng)


def family(architecture: Architecture):  # type: ignore[no-untyped-def]
    """The module whose names the weights have."""
    return manylangs if architecture["contents"] == "manylangs" else bilm_tf


def metadata(architecture: Architecture) -> dict:
    """meta.json: a Norwegian model, of lemmas or not."""
    manylangs_inside = architecture["contents"] == "manylangs"
    algorithm = {
        "id": 10,
        "name": "Embeddings from Language Models (ELMo)",
        "tool": "ELMoForManyLangs" if manylangs_inside else "bilm-tf",
        "url": "https://github.com/HIT-SCIR/ELMoForManyLangs"
        if manylangs_inside
        else "https://github.com/ltgoslo/simple_elmo_training",
        "version": None,
        "command": None,
    }
    corpus = {
        "id": 72, "description": "Norwegian Wikipedia", "language": "nob",
        "lemmatized": architecture["lemmatized"], "case preserved": True, "tokens": 101_000_000,
        "tagger": "UDPipe", "tagset": None, "stop words removal": None, "NER": False,
        "public": True, "tool": None, "url": "https://dumps.wikimedia.org",
    }  # fmt: skip
    return {
        "algorithm": algorithm,
        "contents": [{"filename": name, "format": "text"} for name in ("README", "meta.json")],
        "corpus": [corpus],
        "creators": [{"name": "Some One", "email": "someone@example.org"}],
        "dimensions": 2 * architecture["model"]["projection_dim"],
        "documentation": None,
        "handle": "http://vectors.nlpl.eu/repository/20/211.zip",
        "id": 211,
        "iterations": 3,
        "vocabulary size": len(architecture["model"]["words"]),
        "window": None,
    }


def files(architecture: Architecture, weights: Weights) -> dict[str, bytes]:
    """The files of an archive by their names."""
    model, contents = architecture["model"], architecture["contents"]
    meta = json.dumps(metadata(architecture), indent=4).encode()
    members = {"README": README.format(id=211).encode(), "meta.json": meta}
    if contents == "manylangs":
        return members | manylangs.files(model, weights)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "hdf5" in contents:
            tensors = one_layer_hdf5.from_checkpoint(model, weights)
            one_layer_hdf5.write_hdf5(folder / "model.hdf5", tensors)
        if "checkpoint" in contents:
            only = contents == "checkpoint"
            bilm_tf.write(
                folder,
                model,
                weights,
                prefix="model.ckpt",
                checkpoint=None if only else "absolute",
                vocabulary=False,
            )
        settings = bilm_tf.options(model, architecture["n_characters"])
        (folder / "options.json").write_text(json.dumps(settings))
        members |= {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    text = bilm_tf.vocabulary_text(model).encode()
    if architecture["vocabulary"] is not None:
        packed = architecture["vocabulary"].endswith(".gz")
        members[architecture["vocabulary"]] = gzip.compress(text) if packed else text
    return members


def write(path: Path, architecture: Architecture, weights: Weights, *, form: str = "zip") -> Path:
    """An archive, or what one unpacks from it.

    form (str): "zip" or "folder".
    RETURNS (Path): `path`.
    """
    members = files(architecture, weights)
    if form == "zip":
        path.write_bytes(zip_bytes(members))
        return path
    path.mkdir(parents=True, exist_ok=True)
    for name, content in members.items():
        (path / name).write_bytes(content)
    return path


def zip_bytes(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def reference(
    architecture: Architecture,
    weights: Weights,
    sentences: Sequence[Sequence[str]],
    dtype: type = numpy.float64,
) -> list[ndarray]:
    """All layers of every sentence from zero states, shape (L + 1, tokens, 2P) each."""
    return family(architecture).reference(architecture["model"], weights, sentences, dtype)
