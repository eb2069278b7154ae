"""Convert named tensors to a model and back. Errors name what does not match."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Optional

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..bilm.config import BiLMConfig
from ..bilm.model import BiLM

# Types that are read, as float32. Others (integers, 8 or 80 bits) are not of weights.
_DTYPES = ("float16", "bfloat16", "float32", "float64")


class _NoInitialization(TorchFunctionMode):
    """A context in which the functions of `torch.nn.init` do nothing. On the meta device some of
    them import PyTorch's compiler, which takes longer than to read a model."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Optional[dict] = None
    ) -> Any:
        if getattr(func, "__module__", None) == nn.init.__name__:
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


def empty_model(config: BiLMConfig, vocabulary: Optional[Sequence[str]], source: object) -> BiLM:
    """Make a model whose parameters have shapes but no memory.

    source (object): What the weights are from, for the message.
    RAISES (ValueError): If configuration and vocabulary are not of a model.
    """
    try:
        with torch.device("meta"), _NoInitialization():
            return BiLM(config, vocabulary)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error


def declared(tensors: Mapping[str, Tensor]) -> dict[str, tuple[Sequence[int], str]]:
    """RETURNS (dict): For each tensor, what `check_tensors` compares: its shape and type."""
    return {x: (t.shape, str(t.dtype).removeprefix("torch.")) for x, t in tensors.items()}


def check_tensors(
    source: object,
    expected: Mapping[str, Sequence[int]],
    stored: Mapping[str, tuple[Optional[Sequence[int]], str]],
    int8: Collection[str] = (),
) -> None:
    """Check what a file declares. Values are not needed.

    source (object): What the tensors are from, for the messages.
    expected (Mapping): For each name, the shape that the options imply.
    stored (Mapping): For each name in the file, the shape (None for a dataset without values) and
        the type, as NumPy and PyTorch name it.
    int8 (Collection[str]): Names of tensors in 8 bits.
    RAISES (ValueError): If a name, a shape or a type is another one.
    """
    if expected.keys() != stored.keys():
        missing, extra = sorted(expected.keys() - stored), sorted(stored.keys() - expected)
        raise ValueError(
            f"{source}: the options ask for {_shorten(missing)}, which the weights do not hold"
            if missing
            else f"{source}: the options do not know of {_shorten(extra)} in the weights"
        )
    for name, expected_shape in expected.items():
        shape, dtype = stored[name]
        shape = None if shape is None else tuple(shape)
        if shape != tuple(expected_shape):
            raise ValueError(
                f"{source}: the options make {name} {tuple(expected_shape)}, but the weights hold "
                f"{shape}"
            )
        if dtype not in _DTYPES and name not in int8:
            raise ValueError(
                f"{source}: {name} does not hold weights, but {dtype}: expected "
                f"{', '.join(_DTYPES)}"
            )


def to_float32(source: object, name: str, tensor: Tensor) -> Tensor:
    """RAISES (ValueError): If a value is not finite in float32."""
    return check_finite(f"{source}: {name}", tensor.to(torch.float32))


def stored_tensor(name: str, weight: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """RETURNS (Tensor): The weight on the CPU.
    RAISES (ValueError): If it is not finite in this type."""
    return check_finite(f"not saved: {name}", weight.detach().to("cpu", dtype).contiguous())


def as_half_if_exact(tensor: Tensor) -> Tensor:
    """RETURNS (Tensor): The values as float16 if that loses nothing, else the tensor itself."""
    half = tensor.half()
    return half if torch.equal(half.float(), tensor) else tensor


def fits_half(model: BiLM) -> bool:
    """RETURNS (bool): Whether all weights are exact in float16."""
    tensors = (as_half_if_exact(parameter.detach()) for parameter in model.parameters())
    return all(tensor.dtype == torch.float16 for tensor in tensors)


@torch.no_grad()
def round_to_half(model: BiLM) -> None:
    """Round all weights to float16, in place. They remain float32 tensors, which the safetensors
    format stores as float16.

    RAISES (ValueError): If a weight is not finite in float16.
    """
    for name, parameter in model.named_parameters():
        parameter.copy_(check_finite(f"cannot round to float16: {name}", parameter.half()))


def check_finite(name: str, tensor: Tensor) -> Tensor:
    """RETURNS (Tensor): The tensor. RAISES (ValueError): If a value is not finite."""
    if not torch.isfinite(tensor).all():
        dtype = str(tensor.dtype).removeprefix("torch.")
        raise ValueError(f"{name} holds values that are not finite in {dtype}")
    return tensor


def _shorten(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
