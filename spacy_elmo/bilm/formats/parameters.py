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


def check_tensors(
    source: object,
    expected: Mapping[str, Sequence[int]],
    stored: Mapping[str, tuple[Optional[Sequence[int]], str]],
) -> None:
    """Check what a file declares. Values are not needed.

    source (object): What the tensors are from, for the messages.
    expected (Mapping): For each name, the shape that the options imply.
    stored (Mapping): For each name in the file, the shape (None for a dataset without values) and
        the type, as NumPy and PyTorch name it.
    RAISES (ValueError): If a name, a shape or a type is another one.
    """
    if missing := sorted(expected.keys() - stored.keys()):
        raise ValueError(
            f"{source}: the options ask for {_shorten(missing)}, which the weights do not hold"
        )
    if extra := sorted(stored.keys() - expected.keys()):
        raise ValueError(f"{source}: the options do not know of {_shorten(extra)} in the weights")
    for name, expected_shape in expected.items():
        shape, dtype = stored[name]
        shape = None if shape is None else tuple(shape)
        if shape != tuple(expected_shape):
            raise ValueError(
                f"{source}: the options make {name} {tuple(expected_shape)}, but the weights hold "
                f"{shape}"
            )
        if dtype not in _DTYPES:
            raise ValueError(
                f"{source}: {name} does not hold weights, but {dtype}: expected "
                f"{', '.join(_DTYPES)}"
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
    """RETURNS (bool): Whether all weights are exact in float16."""
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
