"""Read tensors from the pickles that `torch.save` writes, which may be damaged or malicious.

A pickle is a program. PyTorch runs it with `weights_only=True`, which calls only its own functions
for tensors. Before version 2.6 that could be broken out of (CVE-2025-32434). It does not limit
memory, so that the program is read first: only what `torch.save` writes for named tensors is run.

There are two layouts: since PyTorch 1.6 a zip archive, without compression, of one pickle and a
file for each storage; before, five pickles and then the storages.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import pickletools
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

import torch
from torch import Tensor

from .archives import BoundedFile

# PyTorch's magic number, pickled.
LEGACY_START = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\x2e"
_N_LEGACY_PICKLES = 5
_MAX_BYTES = 4 << 20
_MAX_STEPS = 50_000  # A tensor takes about 30.
_MAX_BUILDS = 16  # Copy one dictionary into another. A state dict has one.
_FUNCTIONS = ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_parameter")
_STORAGES = ("Half", "BFloat16", "Float", "Double", "Char", "Byte", "Bool", "Short", "Int", "Long")
_DICTIONARY = "collections OrderedDict"
_GLOBALS = {
    _DICTIONARY,
    *(f"torch._utils {name}" for name in _FUNCTIONS),
    *(f"{module} {name}Storage" for module in ("torch", "torch.cuda") for name in _STORAGES),
}


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a file that `torch.save` wrote from a state dict.

    RETURNS (dict[str, Tensor]): The tensors by name, on the CPU. They may share memory.
    RAISES (ValueError): If PyTorch is older than 2.6; if the file is damaged, holds anything else
        than tensors by name, or declares more data than it has.
    """
    if torch.__version__ < "2.6":
        raise ValueError(
            f"{path} is a pickle, which PyTorch {torch.__version__} cannot read safely: install "
            "torch 2.6 or later"
        )
    size = path.stat().st_size
    with _name_file(path):
        _check_programs(path, size)
        values = torch.load(path, map_location="cpu", weights_only=True, mmap=False)
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


@contextlib.contextmanager
def _name_file(path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # Of a damaged pickle, any.
        reason = str(error) or type(error).__name__
        if isinstance(error, pickle.UnpicklingError):  # Its text advises to execute the pickle.
            reason = "its pickle is damaged, or does more than to declare tensors"
        raise ValueError(f"{path} is not read as tensors of PyTorch: {reason}") from error


def _check_programs(path: Path, size: int) -> None:
    """RAISES (Exception): If a pickle does more than to declare tensors that fit into the file."""
    with path.open("rb") as file:
        start = file.read(len(LEGACY_START))
        if start == LEGACY_START:
            file.seek(0)
            programs = io.BytesIO(file.read(_MAX_BYTES))
            for number in range(_N_LEGACY_PICKLES):
                # The first three hold the magic number, the version and sizes of C types.
                _check_program(programs, size if number == 3 else None)
        elif start.startswith(b"PK\x03\x04"):
            pieces: Any = BoundedFile(file, size)
            with zipfile.ZipFile(pieces) as archive:
                _check_program(io.BytesIO(_read_program(archive, size)), size)
        else:
            raise ValueError("its first bytes are not those of torch.save")


def _read_program(archive: zipfile.ZipFile, size: int) -> bytes:
    """RETURNS (bytes): The pickle of an archive.
    RAISES (ValueError): If the archive is not as `torch.save` writes it."""
    files = archive.infolist()
    programs = [file for file in files if file.filename.rpartition("/")[2] == "data.pkl"]
    if len(programs) != 1:
        raise ValueError(f"a zip archive with {len(programs)} files data.pkl, expected 1")
    if any(file.compress_type != zipfile.ZIP_STORED for file in files):
        raise ValueError("compressed, which torch.save never does")
    if sum(file.file_size for file in files) > size or programs[0].file_size > _MAX_BYTES:
        raise ValueError("the files inside are larger than those of torch.save can be")
    return archive.read(programs[0])


def _check_program(file: io.BytesIO, size: Optional[int]) -> None:
    """Read one pickle, without running it.

    size (Optional[int]): The limit of all numbers in it: no storage has more values than the file
        has bytes, and no tensor more than its storage.
    """
    n_steps = n_builds = 0
    dictionaries: set[object] = set()  # Where the class is remembered.
    is_dictionary = False
    for step, value, _ in pickletools.genops(file):
        name = step.name
        if name.endswith("BINPUT"):
            (dictionaries.add if is_dictionary else dictionaries.discard)(value)
            continue
        if is_dictionary and name != "EMPTY_TUPLE":
            raise ValueError("it makes copies of dictionaries")
        is_dictionary = value == _DICTIONARY or (name.endswith("BINGET") and value in dictionaries)
        if name == "GLOBAL" and value not in _GLOBALS:
            name = str(value)[:200].replace(" ", ".")
            raise ValueError(
                f"it uses {name}, which is no tensor and may execute code: refused. Convert it to "
                "safetensors where you trust it"
            )
        if isinstance(value, int) and size is not None and abs(value) > size:
            raise ValueError(f"it declares a size of {value:,}, but has {size:,} bytes")
        n_steps += 1
        n_builds += name == "BUILD"
        if n_steps > _MAX_STEPS or n_builds > _MAX_BUILDS:
            raise ValueError("its pickle is longer than that of tensors can be")
