"""Files that people have in their hands and that no reader takes: it should say what they are."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import numpy
import torch

from . import allennlp_archive, bilm_tf, tensor_bundle
from .malicious import model
from .torch_files import state_dict_bytes


def saved_model(path: Path) -> Path:
    """A module of TensorFlow Hub: a graph, and variables in a tensor bundle of other names."""
    rng = numpy.random.default_rng(0)
    tensors = {
        "module/bilm/char_embed": rng.normal(size=(261, 4)).astype("float32"),
        "module/bilm/CNN/W_cnn_0": rng.normal(size=(1, 1, 4, 2)).astype("float32"),
        "module/aggregation/scaling": numpy.array(1, dtype="float32"),
    }
    tensor_bundle.write(path / "variables" / "variables", tensors)
    (path / "saved_model.pb").write_bytes(tensor_bundle.field(1, 1))
    (path / "tfhub_module.pb").write_bytes(tensor_bundle.field(1, 3))
    (path / "assets").mkdir()
    return path


def flair(path: Path) -> Path:
    """A language model of flair: a dict of settings, a state dict and an object of its own."""
    module = ModuleType("flair.data")
    dictionary = type("Dictionary", (), {"__module__": module.__name__})
    module.__dict__["Dictionary"] = dictionary
    characters = dictionary()
    characters.__dict__.update(item2idx={b"<unk>": 0, b"a": 1}, idx2item=[b"<unk>", b"a"])
    state = {
        "state_dict": {
            "encoder.weight": torch.zeros(275, 100),
            "rnn.weight_ih_l0": torch.zeros(8, 100),
            "decoder.weight": torch.zeros(275, 2),
        },
        "dictionary": characters,
        "is_forward_lm": True,
        "hidden_size": 2,
        "nlayers": 1,
        "embedding_size": 100,
        "nout": None,
        "document_delimiter": "\n",
        "dropout": 0.1,
    }
    with patch.dict(sys.modules, {"flair": ModuleType("flair"), "flair.data": module}):
        torch.save(state, path)
    return path


def fasttext_binary(path: Path) -> Path:
    """A model of fastText: its magic number, version 12, and arguments."""
    arguments = struct.pack("<12id", 300, 5, 5, 5, 10, 1, 1, 2, 2_000_000, 5, 5, 100, 1e-4)
    path.write_bytes(struct.pack("<ii", 793712314, 12) + arguments + bytes(100))
    return path


def transformer(path: Path) -> Path:
    """AllenNLP's transformer ELMo, an archive without any LSTM."""
    architecture, weights = model(allennlp_archive)
    members = allennlp_archive.files(architecture, weights)
    kind = "bidirectional_language_model_transformer"
    config = {"model": {"type": "language_model", "contextualizer": {"type": kind}}}
    stem = "_contextualizer._forward_transformer.layers.0."
    state = {f"{stem}self_attn.linears.0.weight": numpy.zeros((4, 4), "float32")}
    state["_softmax_loss.softmax_w"] = numpy.zeros((9, 4), "float32")
    members["config.json"] = json.dumps(config).encode()
    members["weights.th"] = state_dict_bytes(state, legacy=False)
    path.write_bytes(allennlp_archive.tar_bytes(members))
    return path


def without_elmo(path: Path) -> Path:
    """An AllenNLP archive of a model that does not use ELMo."""
    architecture, weights = model(allennlp_archive)
    members = allennlp_archive.files(architecture, weights)
    config = {"model": {"type": "simple_tagger", "text_field_embedder": {}}}
    state = {"encoder._module.weight_ih_l0": numpy.zeros((8, 4), "float32")}
    members["config.json"] = json.dumps(config).encode()
    members["weights.th"] = state_dict_bytes(state, legacy=False)
    path.write_bytes(allennlp_archive.tar_bytes(members))
    return path


UNREADABLE: dict[str, Callable[[Path], Path]] = {
    "TensorFlow Hub": saved_model,
    "flair": flair,
    "fastText": fasttext_binary,
    "transformer ELMo": transformer,
    "no ELMo": without_elmo,
    "one direction": bilm_tf.write_unidirectional,
}
