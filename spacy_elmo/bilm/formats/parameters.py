"""Between named tensors and a model, with errors that name what does not fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Optional

import torch
from torch import Tensor

from ..config import BiLMConfig
from ..forking import FORK_GATE
from ..model import BiLM

# All are read as float32. What else a file may hold (integers, 8 or 80 bits) are no weights.
_DTYPES = ("float16", "bfloat16", "float32", "float64")


def empty_model(config: BiLMConfig, vocabulary: Optional[Sequence[str]], source: object) -> BiLM:
    """A model whose parameters have shapes but no memory.

    source (object): What the weights are read from, for the message.
    RAISES (ValueError): If there is no model of this configuration and vocabulary.
    """
    try:
        with torch.device("meta"):
            return BiLM(config, vocabulary)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error


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


def check_tensor(
    source: object, name: str, expected: Sequence[int], shape: Optional[Sequence[int]], dtype: str
) -> None:
    """Check what a file says about a tensor. Needs none of its values.

    source (object): What it is read from, for the messages.
    expected (Sequence[int]): The shape that the options ask for.
    shape (Optional[Sequence[int]]): The shape in the file. None: the file says there are no values.
    dtype (str): The type in the file, as NumPy and PyTorch name it.
    RAISES (ValueError): If it is of another shape, or no floating-point number that is read.
    """
    found = None if shape is None else tuple(shape)
    if tuple(expected) != found:
        raise ValueError(
            f"{source}: the options make {name} {tuple(expected)}, but the weights hold {found}"
        )
    if dtype not in _DTYPES:
        raise ValueError(
            f"{source}: {name} does not hold weights, but {dtype}: expected {', '.join(_DTYPES)}"
        )


def to_float32(source: object, name: str, tensor: Tensor) -> Tensor:
    """RAISES (ValueError): If a value is not finite in float32."""
    tensor = tensor.to(torch.float32)
    _check_finite(f"{source}: {name}", tensor)
    return tensor


@FORK_GATE
def stored_tensors(model: BiLM, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """RETURNS (dict): The weights by parameter name, on the CPU.
    RAISES (ValueError): If a weight is not finite in this type."""
    tensors = {}
    for name, parameter in model.named_parameters():
        tensors[name] = parameter.detach().to("cpu", dtype).contiguous()
        _check_finite(f"not saved: {name}", tensors[name])
    return tensors


def as_half_if_exact(tensor: Tensor) -> Tensor:
    """RETURNS (Tensor): The values as float16 if that loses nothing, else the tensor itself."""
    half = tensor.half()
    return half if torch.equal(half.float(), tensor) else tensor


def fits_half(model: BiLM) -> bool:
    """RETURNS (bool): Whether float16 holds all weights exactly."""
    parameters = [parameter.detach() for parameter in model.parameters()]
    return all(as_half_if_exact(tensor).dtype == torch.float16 for tensor in parameters)


@torch.no_grad()
def round_to_half(model: BiLM) -> None:
    """Round all weights to float16, in place. They stay float32 tensors, and our own format stores
    them as float16 as long as nothing changes them.

    RAISES (ValueError): If a weight is not finite in float16.
    """
    for name, parameter in model.named_parameters():
        half = parameter.half()
        _check_finite(f"cannot round to float16: {name}", half)
        parameter.copy_(half)


def _check_finite(what: str, tensor: Tensor) -> None:
    if not torch.isfinite(tensor).all():
        dtype = str(tensor.dtype).removeprefix("torch.")
        raise ValueError(f"{what} holds values that are not finite in {dtype}")


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
