"""Convert named tensors to a model and back. Errors name what does not match."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Optional

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..bilm.config import BiLMConfig
from ..bilm.model import BiLM


class _NoInitialization(TorchFunctionMode):
    """A context in which the functions of `torch.nn.init` do nothing. On the meta device some of
    them import PyTorch's compiler, which takes longer than to read a model."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Optional[dict] = None
    ) -> Any:
        if getattr(func, "__module__", None) == nn.init.__name__:
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


def empty_model(config: BiLMConfig, vocabulary: Optional[Sequence[str]]) -> BiLM:
    """RETURNS (BiLM): A model whose parameters have shapes but no memory."""
    with torch.device("meta"), _NoInitialization():
        return BiLM(config, vocabulary)


def with_projections(config: BiLMConfig, encoder: bool = True, lstm: bool = True) -> BiLMConfig:
    """RETURNS (BiLMConfig): The options with the projections that a file has at the end of the
    character encoder and of the LSTM layers, even where they change no width."""
    if encoder and config.char_cnn is not None and not config.has_char_projection:
        config = replace(config, char_cnn=replace(config.char_cnn, projection=True))
    if lstm and not config.lstm.has_projection:
        config = replace(config, lstm=replace(config.lstm, projection=True))
    return config


def fill(model: BiLM, values: Mapping[str, Tensor], absent: Collection[str] = ()) -> None:
    """Give a model its parameters.

    absent (Collection[str]): Names of parameters that it has already.
    RAISES (ValueError): If a name or a shape is another one.
    """
    expected = {x: p.shape for x, p in model.named_parameters() if x not in absent}
    found = {name: value.shape for name, value in values.items()}
    differ = [x for x in sorted(expected | found) if expected.get(x) != found.get(x)]
    for name in differ:
        asked, held = (tuple(x[name]) if name in x else "nothing" for x in (expected, found))
        raise ValueError(
            f"the options and the weights differ in {len(differ)} tensors. Of {name}, the options "
            f"make {asked}, and the weights hold {held}"
        )
    model.load_state_dict(values, strict=False, assign=True)


def to_float32(name: str, tensor: Tensor) -> Tensor:
    """RAISES (ValueError): If it does not hold weights, or a value is not finite in float32."""
    return check_finite(name, tensor.to(torch.float32) if tensor.is_floating_point() else tensor)


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
    return all(torch.equal(x.half().float(), x) for x in model.parameters())


@torch.no_grad()
def round_to_half(model: BiLM) -> None:
    """Round all weights to float16, in place. They remain float32 tensors.
    RAISES (ValueError): If a weight is not finite in float16."""
    for name, parameter in model.named_parameters():
        parameter.copy_(check_finite(f"cannot round to float16: {name}", parameter.half()))


def check_finite(name: str, tensor: Tensor) -> Tensor:
    """RETURNS (Tensor): The tensor. RAISES (ValueError): If it is no float, or not finite."""
    if not (tensor.is_floating_point() and torch.isfinite(tensor).all()):
        dtype = str(tensor.dtype).removeprefix("torch.")
        raise ValueError(f"{name} holds values that are no weights, or not finite in {dtype}")
    return tensor
