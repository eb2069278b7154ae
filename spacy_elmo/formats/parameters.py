"""Convert named tensors to a model and back. Errors name what does not match."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Optional

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..bilm.config import BiLMConfig
from ..bilm.forking import no_fork
from ..bilm.int8 import Int8Weight
from ..bilm.model import BiLM, LSTMLayer

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
    """A model whose parameters have shapes but no memory.

    source (object): What the weights are from, for the message.
    RAISES (ValueError): If configuration and vocabulary are not of a model.
    """
    try:
        with torch.device("meta"), _NoInitialization():
            return BiLM(config, vocabulary)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error


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
        if dtype not in _DTYPES and name not in int8:
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
    return {name: stored_tensor(name, x, dtype) for name, x in model.named_parameters()}


def stored_tensor(name: str, weight: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """RETURNS (Tensor): The weight on the CPU.
    RAISES (ValueError): If it is not finite in this type."""
    tensor = weight.detach().to("cpu", dtype).contiguous()
    _check_finite(f"not saved: {name}", tensor)
    return tensor


def int8_widths(model: BiLM) -> dict[str, tuple[int, ...]]:
    """RETURNS (dict): For each parameter that the precision int8 rounds to 8 bits, the columns of
    each of its products."""
    widths: dict[str, tuple[int, ...]] = {}
    for name, module in model.named_modules():
        if isinstance(module, LSTMLayer):
            widths[f"{name}.gate_weight"] = module.widths
            if module.projection_weight is not None:
                widths[f"{name}.projection_weight"] = (module.projection_weight.shape[1],)
        elif isinstance(module, nn.Linear):
            widths[f"{name}.weight"] = (module.in_features,)
    return widths


def as_int8_if_exact(tensor: Tensor, widths: Sequence[int]) -> Tensor | Int8Weight:
    """RETURNS (Tensor | Int8Weight): The values in 8 bits if that loses nothing, else the tensor
    itself."""
    # Rows are rounded one by one: a few of them show that nearly all others are not exact.
    for rows in (tensor[:: len(tensor) // 16 + 1], tensor):
        int8 = Int8Weight.quantize(rows, widths)
        if not torch.equal(int8.dequantize(), rows):
            return tensor
    return int8


def as_half_if_exact(tensor: Tensor) -> Tensor:
    """RETURNS (Tensor): The values as float16 if that loses nothing, else the tensor itself."""
    half = tensor.half()
    return half if torch.equal(half.float(), tensor) else tensor


def fits_half(model: BiLM) -> bool:
    """RETURNS (bool): Whether all weights are exact in float16."""
    parameters = [parameter.detach() for parameter in model.parameters()]
    return all(as_half_if_exact(tensor).dtype == torch.float16 for tensor in parameters)


def fits_int8(model: BiLM) -> bool:
    """RETURNS (bool): Whether the weights are those that the precision int8 computes with."""
    parameters, widths = dict(model.named_parameters()), int8_widths(model)
    weights = (as_int8_if_exact(parameters[name].detach(), x) for name, x in widths.items())
    return all(isinstance(weight, Int8Weight) for weight in weights)


@torch.no_grad()
def round_to_int8(model: BiLM) -> None:
    """Round all weights to those that the precision int8 computes with, in place: convolutions to
    float16, the other products to 8 bits. Embeddings and biases remain as they are. All remain
    float32 tensors, which the safetensors format stores in 8 and in 16 bits.

    RAISES (ValueError): If a convolution is not finite in float16.
    """
    widths = int8_widths(model)
    for name, parameter in model.named_parameters():
        if name in widths:
            parameter.copy_(Int8Weight.quantize(parameter, widths[name]).dequantize())
        elif parameter.dim() == 3:
            half = parameter.half()
            _check_finite(f"cannot round to float16: {name}", half)
            parameter.copy_(half)


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
