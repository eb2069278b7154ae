"""Models that AllenNLP trained with ELMo in them: `config.json` and `weights.th` (a pickle of named
tensors), as a folder or packed as `model.tar.gz`.

The tensors of the biLM are those of allennlp/modules/elmo.py, with a prefix that depends on the
model. Most archives do not hold the options, which are then inferred from the shapes.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Optional

import torch
from torch import Tensor

from ..bilm.config import N_CHARACTERS, BiLMConfig
from ..bilm.mixes import TrainedMix
from ..bilm.model import BiLM
from .allennlp_modules import highway_parameters, highway_shapes, lstm_parameters, lstm_shapes
from .options import OPTIONS, read_options
from .parameters import check_tensors, empty_model, to_float32
from .pickles import read_tensors

NAME = "allennlp"
DESCRIPTION = "a model that AllenNLP trained, with ELMo in it"
SUFFIXES = ()
_CONFIG = "config.json"
_WEIGHTS = ("weights.th", "best.th")
_CHARACTERS = "_token_embedder._char_embedding_weights"
_CONVOLUTION = "_token_embedder.char_conv_{}"
_HIGHWAYS = "_token_embedder._highways."
_PROJECTION = "_token_embedder._projection"
_LSTM = "_elmo_lstm."
_BILM = ("_token_embedder.", _LSTM)
_MIX = re.compile(r"scalar_mix_\d+\.gamma")
_ALIGNMENT = re.compile(r"(.*\.)?aligning_\w+\.weight")
_NORM = re.compile(rb'"do_layer_norm"\s*:\s*true')
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
    prefixes, bilm = _find_bilm(file, tensors)
    if options is None:
        # Where archives of AllenNLP 0.x hold files that the config named; ours precedes.
        candidates = (file.with_name(OPTIONS), *sorted(file.parent.glob("fta/*options_file")))
        options = next((x for x in candidates if x.is_file()), None)
    config = _infer_options(file, bilm) if options is None else read_options(options)
    if config.char_cnn is None or config.char_cnn.characters is not None:
        raise ValueError(f"{file} reads characters as bytes, which {options} does not")
    # AllenNLP has projections even where they change no width.
    if not config.has_char_projection:
        config = replace(config, char_cnn=replace(config.char_cnn, projection=True))
    if not config.lstm.has_projection:
        config = replace(config, lstm=replace(config.lstm, projection=True))
    model = empty_model(config, None, file)
    stored = {x: (t.shape, str(t.dtype).removeprefix("torch.")) for x, t in bilm.items()}
    check_tensors(file, _expected_shapes(config), stored)
    for name, tensor in bilm.items():
        bilm[name] = to_float32(file, name, tensor)
    model.load_state_dict(_to_parameters(config, bilm), assign=True)
    model.trained_mix = _read_mix(file, tensors, prefixes, config.n_activations)
    return model


def _find_bilm(file: Path, tensors: Mapping[str, Tensor]) -> tuple[list[str], dict[str, Tensor]]:
    """RETURNS (tuple): What names of the biLM begin with, and its tensors by the rest of the name.
    There may be several, if all are equal.
    RAISES (ValueError): If there is no biLM, or if several differ."""
    prefixes = sorted(x.removesuffix(_CHARACTERS) for x in tensors if x.endswith(_CHARACTERS))
    if not prefixes:
        is_transformer = any("_forward_transformer." in name for name in tensors)
        what = "a language model of transformers, and no LSTMs" if is_transformer else "no ELMo"
        raise ValueError(f"{file} holds {what}: nothing named ...{_CHARACTERS}")
    first, *others = [
        {
            rest: tensor
            for name, tensor in tensors.items()
            if name.startswith(prefix) and (rest := name.removeprefix(prefix)).startswith(_BILM)
        }
        for prefix in prefixes
    ]
    for other in others:
        is_same = first.keys() == other.keys()
        if not (is_same and all(torch.equal(first[name], other[name]) for name in first)):
            raise ValueError(
                f"{file} holds several biLMs that differ ({', '.join(prefixes)}), of several "
                "languages perhaps: take the weights of one by themselves, such as the HDF5 files "
                "that were published"
            )
    if any(_ALIGNMENT.fullmatch(name) for name in tensors):
        warnings.warn(
            "this model aligns its ELMo with that of other languages (aligning_*): the vectors are "
            "those before the alignment",
            stacklevel=2,
        )
    return prefixes, first


def _infer_options(file: Path, tensors: Mapping[str, Tensor]) -> BiLMConfig:
    """RETURNS (BiLMConfig): The options that the shapes tell, and the usual ones.
    RAISES (ValueError): If tensors are missing, or are not of these ranks."""

    def shapes(pattern: str, n_dims: int) -> list[torch.Size]:
        """The shapes of tensors that are numbered from 0."""
        numbered: list[torch.Size] = []
        while (name := pattern.format(len(numbered))) in tensors and name != pattern:
            numbered.append(tensors[name].shape)
        if not numbered or any(len(shape) != n_dims for shape in numbered):
            raise ValueError(f"{file}: the ELMo has no {pattern.format(0)} of {n_dims} dimensions")
        return numbered

    projections = shapes(_LSTM + "forward_layer_{}.state_projection.weight", 2)
    lstm = {
        "dim": projections[0][1],
        "projection_dim": projections[0][0],
        "n_layers": len(projections),
        "cell_clip": 3.0,
        "proj_clip": 3.0,
        "use_skip_connections": True,
    }
    filters = shapes(_CONVOLUTION + ".weight", 3)
    char_cnn = {
        "filters": [(shape[2], shape[0]) for shape in filters],
        "n_highway": sum(x.startswith(_HIGHWAYS) and x.endswith(".weight") for x in tensors),
        "embedding": {"dim": filters[0][1]},
    }
    try:
        config = BiLMConfig.from_options({"lstm": lstm, "char_cnn": char_cnn})
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
    warnings.warn(f"the options of this ELMo are not known. Assumed: {_ASSUMED}", stacklevel=2)
    return config


def _expected_shapes(config: BiLMConfig) -> dict[str, tuple[int, ...]]:
    char_cnn = config.char_cnn
    assert char_cnn is not None
    shapes: dict[str, tuple[int, ...]] = {_CHARACTERS: (N_CHARACTERS, char_cnn.embedding_dim)}
    for i, (width, number) in enumerate(char_cnn.filters):
        shapes[f"{_CONVOLUTION.format(i)}.weight"] = number, char_cnn.embedding_dim, width
        shapes[f"{_CONVOLUTION.format(i)}.bias"] = (number,)
    shapes[f"{_PROJECTION}.weight"] = config.projection_dim, char_cnn.n_filters
    shapes[f"{_PROJECTION}.bias"] = (config.projection_dim,)
    return {
        **shapes,
        **highway_shapes(char_cnn.n_filters, char_cnn.n_highway, _HIGHWAYS),
        **lstm_shapes(config.lstm, _LSTM),
    }


def _to_parameters(config: BiLMConfig, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """RETURNS (dict): The parameters of our network, which share no memory."""
    assert config.char_cnn is not None
    characters = tensors[_CHARACTERS].clone()
    characters[0] = 0.0  # Masks whole tokens.
    values = {"token_encoder.char_embedding.weight": characters}
    for kind in ("weight", "bias"):
        for i in range(len(config.char_cnn.filters)):
            convolution = tensors[f"{_CONVOLUTION.format(i)}.{kind}"]
            values[f"token_encoder.convolutions.{i}.{kind}"] = convolution.clone()
        values[f"token_encoder.projection.{kind}"] = tensors[f"{_PROJECTION}.{kind}"].clone()
    return {
        **values,
        **highway_parameters(config.char_cnn.n_highway, tensors, _HIGHWAYS),
        **lstm_parameters(config.lstm, tensors, _LSTM),
    }


def _read_mix(
    file: Path, tensors: Mapping[str, Tensor], prefixes: Sequence[str], n_layers: int
) -> Optional[TrainedMix]:
    """RETURNS (Optional[TrainedMix]): The first mix that was trained with the biLM.
    RAISES (ValueError): If a mix is not complete."""
    mixes = []
    for prefix in (prefix.removesuffix("_elmo_lstm.") for prefix in prefixes):
        for gamma in sorted(x for x in tensors if _MIX.fullmatch(x.removeprefix(prefix))):
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
    if mixes and config.is_file() and _NORM.search(config.read_bytes()):
        warnings.warn(
            "the task normalised the layers over whole batches before it mixed them "
            "(do_layer_norm), which the mix here does not: its vectors differ",
            stacklevel=2,
        )
    return mixes[0] if mixes else None
