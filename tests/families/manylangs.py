"""ELMoForManyLangs: folders, and the network that they hold (section A).

An architecture is a dict of `word_dim`, `char_dim`, `filters`, `n_highway`, `activation`,
`max_characters_per_token`, `projection_dim`, `dim`, `n_layers`, `cell_clip`, `proj_clip`, `words`
and `characters`. The last two are lists of `[entry, id]`, one for each line of the dictionary; they
are empty where the dimension is 0. Weights have the names of the two state dicts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
from numpy import ndarray

from . import network, texts
from .network import Architecture, Weights, pick, uniform
from .torch_files import state_dict_bytes

DIRECTIONS = ("forward", "backward")
SPECIAL_WORDS = ("<oov>", "<bos>", "<eos>", "<pad>")
SPECIAL_CHARACTERS = ("<bos>", "<eos>", "<oov>", "<pad>", "<bow>", "<eow>")
BASENAMES = ("cnn_50_100_512_4096_sample.json", "cnn_0_100_512_4096_sample.json")
# What both files of these names hold. Published folders often lack them.
PUBLISHED_SIZES: Architecture = {
    "word_dim": 100,
    "char_dim": 50,
    "filters": [[1, 32], [2, 32], [3, 64], [4, 128], [5, 256], [6, 512], [7, 1024]],
    "n_highway": 2,
    "activation": "relu",
    "max_characters_per_token": 50,
    "projection_dim": 512,
    "dim": 4096,
    "n_layers": 2,
    "cell_clip": 3,
    "proj_clip": 3,
}


def random_architecture(rng: numpy.random.Generator) -> Architecture:
    """Any sizes; four of five have a word table."""
    limit = int(pick(rng, 7, 8, 12, 20, 50))
    architecture = {
        "word_dim": int(pick(rng, 0, 1, 3, 4, 7)),
        "char_dim": int(rng.integers(1, 6)),
        "filters": network.random_filters(rng, min(limit, 7)),
        "n_highway": pick(rng, 0, 1, 2, 3),
        "activation": pick(rng, "relu", "relu", "tanh"),
        "max_characters_per_token": limit,
        "projection_dim": int(rng.integers(2, 9)),
        "dim": int(rng.integers(2, 13)),
        "n_layers": int(rng.integers(1, 4)),
        "cell_clip": pick(rng, 3, 0.5, 0.2, None),
        "proj_clip": pick(rng, 3, 0.6, 0.3, None),
    }
    dictionaries = random_dictionaries(rng, limit)
    return architecture | {
        "words": dictionaries["words"] if architecture["word_dim"] else [],
        "characters": dictionaries["characters"],
    }


def random_dictionaries(rng: numpy.random.Generator, limit: int) -> Architecture:
    """About half of the words and characters of `texts`, special entries at any place."""
    words = {word[: limit - 2] for word in texts.ORDINARY + texts.LONG if rng.random() < 0.5}
    words |= {"the", ("abcdefghij" * 10)[: limit - 2]}
    used = {character for word in texts.ORDINARY + texts.LONG for character in word}
    characters = {character for character in sorted(used) if rng.random() < 0.7}
    characters |= set("<bos>the")
    return {
        "words": number_entries(rng, SPECIAL_WORDS, words - set(SPECIAL_WORDS)),
        "characters": number_entries(rng, SPECIAL_CHARACTERS, characters),
    }


def number_entries(
    rng: numpy.random.Generator, special: Sequence[str], entries: set[str]
) -> list[list]:
    """Lines of a dictionary: its entries in any order and with any ids below their number.

    U+3000 always stands among them, half of the time after a no-break space, whose line reads the
    same; and one entry may have two lines. In both cases the later line wins.
    """
    # Entries that white space surrounds would be stripped.
    lines = [*special, *sorted(entry for entry in entries if entry == entry.strip()), "\u3000"]
    lines = [str(entry) for entry in rng.permutation(lines)]
    if rng.random() < 0.5:
        lines.insert(int(rng.integers(len(lines) + 1)), "\u00a0")
    if rng.random() < 0.5:
        lines.insert(int(rng.integers(len(lines) + 1)), lines[int(rng.integers(len(lines)))])
    ids = rng.permutation(len(lines)) if rng.random() < 0.7 else range(len(lines))
    return [[entry, int(i)] for entry, i in zip(lines, ids)]


def random_weights(architecture: Architecture, rng: numpy.random.Generator) -> Weights:
    """Both state dicts. No row of the character table is zero, that of `<pad>` included."""
    p, d = architecture["projection_dim"], architecture["dim"]
    word_dim, char_dim = architecture["word_dim"], architecture["char_dim"]
    weights: Weights = {}
    if word_dim > 0:
        shape = (len(architecture["words"]), word_dim)
        weights["word_emb_layer.embedding.weight"] = uniform(rng, shape, 1)
    features = 0
    if char_dim > 0:
        shape = (len(architecture["characters"]), char_dim)
        weights["char_emb_layer.embedding.weight"] = uniform(rng, shape, 1)
        features = network.total_filters(architecture)
        for i, (width, outputs) in enumerate(architecture["filters"]):
            stem = f"convolutions.{i}."
            weights[stem + "weight"] = uniform(rng, (outputs, char_dim, width), char_dim * width)
            weights[stem + "bias"] = uniform(rng, (outputs,), 10)
        for k in range(architecture["n_highway"]):
            stem = f"highways._layers.{k}."
            weights[stem + "weight"] = uniform(rng, (2 * features, features), features)
            weights[stem + "bias"] = uniform(rng, (2 * features,), 2)
    inputs = word_dim + features
    weights["projection.weight"] = uniform(rng, (p, inputs), inputs)
    weights["projection.bias"] = uniform(rng, (p,), 10)
    for direction in DIRECTIONS:
        for layer in range(architecture["n_layers"]):
            stem = f"{direction}_layer_{layer}."
            bias = uniform(rng, (4 * d,), 4)
            bias[d : 2 * d] += 1  # Where training began.
            weights[stem + "input_linearity.weight"] = uniform(rng, (4 * d, p), p, 1.5)
            weights[stem + "state_linearity.weight"] = uniform(rng, (4 * d, p), p, 0.8)
            weights[stem + "state_linearity.bias"] = bias
            weights[stem + "state_projection.weight"] = uniform(rng, (p, d), d, 1.3)
    return weights


def random_sentences(architecture: Architecture, rng: numpy.random.Generator) -> list[list[str]]:
    special = ("<bos>", "<eos>", "<bow>", "<pad>", "<S>", "\u3000", "New York", "\u00a0", "(")
    return texts.random_sentences(rng, architecture["max_characters_per_token"] - 2, special)


# Writing


def write(
    path: Path,
    architecture: Architecture,
    weights: Weights,
    *,
    form: str = "folder",
    **settings: Any,
) -> Path:
    """A model as its trainer and the publishers of its archives left it.

    form (str): "folder", or "nested folder" (of older downloads: the files lie in `xx.model/` below
        `path`).
    settings: Those of `files`.
    RETURNS (Path): The folder of the files.
    """
    folder = path / "xx.model" if form.startswith("nested") else path
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files(architecture, weights, **settings).items():
        (folder / name).write_bytes(content)
    return folder


def files(
    architecture: Architecture,
    weights: Weights,
    architecture_file: str = "basename",
    basename: str = BASENAMES[0],
    legacy: bool = True,
    cuda: bool = True,
) -> dict[str, bytes]:
    """The files of a model by their names.

    architecture_file (str): "basename": `config_path` is an absolute path that does not exist, the
        file of its name lies in the folder. "missing": it does not.
    basename (str): Name of the architecture file.
    legacy, cuda (bool): How the state dicts are saved: `torch_files.state_dict_bytes`.
    """
    encoder = {k: v for k, v in weights.items() if k.startswith(DIRECTIONS)}
    embedder = {k: v for k, v in weights.items() if not k.startswith(DIRECTIONS)}
    config = {"gpu": 0, "config_path": f"/users4/conll18st/elmo/configs/{basename}"}
    members = {"config.json": json.dumps(config).encode()}
    if architecture_file != "missing":
        members[basename] = json.dumps(options(architecture), indent=2).encode()
    members["char.dic"] = dictionary_text(architecture["characters"]).encode()
    if architecture["word_dim"] > 0:
        members["word.dic"] = dictionary_text(architecture["words"]).encode()
    members["token_embedder.pkl"] = state_dict_bytes(embedder, legacy=legacy, cuda=cuda)
    members["encoder.pkl"] = state_dict_bytes(encoder, legacy=legacy, cuda=cuda)
    return members


def options(architecture: Architecture) -> dict:
    """The architecture file."""
    encoder = ("projection_dim", "cell_clip", "proj_clip", "dim", "n_layers")
    embedder = (
        "activation", "filters", "n_highway", "word_dim", "char_dim", "max_characters_per_token",
    )  # fmt: skip
    return {
        "encoder": {"name": "elmo"} | {key: architecture[key] for key in encoder},
        "token_embedder": {"name": "cnn"} | {key: architecture[key] for key in embedder},
        "classifier": {"name": "sampled_softmax", "n_samples": 8192},
        "dropout": 0.1,
    }


def dictionary_text(lines: Sequence[Sequence]) -> str:
    return "".join(f"{entry}\t{i}\n" for entry, i in lines)


# Reference


def read_dictionary(text: str) -> dict[str, int]:
    """A dictionary by the rules for its lines."""
    ids = {}
    for line in text.split("\n")[:-1]:
        fields = line.strip().split("\t")
        entry, number = ("\u3000", fields[0]) if len(fields) == 1 else fields
        ids[entry] = int(number)
    return ids


def token_ids(architecture: Architecture, token: str) -> tuple[int | None, list[int] | None]:
    """A token's word id and its M character ids; None for a table that the model lacks."""
    limit = architecture["max_characters_per_token"]
    cut = token[: limit - 2]
    word = characters = None
    if architecture["word_dim"] > 0:
        words = read_dictionary(dictionary_text(architecture["words"]))
        word = words.get(cut, words["<oov>"])
    if architecture["char_dim"] > 0:
        ids = read_dictionary(dictionary_text(architecture["characters"]))
        spelled = [cut] if cut in ("<bos>", "<eos>") else list(cut)
        # The names are swapped in the original: what is called the end stands first.
        inner = [ids.get(character, ids["<oov>"]) for character in spelled]
        characters = [ids["<eow>"], *inner, ids["<bow>"]]
        characters += [ids["<pad>"]] * (limit - len(characters))
    return word, characters


def encode_token(architecture: Architecture, weights: Weights, token: str) -> ndarray:
    """Layer 0 of one token, shape (P,)."""
    word, characters = token_ids(architecture, token)
    parts = []
    if word is not None:
        parts.append(weights["word_emb_layer.embedding.weight"][word])
    if characters is not None:
        embedded = weights["char_emb_layer.embedding.weight"][characters]
        filters = [
            (weights[f"convolutions.{i}.weight"], weights[f"convolutions.{i}.bias"])
            for i in range(len(architecture["filters"]))
        ]
        x = network.convolve(embedded, filters, architecture["activation"])
        for k in range(architecture["n_highway"]):
            x = highway(
                x, weights[f"highways._layers.{k}.weight"], weights[f"highways._layers.{k}.bias"]
            )
        parts.append(x)
    return weights["projection.weight"] @ numpy.concatenate(parts) + weights["projection.bias"]


def highway(x: ndarray, weight: ndarray, bias: ndarray) -> ndarray:
    """A highway whose gate says how much of the input is carried."""
    z = weight @ x + bias
    a = numpy.maximum(z[: len(x)], 0)
    t = network.sigmoid(z[len(x) :])
    return t * x + (1 - t) * a


def cell(architecture: Architecture, weights: Weights, stem: str) -> network.Cell:
    """The LSTM cell of one layer and direction; AllenNLP names and orders its parts alike."""
    d = architecture["dim"]
    w = weights[stem + "input_linearity.weight"]
    u = weights[stem + "state_linearity.weight"]
    b = weights[stem + "state_linearity.bias"]
    blocks = {name: slice(i * d, (i + 1) * d) for i, name in enumerate(network.GATES)}
    gates = {name: (w[rows].T, u[rows].T, b[rows]) for name, rows in blocks.items()}
    projection = weights[stem + "state_projection.weight"].T
    return network.Cell(gates, projection, architecture["cell_clip"], architecture["proj_clip"])


def reference(
    architecture: Architecture, weights: Weights, sentences: Sequence[Sequence[str]]
) -> list[ndarray]:
    """All layers of every sentence from zero states, shape (L + 1, tokens, 2P) each."""
    weights = network.cast(weights, numpy.float64)
    encode = network.cached(lambda token: encode_token(architecture, weights, token))
    cells = [
        [
            cell(architecture, weights, f"{direction}_layer_{layer}.")
            for layer in range(architecture["n_layers"])
        ]
        for direction in DIRECTIONS
    ]
    return [
        network.side_by_side(
            *network.bidirectional(encode, ("<bos>", "<eos>"), cells, True, sentence)
        )
        for sentence in sentences
    ]
