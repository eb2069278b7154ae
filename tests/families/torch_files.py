"""State dicts as PyTorch of each age writes them."""

from __future__ import annotations

import io
import pickle
import pickletools
from collections import OrderedDict
from collections.abc import Mapping

import torch
from numpy import ndarray


def state_dict_bytes(
    weights: Mapping[str, ndarray], *, legacy: bool = True, cuda: bool = False
) -> bytes:
    """A state dict as `torch.save` writes that of a module.

    legacy (bool): The layout of PyTorch before 1.6 in place of a zip.
    cuda (bool): As if saved on the first GPU; only with `legacy`.
    """
    state = OrderedDict((name, torch.from_numpy(array.copy())) for name, array in weights.items())
    modules = {name.rpartition(".")[0] for name in weights} | {""}
    state._metadata = OrderedDict((name, {"version": 1}) for name in sorted(modules))  # type: ignore[attr-defined]
    file = io.BytesIO()
    torch.save(state, file, _use_new_zipfile_serialization=not legacy)
    return on_cuda(file.getvalue()) if cuda else file.getvalue()


def on_cuda(content: bytes) -> bytes:
    """Name CUDA storages in a file of the legacy layout: magic, protocol, system, object, keys."""
    end = 0
    for _ in range(4):
        start, end = end, end + pickle_length(content[end:])
    pickled = content[start:end].replace(b"ctorch\nFloatStorage\n", b"ctorch.cuda\nFloatStorage\n")
    pickled = pickled.replace(unicode_opcode("cpu"), unicode_opcode("cuda:0"))
    return content[:start] + pickled + content[end:]


def pickle_length(content: bytes) -> int:
    """Length of the pickle that `content` begins with."""
    stop = [place for opcode, _, place in pickletools.genops(content) if opcode.name == "STOP"]
    return (stop[-1] or 0) + 1


def unicode_opcode(text: str) -> bytes:
    return pickle.BINUNICODE + len(text).to_bytes(4, "little") + text.encode()
