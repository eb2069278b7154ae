"""Models that AllenNLP trained with ELMo in them: `config.json` and `weights.th` (a pickle of named
tensors), as a folder or packed as `model.tar.gz`.

The tensors of the biLM are those of allennlp/modules/elmo.py, with a prefix that depends on the
model. Most archives do not hold the options, which are then inferred from the shapes.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Optional

import torch
from torch import Tensor

from ..bilm.config import BiLMConfig
from ..bilm.mixes import TrainedMix
from ..bilm.model import BiLM
from .allennlp_modules import read_state, state_map
from .options import OPTIONS, read_options
from .parameters import empty_model
from .pickles import read_tensors

NAME = "allennlp"
DESCRIPTION = "a model that AllenNLP trained, with ELMo in it"
SUFFIXES = ()
_CONFIG = "config.json"
_WEIGHTS = ("weights.th", "best.th")
_ENCODER, _LSTM = "_token_embedder._", "_elmo_lstm."
_CHARACTERS = f"{_ENCODER}char_embedding_weights"
_CONVOLUTION = "_token_embedder.char_conv_{}"
_BILM = ("_token_embedder.", _LSTM)
# What the shapes do not tell. All published options have these; AllenNLP fixes the characters.
_ASSUMED = (
    "relu, cell_clip and proj_clip 3, skip connections, 50 characters per token. If it was trained "
    "with others, put an options.json beside weights.th"
)


def detect(path: Path, start: bytes) -> bool:
    """RETURNS (bool): Whether this is the folder of a model, or its weights."""
    if path.name in _WEIGHTS:
        return path.is_file()
    return not start and (path / _CONFIG).is_file() and any((path / x).is_file() for x in _WEIGHTS)


def read(path: Path, options: Optional[Path] = None) -> BiLM:
    """Read the biLM of a model, with the mix that was trained for it.

    RAISES (ValueError): If the weights are damaged, hold no biLM, several different ones, or one
        that contradicts the options.
    """
    file = path if path.is_file() else next(x for x in map(path.joinpath, _WEIGHTS) if x.is_file())
    tensors = read_tensors(file)
    prefix, bilm = _find_bilm(file, tensors)
    # Where archives of AllenNLP 0.x hold files that the config named; ours precedes.
    candidates = [options, file.with_name(OPTIONS), *sorted(file.parent.glob("fta/*options_file"))]
    given = [x for x in candidates if x is not None and (x == options or x.is_file())]
    config = read_options(given[0]) if given else _infer_options(file, bilm)
    if config.char_cnn is None or config.char_cnn.characters is not None:
        raise ValueError(f"{file} reads characters as bytes, which {given[0]} does not")
    # AllenNLP has projections even where they change no width.
    if not config.has_char_projection:
        config = replace(config, char_cnn=replace(config.char_cnn, projection=True))
    if not config.lstm.has_projection:
        config = replace(config, lstm=replace(config.lstm, projection=True))
    model = empty_model(config, None, file)
    layers, others = state_map(config, _CONVOLUTION, _ENCODER, _LSTM)
    table = "token_encoder.char_embedding.weight"
    others[table] = [_CHARACTERS], torch.clone
    values = read_state(file, model, bilm, layers | others)
    values[table][0] = 0.0  # Masks whole tokens.
    model.load_state_dict(values, assign=True)
    model.trained_mix = _read_mix(file, tensors, prefix, config.n_activations)
    return model


def _find_bilm(file: Path, tensors: Mapping[str, Tensor]) -> tuple[str, dict[str, Tensor]]:
    """RETURNS (tuple): What names of the biLM begin with, and its tensors by the rest of the name;
    the first, if there are several that are equal.
    RAISES (ValueError): If there is no biLM, or if several differ."""
    prefixes = sorted(x.removesuffix(_CHARACTERS) for x in tensors if x.endswith(_CHARACTERS))
    if not prefixes:
        is_transformer = any("_forward_transformer." in name for name in tensors)
        what = "a language model of transformers, and no LSTMs" if is_transformer else "no ELMo"
        raise ValueError(f"{file} holds {what}: nothing named ...{_CHARACTERS}")
    first, *others = [
        {x.removeprefix(prefix): tensors[x] for x in tensors if x.startswith(starts)}
        for prefix in prefixes
        for starts in [tuple(prefix + part for part in _BILM)]
    ]
    for other in others:
        if first.keys() != other.keys() or any(not first[x].equal(other[x]) for x in first):
            raise ValueError(
                f"{file} holds several biLMs that differ ({', '.join(prefixes)}), of several "
                "languages perhaps: take the weights of one by themselves, such as the HDF5 files "
                "that were published"
            )
    if any(re.fullmatch(r"(.*\.)?aligning_\w+\.weight", name) for name in tensors):
        warnings.warn(
            "this model aligns its ELMo with that of other languages (aligning_*): the vectors are "
            "those before the alignment",
            stacklevel=2,
        )
    return prefixes[0], first


def _infer_options(file: Path, tensors: Mapping[str, Tensor]) -> BiLMConfig:
    """RETURNS (BiLMConfig): The options that the shapes tell, and the usual ones.
    RAISES (ValueError): If tensors are missing, or are not of these ranks."""

    def shapes(pattern: str) -> list[torch.Size]:
        """The shapes of tensors that are numbered from 0."""
        n = sum(pattern.format(i) in tensors for i in range(len(tensors)))
        return [tensors[pattern.format(i)].shape for i in range(n)]

    n_highway = len(shapes(f"{_ENCODER}highways._layers.{{}}.weight"))
    try:
        lstms = [(p, d) for p, d in shapes(_LSTM + "forward_layer_{}.state_projection.weight")]
        filters = [(w, n, e) for n, e, w in shapes(_CONVOLUTION + ".weight")]
        (p, d), (*_, e) = lstms[0], filters[0]
        lstm = {"dim": d, "projection_dim": p, "n_layers": len(lstms), "use_skip_connections": True}
        char_cnn = {"filters": [x[:2] for x in filters], "embedding": {"dim": e}}
        config = BiLMConfig.from_options(
            {
                "lstm": {**lstm, "cell_clip": 3.0, "proj_clip": 3.0},
                "char_cnn": {**char_cnn, "n_highway": n_highway},
            }
        )
    except (ValueError, IndexError, KeyError) as error:
        raise ValueError(f"{file}: the tensors are not those of an ELMo: {error}") from error
    warnings.warn(f"the options of this ELMo are not known. Assumed: {_ASSUMED}", stacklevel=2)
    return config


def _read_mix(
    file: Path, tensors: Mapping[str, Tensor], prefix: str, n_layers: int
) -> Optional[TrainedMix]:
    """RETURNS (Optional[TrainedMix]): The first mix that was trained with the biLM.
    RAISES (ValueError): If a mix is not complete."""
    mixes = []
    pattern = re.escape(prefix.removesuffix(_LSTM)) + r"scalar_mix_\d+\.gamma"
    for gamma in sorted(x for x in tensors if re.fullmatch(pattern, x)):
        name = gamma.removesuffix(".gamma")
        names = [f"{name}.scalar_parameters.{i}" for i in range(n_layers)]
        values = [tensors.get(x, torch.empty(0)).flatten() for x in (*names, gamma)]
        if any(len(value) != 1 or not value.isfinite() for value in values):
            raise ValueError(f"{file}: {name} is not a mix of {n_layers} layers")
        *weights, scale = torch.cat(values).double()
        mixes.append(TrainedMix(torch.stack(weights).softmax(0).tolist(), scale.item()))
    if any(mix != mixes[0] for mix in mixes):
        texts = "; ".join(f"weights {mix.weights}, gamma {mix.gamma}" for mix in mixes)
        warnings.warn(
            f"this model has {len(mixes)} trained mixes of its layers, and the first is taken. For "
            f"another, set the FrozenMix of the component: {texts}",
            stacklevel=2,
        )
    config = file.with_name(_CONFIG)
    if (
        mixes
        and config.is_file()
        and re.search(rb'"do_layer_norm"\s*:\s*true', config.read_bytes())
    ):
        warnings.warn(
            "the task normalised the layers over whole batches before it mixed them "
            "(do_layer_norm), which the mix here does not: its vectors differ",
            stacklevel=2,
        )
    return mixes[0] if mixes else None
