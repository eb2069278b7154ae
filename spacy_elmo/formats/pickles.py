"""Read tensors from the pickles that `torch.save` writes, which may be damaged or malicious.

A pickle is a program. PyTorch runs it with `weights_only=True`, which calls only its own functions
for tensors. It does not limit memory: what may take more than the file has is refused here.
"""

from __future__ import annotations

import mmap
import pickle
import zipfile
from pathlib import Path

import torch
from torch import Tensor


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a file that `torch.save` wrote from a state dict.

    RETURNS (dict[str, Tensor]): The tensors by name, on the CPU. They may share memory.
    RAISES (ValueError): If the file is missing or damaged, holds anything else than tensors by
        name, or declares more data than it has.
    """
    try:
        return _read(path)
    except Exception as error:  # For a damaged pickle, any.
        reason = str(error) or type(error).__name__
        if isinstance(error, pickle.UnpicklingError):  # Its text advises to execute the pickle.
            reason = "its pickle is damaged, or does more than to declare tensors. Convert it to "
            reason += "safetensors where you trust it"
        raise ValueError(f"{path} is not read as tensors of PyTorch: {reason}") from error


def _read(path: Path) -> dict[str, Tensor]:
    size, n_unpacked = path.stat().st_size, 0
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            n_unpacked = sum(member.file_size for member in archive.infolist())
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        # PyTorch's own files are not compressed. It allows a bytearray, of any size.
        if n_unpacked > size or data.find(b"bytearray") >= 0:
            raise ValueError("it is compressed, or makes a bytearray: refused")
    values = torch.load(path, map_location="cpu", weights_only=True, mmap=False)
    if not all(isinstance(x, str) and isinstance(values[x], Tensor) for x in values):
        raise ValueError("it holds something else than tensors by name")
    # A tensor may be larger than its storage, and many may share one.
    if (n_declared := sum(value.nbytes for value in values.values())) > 4 * size:
        raise ValueError(f"{size:,} bytes are too few for the {n_declared:,} bytes it declares")
    return {name: value.detach() for name, value in values.items()}
