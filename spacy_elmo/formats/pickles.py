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
        size, n_bytes = path.stat().st_size, 0
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                n_bytes = sum(member.file_size for member in archive.infolist())
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            # PyTorch's own files are not compressed. It allows a bytearray, of any size.
            is_safe = n_bytes <= size and data.find(b"bytearray") < 0
        values = torch.load(path, map_location="cpu", weights_only=True) if is_safe else {}
        tensors = {str(name): value.detach() for name, value in values.items()}
        # A tensor may be larger than its storage, and many may share one.
        if not is_safe or sum(tensor.nbytes for tensor in tensors.values()) > 4 * size:
            raise ValueError("it declares more bytes than it has")
        return tensors
    except Exception as error:  # For a damaged pickle, any.
        reason = str(error) or type(error).__name__
        if isinstance(error, pickle.UnpicklingError):  # Its text advises to execute the pickle.
            reason = "its pickle is damaged, or does more than to declare tensors. Convert it to "
            reason += "safetensors where you trust it"
        raise ValueError(f"{path} is not read as tensors of PyTorch: {reason}") from error
