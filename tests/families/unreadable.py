"""Files that people have in their hands and that no reader takes: it should say what they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy

from . import allennlp_archive, bilm_tf, tensor_bundle
from .network import random_model
from .torch_files import state_dict_bytes


def saved_model(path: Path) -> Path:
    """A module of TensorFlow Hub: a graph, and variables in a tensor bundle of other names."""
    tensors = {"module/bilm/char_embed": numpy.ones((261, 4), "float32")}
    tensor_bundle.write(path / "variables" / "variables", tensors)
    (path / "saved_model.pb").write_bytes(tensor_bundle.field(1, 1))
    return path


def transformer(path: Path) -> Path:
    """An archive of AllenNLP's transformer ELMo."""
    members = allennlp_archive.files(*random_model(allennlp_archive)[:2])
    name = "_contextualizer._forward_transformer.layers.0.self_attn.linears.0.weight"
    state = {name: numpy.zeros((8, 4), "float32")}
    members["weights.th"] = state_dict_bytes(state, legacy=False)
    path.write_bytes(allennlp_archive.tar_bytes(members))
    return path


UNREADABLE: dict[str, Callable[[Path], Path]] = {
    "TensorFlow Hub": saved_model,
    "no ELMo with LSTMs": transformer,
    "backward_layers": lambda path: bilm_tf.write_unidirectional(path).parent,
}
