"""AllenNLP's `model.tar.gz`: a task's model with ELMo inside and its trained mixes (section D).

An architecture is a dict of `char_dim`, `filters`, `n_highway`, `projection_dim`, `dim`,
`n_layers`, `prefix` (what comes before the names of ELMo's tensors), `mixes` (their number),
and the settings that no tensor tells: `activation`, `cell_clip`, `proj_clip`,
`max_characters_per_token`. `checkpoint` has the same biLM as `bilm_tf` describes it. Weights have
the names that follow the prefix, and `scalar_mix_{j}.…` for the mixes.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy
from numpy import ndarray

from . import bilm_tf, manylangs, network, one_layer_hdf5, texts
from .network import Architecture, Weights, pick, uniform
from .torch_files import state_dict_bytes

PREFIXES = (
    "text_field_embedder.token_embedder_elmo._elmo._elmo_lstm.",
    "_elmo._elmo_lstm.",
)
OPTIONS = "fta/model.text_field_embedder.token_embedders.elmo.options_file"


def random_architecture(rng: numpy.random.Generator) -> Architecture:
    """Any sizes and settings."""
    filters = network.random_filters(rng, 7)
    # There is always a projection.
    p = int(rng.integers(2, 9))
    p += p == sum(outputs for _, outputs in filters)
    return {
        "char_dim": int(rng.integers(1, 6)),
        "filters": filters,
        "projection_dim": p,
        "dim": p + int(rng.integers(1, 9)),
        "n_layers": int(rng.integers(1, 4)),
        "prefix": pick(rng, *PREFIXES),
        "mixes": int(rng.integers(1, 4)),
        "n_highway": pick(rng, 0, 1, 2, 3),
        "use_skip_connections": True,
        "words": ["<S>", "</S>", "<UNK>"],
        "share_embedding_softmax": False,
        "activation": pick(rng, "relu", "tanh"),
        "cell_clip": pick(rng, 3, 0.2, None),
        "proj_clip": pick(rng, 3, 0.3, None),
        "max_characters_per_token": 50,
    }


def random_weights(architecture: Architecture, rng: numpy.random.Generator) -> Weights:
    """The biLM's tensors and the mixes."""
    architecture["checkpoint"] = bilm_tf.random_weights(architecture, rng)
    return from_checkpoint(architecture) | random_mixes(architecture, rng)


def random_mixes(architecture: Architecture, rng: numpy.random.Generator) -> Weights:
    weights: Weights = {}
    for j in range(architecture["mixes"]):
        weights[f"scalar_mix_{j}.gamma"] = rng.uniform(0.2, 2, 1).astype(numpy.float32)
        for k in range(architecture["n_layers"] + 1):
            weights[f"scalar_mix_{j}.scalar_parameters.{k}"] = uniform(rng, (1,), 1)
    return weights


def random_sentences(architecture: Architecture, rng: numpy.random.Generator) -> list[list[str]]:
    special = ("<S>", "</S>", "<UNK>", "<s>")
    return texts.random_sentences(rng, architecture["max_characters_per_token"] - 2, special)


def from_published(
    folder: Path, name: str, rng: numpy.random.Generator
) -> tuple[Architecture, Weights]:
    """A task's model with two trained mixes around published weights in the HDF5 layout."""
    architecture, datasets = one_layer_hdf5.read_published(folder, name)
    architecture |= {"prefix": PREFIXES[0], "mixes": 2}
    architecture["checkpoint"] = one_layer_hdf5.to_checkpoint(architecture, datasets)
    return architecture, from_checkpoint(architecture) | random_mixes(architecture, rng)


# Writing


def state_dict(architecture: Architecture, weights: Weights) -> Weights:
    """The whole state dict, a tagger's tensors around ELMo's."""
    prefix = architecture["prefix"]
    outer = prefix.removesuffix("_elmo_lstm.")
    width = 2 * architecture["projection_dim"]
    state = {"encoder._module.weight_ih_l0": numpy.full((8, width), 0.5, dtype="float32")}
    for name, array in weights.items():
        state[(outer if name.startswith("scalar_mix_") else prefix) + name] = array
    state["tag_projection_layer._module.weight"] = numpy.full((3, 2), 0.25, dtype="float32")
    return state


def options(architecture: Architecture) -> dict:
    """options.json of the biLM inside."""
    settings = bilm_tf.options(architecture, 262)
    return {key: settings[key] for key in ("lstm", "char_cnn")}


def files(
    architecture: Architecture,
    weights: Weights,
    *,
    legacy: bool = False,
    do_layer_norm: bool = False,
) -> dict[str, bytes]:
    """The files of an archive by their names.

    do_layer_norm (bool): What the config says of the mixes.
    """
    elmo = {"type": "elmo_token_embedder", "do_layer_norm": do_layer_norm}
    config = {"model": {"text_field_embedder": {"token_embedders": {"elmo": elmo}}}}
    return {
        "config.json": json.dumps(config, indent=4).encode(),
        "weights.th": state_dict_bytes(state_dict(architecture, weights), legacy=legacy),
        "vocabulary/labels.txt": b"N\nV\n",
        OPTIONS: json.dumps(options(architecture)).encode(),
    }


def write(path: Path, architecture: Architecture, weights: Weights, **settings: bool) -> Path:
    """An archive.

    settings: Those of `files`.
    RETURNS (Path): `path`.
    """
    path.write_bytes(tar_bytes(files(architecture, weights, **settings)))
    return path


def write_folder(
    path: Path, architecture: Architecture, weights: Weights, **settings: bool
) -> Path:
    """A serialisation folder: the weights are those of the best epoch."""
    for name, content in files(architecture, weights, **settings).items():
        name = name.replace("weights.th", "best.th")
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


def tar_bytes(
    members: dict[str, bytes], mode: str = "w:gz", first: tarfile.TarInfo | None = None
) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as archive:  # type: ignore[call-overload]
        if first is not None:
            archive.addfile(first)
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


# Reference


def from_checkpoint(architecture: Architecture) -> Weights:
    """AllenNLP's tensors of a biLM that `bilm_tf` describes, without mixes (section D.2)."""
    stem, checkpoint = "_token_embedder.", architecture["checkpoint"]
    p, d = architecture["projection_dim"], architecture["dim"]
    embeddings = checkpoint["lm/char_embed"]
    zeros = numpy.zeros_like(embeddings[:1])
    weights = {stem + "_char_embedding_weights": numpy.concatenate([zeros, embeddings])}
    for i in range(len(architecture["filters"])):
        kernel = checkpoint[f"lm/CNN/W_cnn_{i}"][0]
        weights[f"{stem}char_conv_{i}.weight"] = kernel.transpose(2, 1, 0)
        weights[f"{stem}char_conv_{i}.bias"] = checkpoint[f"lm/CNN/b_cnn_{i}"]
    for k in range(architecture["n_highway"]):
        high = {part: checkpoint[f"lm/CNN_high_{k}/{part}"] for part in HIGHWAY_PARTS}
        weights[f"{stem}_highways._layers.{k}.weight"] = numpy.concatenate(
            [high["W_transform"].T, -high["W_carry"].T]
        )
        weights[f"{stem}_highways._layers.{k}.bias"] = numpy.concatenate(
            [high["b_transform"], -high["b_carry"]]
        )
    weights[stem + "_projection.weight"] = checkpoint["lm/CNN_proj/W_proj"].T
    weights[stem + "_projection.bias"] = checkpoint["lm/CNN_proj/b_proj"]
    for number, direction in enumerate(manylangs.DIRECTIONS):
        for layer in range(architecture["n_layers"]):
            scope = bilm_tf.cell_scope(architecture, number, layer)
            stem = f"_elmo_lstm.{direction}_layer_{layer}."
            kernel = swap_blocks(checkpoint[scope + "kernel"].T, d)
            bias = swap_blocks(checkpoint[scope + "bias"], d)
            bias[d : 2 * d] += 1
            weights[stem + "input_linearity.weight"] = kernel[:, :p]
            weights[stem + "state_linearity.weight"] = kernel[:, p:]
            weights[stem + "state_linearity.bias"] = bias
            weights[stem + "state_projection.weight"] = checkpoint[scope + "projection/kernel"].T
    return weights


HIGHWAY_PARTS = ("W_transform", "b_transform", "W_carry", "b_carry")


def swap_blocks(rows: ndarray, d: int) -> ndarray:
    """The same with the second and third of four blocks of `d` rows exchanged."""
    blocks = [rows[i * d : (i + 1) * d] for i in range(4)]
    return numpy.concatenate([blocks[0], blocks[2], blocks[1], blocks[3]])


def reference(
    architecture: Architecture, weights: Weights, sentences: Sequence[Sequence[str]]
) -> list[ndarray]:
    """All layers of every sentence from zero states, shape (L + 1, tokens, 2P) each."""
    return bilm_tf.reference(architecture, architecture["checkpoint"], sentences)


def mix_weights(
    architecture: Architecture, weights: Weights, mix: int = 0
) -> tuple[ndarray, float]:
    """A trained mix: the layers' weights after the softmax, and gamma."""
    scores = numpy.array(
        [
            weights[f"scalar_mix_{mix}.scalar_parameters.{k}"][0]
            for k in range(architecture["n_layers"] + 1)
        ],
        dtype=numpy.float64,
    )
    exponentials = numpy.exp(scores - scores.max())
    return exponentials / exponentials.sum(), float(weights[f"scalar_mix_{mix}.gamma"][0])


def reference_mix(
    architecture: Architecture,
    weights: Weights,
    sentences: Sequence[Sequence[str]],
    mix: int = 0,
) -> list[ndarray]:
    """What the task saw of every sentence, without layer normalisation, shape (tokens, 2P)."""
    shares, gamma = mix_weights(architecture, weights, mix)
    layers = reference(architecture, weights, sentences)
    return [gamma * sum(share * x for share, x in zip(shares, y)) for y in layers]
