"""Index arrays on their way to the device."""

from __future__ import annotations

import numpy
import torch
from torch import Tensor


def to_device(array: numpy.ndarray, device: torch.device) -> Tensor:
    """Copy to a GPU without waiting for what it is doing, through memory that stays in place."""
    tensor = torch.from_numpy(array)
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
