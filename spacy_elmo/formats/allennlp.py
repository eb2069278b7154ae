"""Models that AllenNLP trained with ELMo in them: `config.json` and `weights.th` (a pickle of named
tensors), as a folder or packed as `model.tar.gz`.

The tensors of the biLM are those of allennlp/modules/elmo.py, with a prefix that depends on the
model. Most archives do not hold the options: then they are read with those of AllenNLP's large
biLMs, if they have their shapes.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Optional

import torch
from torch import Tensor

from ..bilm.config import BiLMConfig
from ..bilm.mixes import TrainedMix
from ..bilm.model import BiLM
from .options import OPTIONS, read_options
from .parameters import check_finite, empty_model, fill, with_projections
from .state_dicts import read_state, read_tensors, state_map

NAME = "allennlp"
DESCRIPTION = "a model that AllenNLP trained, with ELMo in it"
SUFFIXES = ()
_CONFIG = "config.json"
_WEIGHTS = ("weights.th", "best.th")
_ENCODER, _LSTM = "_token_embedder._", "_elmo_lstm."
_CHARACTERS = f"{_ENCODER}char_embedding_weights"
_CONVOLUTION = "_token_embedder.char_conv_{}"
_BILM = ("_token_embedder.", _LSTM)
# The options of AllenNLP's large biLMs.
_PUBLISHED = {
    "lstm": {
        "dim": 4096, "projection_dim": 512, "n_layers": 2, "cell_clip": 3, "proj_clip": 3,
        "use_skip_connections": True,
    },
    "char_cnn": {
        "filters": [[1, 32], [2, 32], [3, 64], [4, 128], [5, 256], [6, 512], [7, 1024]],
        "embedding": {"dim": 16}, "n_highway": 2,
    },
}  # fmt: skip


def detect(path: Path, start: bytes) -> bool:
    """RETURNS (bool): Whether this is the folder of a model, or its weights."""
    if path.name in _WEIGHTS:
        return path.is_file()
    return not start and (path / _CONFIG).is_file() and any((path / x).is_file() for x in _WEIGHTS)


def read(path: Path, options: Optional[Path] = None) -> BiLM:
    """Read the biLM of a model, with the mix that was trained for it.
    RAISES (ValueError): If there is none, or several that differ, or files are damaged."""
    file = path if path.is_file() else next(x for x in map(path.joinpath, _WEIGHTS) if x.is_file())
    tensors = read_tensors(file)
    prefix, bilm = _find_bilm(tensors)
    # Where archives of AllenNLP 0.x hold files that the config named; ours precedes.
    beside = [file.with_name(OPTIONS), *sorted(file.parent.glob("fta/*options_file"))]
    given = options or next((x for x in beside if x.is_file()), None)
    config = read_options(given) if given else BiLMConfig.from_options(_PUBLISHED)
    if given is None:
        _warn(f"options not known. Taken: AllenNLP's large biLM. For others, put {OPTIONS} beside")
    if config.char_cnn is None or config.char_cnn.characters is not None:
        raise ValueError(f"{file} reads characters as bytes, which {given} does not")
    config = with_projections(config)  # AllenNLP always has them.
    layers, others = state_map(config, _CONVOLUTION, _ENCODER, _LSTM)
    table = "token_encoder.char_embedding.weight"
    others[table] = [_CHARACTERS], torch.clone
    values = read_state(bilm, layers | others)
    values[table][0] = 0.0  # Masks whole tokens.
    model = empty_model(config, None)
    fill(model, values)
    if mixes := _read_mixes(tensors, prefix, config.n_activations):
        model.trained_mix = mixes[0]
    if any(mix != mixes[0] for mix in mixes):
        texts = "; ".join(f"weights {mix.weights}, gamma {mix.gamma}" for mix in mixes)
        _warn(f"the first of {len(mixes)} trained mixes is taken. To set a FrozenMix: {texts}")
    task = file.with_name(_CONFIG)
    text = task.read_bytes() if mixes and task.is_file() else b""
    is_normalised = re.search(rb'"do_layer_norm"\s*:\s*true', text)
    if is_normalised or any(re.search(r"(^|\.)aligning_\w+\.weight$", name) for name in tensors):
        _warn("the task changed its vectors (do_layer_norm or aligning_*). They are those before")
    return model


def _warn(text: str) -> None:
    warnings.warn(f"this ELMo of AllenNLP: {text}", stacklevel=3)


def _find_bilm(tensors: Mapping[str, Tensor]) -> tuple[str, dict[str, Tensor]]:
    """RETURNS (tuple): What names of the biLM begin with, and its tensors by the rest of the name;
    the first, if there are several that are equal."""
    prefixes = sorted(x.removesuffix(_CHARACTERS) for x in tensors if x.endswith(_CHARACTERS))
    bilms = [
        {x.removeprefix(prefix): tensors[x] for x in tensors if x.startswith(starts)}
        for prefix in prefixes
        for starts in [tuple(prefix + part for part in _BILM)]
    ]
    for other in bilms:
        first = bilms[0]
        if first.keys() != other.keys() or any(not first[x].equal(other[x]) for x in first):
            raise ValueError(
                f"it holds several biLMs that differ ({', '.join(prefixes)}), of several languages "
                "perhaps: take the weights of one by themselves, such as the published HDF5 files"
            )
    if not bilms:
        raise ValueError(f"it holds no ELMo with LSTMs: nothing named ...{_CHARACTERS}")
    return prefixes[0], bilms[0]


def _read_mixes(tensors: Mapping[str, Tensor], prefix: str, n_layers: int) -> list[TrainedMix]:
    """RETURNS (list): The mixes that were trained with the biLM."""
    mixes = []
    pattern = re.escape(prefix.removesuffix(_LSTM)) + r"scalar_mix_\d+\.gamma"
    for gamma in sorted(x for x in tensors if re.fullmatch(pattern, x)):
        names = [gamma.replace(".gamma", f".scalar_parameters.{i}") for i in range(n_layers)]
        values = check_finite(gamma, torch.cat([tensors[x] for x in (*names, gamma)]).double())
        *weights, scale = values.reshape(n_layers + 1)
        mixes.append(TrainedMix(torch.stack(weights).softmax(0).tolist(), scale.item()))
    return mixes
