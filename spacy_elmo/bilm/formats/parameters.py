"""Building a model from named tensors, with errors that name what does not fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Optional

import torch
from torch import Tensor

from ..config import BiLMConfig
from ..forking import FORK_GATE
from ..model import BiLM


def empty_model(config: BiLMConfig, vocabulary: Optional[Sequence[str]]) -> BiLM:
    """A model whose parameters have shapes but no memory."""
    with torch.device("meta"):
        return BiLM(config, vocabulary)


def fill(model: BiLM, tensors: Mapping[str, Tensor], source: object) -> BiLM:
    """Give an empty model its weights, as float32.

    tensors (Mapping): By parameter name. All float16: the model will be saved as float16, too.
    source (object): What the tensors were read from, for the messages.
    RAISES (ValueError): If a tensor is missing, too many, of another shape or not finite.
    """
    expected = {name: tuple(p.shape) for name, p in model.named_parameters()}
    check_names(source, expected, tensors)
    for name, tensor in tensors.items():
        check_shape(source, name, expected[name], tuple(tensor.shape))
        if not torch.isfinite(tensor).all():
            raise ValueError(f"{source}: {name} holds values that are not finite")
    model.half_precision_storage = all(t.dtype == torch.float16 for t in tensors.values())
    values = {name: tensor.to(torch.float32) for name, tensor in tensors.items()}
    model.load_state_dict(values, assign=True)
    return model


@FORK_GATE
def stored_tensors(model: BiLM) -> dict[str, Tensor]:
    """RETURNS (dict): The weights by parameter name, on the CPU, in the precision of storage.
    RAISES (ValueError): If a weight is not finite there."""
    dtype = torch.float16 if model.half_precision_storage else None
    tensors = {}
    for name, parameter in model.named_parameters():
        tensors[name] = parameter.detach().to("cpu", dtype).contiguous()
        if not torch.isfinite(tensors[name]).all():
            precision = "float16" if dtype else "float32"
            raise ValueError(f"{name} holds values that are not finite in {precision}: not saved")
    return tensors


def check_names(source: object, expected: Mapping, found: Mapping) -> None:
    """RAISES (ValueError): If the two do not have the same keys."""
    missing = sorted(set(expected) - set(found))
    if missing:
        raise ValueError(
            f"{source}: the options ask for {_some(missing)}, which the weights do not hold"
        )
    extra = sorted(set(found) - set(expected))
    if extra:
        raise ValueError(f"{source}: the options do not know of {_some(extra)} in the weights")


def check_shape(source: object, name: str, expected: tuple, found: tuple) -> None:
    """RAISES (ValueError): If the shapes differ."""
    if expected != found:
        raise ValueError(
            f"{source}: the options make {name} {expected}, but the weights hold {found}"
        )


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
