"""Convert named tensors to a model and back. Errors name what does not match."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Optional

import torch
from torch import Tensor

from ..config import BiLMConfig
from ..forking import no_fork
from ..model import BiLM

# Types that are read, as float32. Others (integers, 8 or 80 bits) are not of weights.
_DTYPES = ("float16", "bfloat16", "float32", "float64")


def empty_model(config: BiLMConfig, vocabulary: Optional[Sequence[str]], source: object) -> BiLM:
    """A model whose parameters have shapes but no memory.

    source (object): What the weights are from, for the message.
    RAISES (ValueError): If configuration and vocabulary are not of a model.
    """
    try:
        with torch.device("meta"):
            return BiLM(config, vocabulary)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error


def check_names(source: object, expected: Mapping, actual: Mapping) -> None:
    """RAISES (ValueError): If the two do not have the same keys."""
    missing = sorted(set(expected) - set(actual))
    if missing:
        raise ValueError(
            f"{source}: the options ask for {_shorten(missing)}, which the weights do not hold"
        )
    extra = sorted(set(actual) - set(expected))
    if extra:
        raise ValueError(f"{source}: the options do not know of {_shorten(extra)} in the weights")


def check_tensor(
    source: object, name: str, expected: Sequence[int], shape: Optional[Sequence[int]], dtype: str
) -> None:
    """Check the declaration of a tensor. Its values are not needed.

    source (object): What it is from, for the messages.
    expected (Sequence[int]): The shape that the options imply.
    shape (Optional[Sequence[int]]): The shape in the file, None for a dataset without values.
    dtype (str): The type in the file, as NumPy and PyTorch name it.
    RAISES (ValueError): If the shape or the type is another one.
    """
    actual = None if shape is None else tuple(shape)
    if tuple(expected) != actual:
        raise ValueError(
            f"{source}: the options make {name} {tuple(expected)}, but the weights hold {actual}"
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


@no_fork()
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
    """Round all weights to float16, in place. They remain float32 tensors, which the safetensors
    format stores as float16.

    RAISES (ValueError): If a weight is not finite in float16.
    """
    for name, parameter in model.named_parameters():
        half = parameter.half()
        _check_finite(f"cannot round to float16: {name}", half)
        parameter.copy_(half)


def _check_finite(name: str, tensor: Tensor) -> None:
    if not torch.isfinite(tensor).all():
        dtype = str(tensor.dtype).removeprefix("torch.")
        raise ValueError(f"{name} holds values that are not finite in {dtype}")


def _shorten(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
