"""Rows for oneDNN, which compiles a kernel for every number of rows that it sees."""

from __future__ import annotations

from torch import Tensor


def round_up(n: int, per_power: int = 4) -> int:
    """Round a number of rows up to one of a few sizes: powers of two to 16, then four (or
    `per_power`) to each power of two, 16 apart or more. oneDNN compiles a kernel for every number
    of rows it sees, which takes some milliseconds, and keeps up to 1,024 of them, 0.6 MB each."""
    if n <= 16:
        return 1 << (n - 1).bit_length() if n else 0
    step = max(16, (1 << ((n - 1).bit_length() - 1)) // per_power)
    return -(-n // step) * step


def add_rows(x: Tensor) -> Tensor:
    """Add rows, whatever they hold, up to `round_up`: the memory behind x if there is enough, else
    a copy.

    x (Tensor): Shape (n, width).
    """
    n, width = x.shape
    rows = round_up(n)
    if rows == n:
        return x
    stride = x.stride(0)
    available = x.untyped_storage().nbytes() // x.element_size() - x.storage_offset()
    if (rows - 1) * stride + width <= available:
        return x.as_strided((rows, width), (stride, 1))
    longer = x.new_zeros(rows, width)
    longer[:n] = x
    return longer
