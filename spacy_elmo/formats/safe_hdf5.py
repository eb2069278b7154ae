"""Read datasets of HDF5 files that may be damaged or malicious.

An HDF5 file may refer to other files for its data, and may declare more data than it holds: both
are refused. Links are not followed. Compressed data are refused, too: HDF5 does not limit what a
chunk inflates to, and trained weights are hardly compressible.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import h5py
import numpy


@contextlib.contextmanager
def _name_file(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError, LookupError, TypeError, ValueError) as error:  # Those of h5py.
        raise ValueError(f"{path} is not a complete HDF5 file: {error}") from error


@contextlib.contextmanager
def open_datasets(path: Path, groups: tuple[str, ...]) -> Iterator[dict[str, h5py.Dataset]]:
    """Open a file. Nothing but declarations is read.

    groups (tuple[str, ...]): What the names of the datasets start with. Others are left out.
    YIELDS (dict): The datasets by name.
    RAISES (ValueError): If the file is damaged.
    """
    datasets: dict[str, h5py.Dataset] = {}

    def visit(name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset) and name.startswith(groups):
            datasets[name] = item
            item.dtype  # noqa: B018  An error for a type that NumPy does not have.

    with _name_file(path):
        file = h5py.File(path, "r")
    with file:
        with _name_file(path):
            file.visititems(visit)
        yield datasets


def check_storage(path: Path, datasets: Mapping[str, h5py.Dataset]) -> None:
    """Check how datasets are stored. Their values are not read.

    RAISES (ValueError): If data are not in this file, compressed, not complete, or too large for
        the file.
    """
    declared = 0
    for name, item in datasets.items():
        with _name_file(path):
            is_elsewhere = item.is_virtual or item.external
            n_filters = item.id.get_create_plist().get_nfilters()
            n_bytes, n_written = item.nbytes, item.id.get_storage_size()
        if is_elsewhere:
            raise ValueError(
                f"{path}: the data of {name} are in other files (a virtual dataset, or external "
                "storage): refused. Copy them into this file where you trust it"
            )
        if n_filters:
            raise ValueError(
                f"{path}: {name} is stored with filters, such as compression, which are not read: "
                "where you trust the file, store it without them (h5repack -f NONE)"
            )
        if n_written < n_bytes:
            raise ValueError(
                f"{path}: {name} should take {n_bytes:,} bytes, but only {n_written:,} were written"
            )
        declared += n_bytes
    if declared > path.stat().st_size:
        raise ValueError(
            f"{path} has {path.stat().st_size:,} bytes, too few for the {declared:,} bytes of "
            "weights it declares"
        )


def read_values(path: Path, item: h5py.Dataset) -> numpy.ndarray:
    """RETURNS (ndarray): The data, in the byte order of this machine.
    RAISES (ValueError): If the file is damaged."""
    with _name_file(path):
        return numpy.asarray(item[()], dtype=item.dtype.newbyteorder("="))
