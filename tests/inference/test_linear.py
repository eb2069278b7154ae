"""Products with packed weights against the plain product."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from spacy_elmo.inference.packed import pack_linear

from ..conftest import needs_bfloat16

# Relative to values of about 4.
TOLERANCE = {"float32": 1e-5, "float16": 1e-2, "bfloat16": 0.05}
ROWS = (1, 2, 3, 15, 16, 17, 33, 64, 65, 100, 130)


@pytest.mark.parametrize("many_rows", [False, True])
@pytest.mark.parametrize(
    "precision",
    [pytest.param(x, marks=[needs_bfloat16] if x == "bfloat16" else []) for x in TOLERANCE],
)
@pytest.mark.parametrize("room", [0, 200], ids=["end of memory", "inside memory"])
def test_product_with_any_number_of_rows(precision: str, many_rows: bool, room: int):
    """Where the kernel wants more rows than there are, they may lie in memory that is not ours to
    read into the result or to write."""
    torch.manual_seed(0)
    weight, bias = torch.randn(40, 24) * 0.2, torch.randn(40)
    product = pack_linear(weight, bias, precision, many_rows=many_rows)
    for n in ROWS:
        memory = torch.randn(n + room, 24)
        # What follows the rows must not matter, not even if it is not a number.
        memory[n:] = torch.nan
        before = memory.clone()
        result = product(memory[:n])
        expected = F.linear(memory[:n], weight, bias)
        assert result.shape == (n, 40)
        assert (result - expected).abs().max() <= TOLERANCE[precision]
        assert torch.allclose(memory, before, equal_nan=True)
