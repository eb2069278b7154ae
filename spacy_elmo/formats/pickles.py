"""Read tensors from the pickles that `torch.save` writes, which may be damaged or malicious.

A pickle is a program. PyTorch runs it with `weights_only=True`, which calls only its own functions
for tensors. It does not limit memory: compressed files, and more values than the file has, are
refused here.
"""

from __future__ import annotations

import mmap
import pickle
import zipfile
from pathlib import Path

import torch
from torch import Tensor

# PyTorch's magic number, pickled: files before version 1.6 begin with it, later ones are zip
# archives without compression.
LEGACY_START = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\x2e"


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a file that `torch.save` wrote from a state dict.

    RETURNS (dict[str, Tensor]): The tensors by name, on the CPU. They may share memory.
    RAISES (ValueError): If the file is damaged, holds anything else than tensors by name, or
        declares more data than it has.
    """
    size = path.stat().st_size
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                if sum(member.file_size for member in archive.infolist()) > size:
                    raise ValueError("the files inside are compressed, as torch.save's never are")
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if data.find(b"bytearray") >= 0:  # Of any size: PyTorch allows them.
                raise ValueError("it makes a bytearray, which is no tensor: refused")
        values = torch.load(path, map_location="cpu", weights_only=True, mmap=False)
    except Exception as error:  # For a damaged pickle, any.
        reason = str(error) or type(error).__name__
        if isinstance(error, pickle.UnpicklingError):  # Its text advises to execute the pickle.
            reason = (
                "its pickle is damaged, or does more than to declare tensors. Convert it to "
                "safetensors where you trust it"
            )
        raise ValueError(f"{path} is not read as tensors of PyTorch: {reason}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} holds no tensors by name, but a {type(values).__name__}")
    for name, value in values.items():
        if not (isinstance(name, str) and isinstance(value, Tensor)):
            what = f"{type(name).__name__} to {type(value).__name__}"
            raise ValueError(f"{path} must hold tensors by name, found {what}")
    # A tensor may be larger than its storage, and many may share one.
    declared = sum(value.nbytes for value in values.values())
    if declared > 4 * size:
        raise ValueError(
            f"{path} has {size:,} bytes, too few for the {declared:,} bytes of tensors it declares"
        )
    return {name: value.detach() for name, value in values.items()}
