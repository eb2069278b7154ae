"""bilm-tf: TensorFlow checkpoints with their output layer, and the network (sections B and C.3).

An architecture is a dict of `char_dim`, `filters`, `n_highway`, `activation`,
`max_characters_per_token`, `projection_dim`, `dim`, `n_layers`, `cell_clip`, `proj_clip`,
`use_skip_connections`, `words` (the vocabulary) and `share_embedding_softmax`. `filters` is empty
for word input. Weights have the names of the checkpoint's variables.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy
from numpy import ndarray

from . import network, tensor_bundle, texts
from .network import Architecture, Weights, pick, uniform

BOUNDARIES = ("<S>", "</S>")
# Before the shift by one that other programs know.
BEGIN_SENTENCE, END_SENTENCE, BEGIN_WORD, END_WORD, PADDING = 256, 257, 258, 259, 260
N_CHARACTERS = 261
# W_0 and B hold the gates in this order.
GATES = ("input", "cell", "forget", "output")


def random_architecture(
    rng: numpy.random.Generator, *, n_layers: int | None = None, characters: bool | None = None
) -> Architecture:
    """Any sizes that bilm-tf trains; one of five with words as input.

    n_layers (int | None): 1 to 3 by default.
    characters (bool | None): Whether characters are the input.
    """
    limit = int(pick(rng, 50, 50, 8, 13, 60))
    filters = network.random_filters(rng, min(limit, 7))
    features = sum(outputs for _, outputs in filters)
    # The trainer demands F >= P and D >= P; where they are equal, there is no projection.
    p = features if rng.random() < 0.25 else int(rng.integers(2, min(features, 8) + 1))
    if characters is None:
        characters = rng.random() < 0.75
    return {
        "char_dim": int(rng.integers(1, 6)),
        "filters": filters if characters else [],
        "n_highway": pick(rng, 0, 1, 2, 3),
        "activation": pick(rng, "relu", "relu", "tanh"),
        "max_characters_per_token": limit,
        "projection_dim": p,
        "dim": p if rng.random() < 0.25 else p + int(rng.integers(1, 9)),
        "n_layers": int(rng.integers(1, 4)) if n_layers is None else n_layers,
        "cell_clip": pick(rng, 3, 0.5, 0.2, None),
        "proj_clip": pick(rng, 3, 0.6, 0.3, None),
        "use_skip_connections": bool(rng.random() < 0.75),
        "words": random_words(rng),
        "share_embedding_softmax": bool(not characters and rng.random() < 0.5),
    }


def random_words(rng: numpy.random.Generator) -> list[str]:
    """A vocabulary with about half of the words of `texts`."""
    words = [word for word in (*texts.ORDINARY, *texts.LONG) if rng.random() < 0.5]
    words = [word for word in words if word == word.strip() and word != "the"]
    return ["<S>", "</S>", "<UNK>", "the", *(str(word) for word in rng.permutation(words))]


def cell_scope(architecture: Architecture, direction: int, layer: int) -> str:
    """Scope of an LSTM cell's variables: a single layer lacks a level."""
    level = f"multi_rnn_cell/cell_{layer}/" if architecture["n_layers"] > 1 else ""
    return f"lm/RNN_{direction}/rnn/{level}lstm_cell/"


def random_weights(architecture: Architecture, rng: numpy.random.Generator) -> Weights:
    """All variables of the model, with the output layer."""
    p, d, v = architecture["projection_dim"], architecture["dim"], len(architecture["words"])
    weights: Weights = {}
    if architecture["filters"]:
        e = architecture["char_dim"]
        f = network.total_filters(architecture)
        weights["lm/char_embed"] = uniform(rng, (N_CHARACTERS, e), 1)
        for i, (width, outputs) in enumerate(architecture["filters"]):
            weights[f"lm/CNN/W_cnn_{i}"] = uniform(rng, (1, width, e, outputs), e * width)
            weights[f"lm/CNN/b_cnn_{i}"] = uniform(rng, (outputs,), 10)
        for k in range(architecture["n_highway"]):
            for gate in ("carry", "transform"):
                weights[f"lm/CNN_high_{k}/W_{gate}"] = uniform(rng, (f, f), f)
                weights[f"lm/CNN_high_{k}/b_{gate}"] = uniform(rng, (f,), 2)
        if f != p:
            weights["lm/CNN_proj/W_proj"] = uniform(rng, (f, p), f)
            weights["lm/CNN_proj/b_proj"] = uniform(rng, (p,), 10)
    else:
        weights["lm/embedding"] = uniform(rng, (v, p), 1)
    for direction in range(2):
        for layer in range(architecture["n_layers"]):
            scope = cell_scope(architecture, direction, layer)
            weights[scope + "kernel"] = uniform(rng, (2 * p, 4 * d), 2 * p, 1.5)
            weights[scope + "bias"] = uniform(rng, (4 * d,), 4)
            if d != p:
                weights[scope + "projection/kernel"] = uniform(rng, (d, p), d, 1.5)
    if not architecture["share_embedding_softmax"]:
        weights["lm/softmax/W"] = uniform(rng, (v, p), p, 3)
    weights["lm/softmax/b"] = uniform(rng, (v,), 4)
    return weights


def random_sentences(architecture: Architecture, rng: numpy.random.Generator) -> list[list[str]]:
    special = ("<S>", "</S>", "<UNK>", "<s>")
    return texts.random_sentences(rng, architecture["max_characters_per_token"] - 2, special)


# Writing


def options(architecture: Architecture, n_characters: int = N_CHARACTERS) -> dict:
    """options.json as training writes it."""
    names = ["use_skip_connections", "projection_dim", "dim", "n_layers", "cell_clip", "proj_clip"]
    lstm = {name: architecture[name] for name in names}
    names = ["activation", "filters", "max_characters_per_token", "n_highway"]
    char_cnn = {name: architecture[name] for name in names}
    char_cnn |= {"embedding": {"dim": architecture["char_dim"]}, "n_characters": n_characters}
    # Settings with these values may be absent.
    absent = {"n_layers": 1, "cell_clip": None, "proj_clip": None}
    lstm = {k: v for k, v in lstm.items() if k not in absent or v != absent[k]}
    char_cnn = {k: v for k, v in char_cnn.items() if (k, v) != ("n_highway", 0)}
    options = {"bidirectional": True, "lstm": lstm}
    if architecture["filters"]:
        options["char_cnn"] = char_cnn
    elif architecture["share_embedding_softmax"]:
        options["share_embedding_softmax"] = True
    return options | {
        "n_tokens_vocab": len(architecture["words"]),
        "n_negative_samples_batch": 8192,
    }


def vocabulary_text(architecture: Architecture) -> str:
    """vocab.txt, with a line that takes no id."""
    words = architecture["words"]
    return "\n".join([*words[:3], "!!!MAXTERMID", *words[3:]]) + "\n"


def variables(weights: Weights) -> dict[str, ndarray]:
    """All that a checkpoint holds: the weights, the slots of their optimiser, two counters."""
    slots = {f"{name}/Adagrad": numpy.ones_like(array) for name, array in weights.items()}
    counters = {
        "global_step": numpy.array(935588, dtype="float32"),
        "train_perplexity": numpy.array(0, dtype="float32"),
    }
    return {**weights, **slots, **counters}


def write(
    path: Path,
    architecture: Architecture,
    weights: Weights,
    *,
    prefix: str = "model.ckpt-935588",
    checkpoint: bool = True,
    num_shards: int = 1,
    block_size: int = 262144,
    vocabulary: bool = True,
) -> Path:
    """A training folder: checkpoint, index, data, options.json, graph, vocabulary.

    checkpoint (bool): Write the file that names the newest one.
    block_size (int): Small sizes make an index of several blocks.
    RETURNS (Path): The prefix.
    """
    path.mkdir(parents=True, exist_ok=True)
    stored = variables(weights)
    tensor_bundle.write(path / prefix, stored, num_shards=num_shards, block_size=block_size)
    (path / f"{prefix}.meta").write_bytes(b"\x0a\x0bnot a graph")
    (path / "options.json").write_text(json.dumps(options(architecture)))
    if checkpoint:
        lines = f'model_checkpoint_path: "{prefix}"\nall_model_checkpoint_paths: "{prefix}"\n'
        (path / "checkpoint").write_text(lines)
    if vocabulary:
        (path / "vocab.txt").write_text(vocabulary_text(architecture), encoding="utf8")
    return path / prefix


def write_unidirectional(path: Path) -> Path:
    """A checkpoint of a model that reads forwards only, which no reader takes."""
    rng = numpy.random.default_rng(0)
    architecture = random_architecture(rng, n_layers=2, characters=True)
    weights = {
        name.replace("lm/RNN_0/", "lm/"): array
        for name, array in random_weights(architecture, rng).items()
        if "RNN_1" not in name
    }
    prefix = write(path, architecture, weights)
    settings = {k: v for k, v in options(architecture).items() if k != "bidirectional"}
    (path / "options.json").write_text(json.dumps(settings))
    return prefix


# Reference


def character_ids(architecture: Architecture, token: str) -> list[int]:
    """The M character ids of a token, counted as in the checkpoint: no id masks."""
    limit = architecture["max_characters_per_token"]
    if token in BOUNDARIES:
        inner = [BEGIN_SENTENCE if token == BOUNDARIES[0] else END_SENTENCE]
    else:
        inner = list(token.encode("utf8", "ignore")[: limit - 2])
    ids = [BEGIN_WORD, *inner, END_WORD]
    return ids + [PADDING] * (limit - len(ids))


def word_id(architecture: Architecture, token: str) -> int:
    """A word's row of the embeddings and of the output layer."""
    words = architecture["words"]
    return words.index(token if token in words else "<UNK>")


def encode_token(architecture: Architecture, weights: Weights, token: str) -> ndarray:
    """Layer 0 of one token, shape (P,)."""
    if not architecture["filters"]:
        return weights["lm/embedding"][word_id(architecture, token)]
    embedded = weights["lm/char_embed"][character_ids(architecture, token)]
    filters = [
        (weights[f"lm/CNN/W_cnn_{i}"][0].transpose(2, 1, 0), weights[f"lm/CNN/b_cnn_{i}"])
        for i in range(len(architecture["filters"]))
    ]
    x = network.convolve(embedded, filters, architecture["activation"])
    for k in range(architecture["n_highway"]):
        stem = f"lm/CNN_high_{k}/"
        s = network.sigmoid(x @ weights[stem + "W_carry"] + weights[stem + "b_carry"])
        a = numpy.maximum(x @ weights[stem + "W_transform"] + weights[stem + "b_transform"], 0)
        x = s * a + (1 - s) * x
    if "lm/CNN_proj/W_proj" in weights:
        x = x @ weights["lm/CNN_proj/W_proj"] + weights["lm/CNN_proj/b_proj"]
    return x


def cell(architecture: Architecture, weights: Weights, scope: str) -> network.Cell:
    p, d = architecture["projection_dim"], architecture["dim"]
    kernel, bias = weights[scope + "kernel"], weights[scope + "bias"]
    gates = {}
    for i, name in enumerate(GATES):
        columns = slice(i * d, (i + 1) * d)
        b = bias[columns] + 1 if name == "forget" else bias[columns]
        gates[name] = (kernel[:p, columns], kernel[p:, columns], b)
    projection = weights.get(scope + "projection/kernel")
    return network.Cell(gates, projection, architecture["cell_clip"], architecture["proj_clip"])


def reader(
    architecture: Architecture, weights: Weights
) -> Callable[[Sequence[str]], tuple[list[ndarray], list[ndarray]]]:
    """A function from a sentence to all layers of both directions, boundaries included."""
    weights = network.cast(weights, numpy.float64)
    encode = network.cached(lambda token: encode_token(architecture, weights, token))
    cells = [
        [
            cell(architecture, weights, cell_scope(architecture, direction, layer))
            for layer in range(architecture["n_layers"])
        ]
        for direction in range(2)
    ]
    skip = architecture["use_skip_connections"]
    return lambda sentence: network.bidirectional(encode, BOUNDARIES, cells, skip, sentence)


def reference(
    architecture: Architecture, weights: Weights, sentences: Sequence[Sequence[str]]
) -> list[ndarray]:
    """All layers of every sentence from zero states, shape (L + 1, tokens, 2P) each."""
    read = reader(architecture, weights)
    return [network.side_by_side(*read(sentence)) for sentence in sentences]


def reference_losses(
    architecture: Architecture, weights: Weights, sentences: Sequence[Sequence[str]]
) -> list[ndarray]:
    """How surprising each word is, in nats, predicted from the words on one side of it.

    Sentences are read one by one, from zero states. Words outside the vocabulary count as <UNK>.
    RETURNS (list[ndarray]): Shape (2, tokens + 1) for each sentence. The first row is the forward
        direction's, of the tokens and </S>; the second the backward direction's, of <S> and the
        tokens, both in the order of the text.
    """
    read = reader(architecture, weights)
    softmax = network.cast(weights, numpy.float64)
    w = softmax.get("lm/softmax/W", softmax.get("lm/embedding"))
    assert w is not None
    losses = []
    for sentence in sentences:
        framed = [BOUNDARIES[0], *sentence, BOUNDARIES[1]]
        ids = [word_id(architecture, token) for token in framed]
        rows = []
        for layers, order in zip(read(sentence), (ids, ids[::-1])):
            row = []
            for h, target in zip(layers[-1][:-1], order[1:]):
                scores = w @ h + softmax["lm/softmax/b"]
                top = scores.max()
                row.append(top + numpy.log(numpy.exp(scores - top).sum()) - scores[target])
            rows.append(row)
        losses.append(numpy.array([rows[0], rows[1][::-1]]))
    return losses


def reference_perplexity(
    architecture: Architecture, weights: Weights, sentences: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Perplexities of the output layer: "forward", "backward" and "both" (their geometric mean)."""
    losses = numpy.concatenate(reference_losses(architecture, weights, sentences), axis=1)
    forward, backward = losses.mean(axis=1)
    return {
        "forward": float(numpy.exp(forward)),
        "backward": float(numpy.exp(backward)),
        "both": float(numpy.exp((forward + backward) / 2)),
    }
