"""HDF5 as bilm-tf's `dump_bilm_embeddings` and AllenNLP's command `elmo` write it: a dataset for
each row, named by its number, from 0, and `sentence_to_index`, JSON of the number of each text."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import h5py

from ...tools.records import Progress
from .npz import DEFAULTS, PART, REFUSED, read_arrays, read_part, read_texts, write_part

__all__ = ["DEFAULTS", "PART", "REFUSED", "join", "read_part", "write_part"]


def join(parts: Sequence[Path], out: Path, progress: Progress) -> None:
    """Write the output from all parts."""
    texts = list(read_texts(parts))
    # The HDF5 library crashes on a full disk. A dataset takes less than 1 KB besides its values.
    needed = sum(path.stat().st_size for path in parts) + (len(texts) << 10)
    if needed > shutil.disk_usage(out.parent).free:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(out))
    with h5py.File(out, "w") as file:
        for number, array in enumerate(read_arrays(parts, progress)):
            file[str(number)] = array
        numbers = json.dumps({text: str(number) for number, text in enumerate(texts)})
        file.create_dataset("sentence_to_index", data=[numbers], dtype=h5py.string_dtype())
