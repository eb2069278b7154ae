"""Refuses gradients that are not finite, without waiting for a GPU at every batch."""

from __future__ import annotations

from math import isfinite
from typing import Any

from .not_serialized import not_serialized

# Gradients between two checks on a GPU.
_CHECK_EVERY = 100


@not_serialized
class GradientCheck:
    """Refuses gradients that are NaN or infinite.

    On a GPU, reading a number waits for everything that is computed before it. There, only every
    hundredth gradient is checked, by the sum of all since the last check.
    """

    def __init__(self) -> None:
        self._sum: Any = 0.0
        self._n_values = 0

    def add(self, value: Any, name: str, *, sync: bool = True) -> float:
        """Check a gradient.

        value (Any): A number that is not finite if the gradient is not.
        name (str): What to call the gradients in the error.
        sync (bool): Check at once, also where that waits for the device.
        RETURNS (float): The sum of the values since the last check; 0 if this call checked nothing.
        RAISES (ValueError): If a gradient since the last check is not finite.
        """
        self._sum = self._sum + value  # Once it is not finite, it never is again.
        self._n_values += 1
        if not sync and self._n_values < _CHECK_EVERY:
            return 0.0
        total = float(self._sum)
        self._sum, self._n_values = 0.0, 0
        if not isfinite(total):
            raise ValueError(
                f"{name} is NaN or infinite: lower the learning rate, or clip gradients "
                "(training.optimizer.grad_clip)"
            )
        return total
