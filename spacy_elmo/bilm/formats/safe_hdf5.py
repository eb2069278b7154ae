"""Read datasets of HDF5 files that may be damaged or malicious.

An HDF5 file may refer to other files for its data, and may declare more data than it holds: both
are refused. Links are not followed. What a file declares can be checked before its data are read.
HDF5 does not limit the size of an inflated chunk, and not all of its filters check their input: few
filters are accepted, and each chunk is inflated with a limit before HDF5 reads it.
"""

from __future__ import annotations

import contextlib
import math
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import h5py
import numpy

# Declared bytes per byte of the file. Trained weights are hardly compressible.
_MAX_COMPRESSION = 16
_FILTERS = {
    h5py.h5z.FILTER_SHUFFLE: "shuffle",
    h5py.h5z.FILTER_DEFLATE: "deflate",
    h5py.h5z.FILTER_FLETCHER32: "fletcher32",
    h5py.h5z.FILTER_SZIP: "szip",
    h5py.h5z.FILTER_NBIT: "n-bit",
    h5py.h5z.FILTER_SCALEOFFSET: "scale-offset",
    h5py.h5z.FILTER_LZF: "lzf",
}
_ACCEPTED_FILTERS = ("shuffle", "deflate", "fletcher32")
_CHECKSUM_BYTES = 4  # Of fletcher32.


@contextlib.contextmanager
def _name_file(path: Path) -> Iterator[None]:
    try:
        yield
    # All of these are raised by h5py, except zlib's.
    except (OSError, RuntimeError, LookupError, TypeError, ValueError, zlib.error) as error:
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

    RAISES (ValueError): If data are not in this file, stored in a way that is refused, not
        complete, or too large for the file.
    """
    declared = written = 0
    for name, item in datasets.items():
        with _name_file(path):
            is_elsewhere, filters = item.is_virtual or item.external, _filters(item)
            # HDF5 stores whole chunks.
            sides = zip(item.shape, item.chunks or item.shape)
            n_values = math.prod(-(-n // chunk) * chunk for n, chunk in sides)
            n_declared = n_values * item.dtype.itemsize
            n_written = item.id.get_storage_size()
        if is_elsewhere:
            raise ValueError(
                f"{path}: the data of {name} are in other files (a virtual dataset, or external "
                "storage): refused. Copy them into this file where you trust it"
            )
        if len(set(filters)) < len(filters) or not set(filters) <= set(_ACCEPTED_FILTERS):
            raise ValueError(
                f"{path}: {name} is stored with the HDF5 filters {', '.join(filters)}, but only "
                f"{', '.join(_ACCEPTED_FILTERS)} are read, each at most once: where you trust the "
                "file, store it without filters (h5repack -f NONE)"
            )
        if n_written < n_declared and not filters:
            raise ValueError(
                f"{path}: {name} should take {n_declared:,} bytes, but only {n_written:,} were "
                "written"
            )
        declared += n_declared
        written += n_written
    size = path.stat().st_size
    if declared > _MAX_COMPRESSION * size or written > size:
        raise ValueError(
            f"{path} has {size:,} bytes, too few for the {declared:,} bytes of weights it declares "
            f"(stored in {written:,})"
        )


def read_values(path: Path, name: str, item: h5py.Dataset) -> numpy.ndarray:
    """RETURNS (ndarray): The data, in the byte order of this machine.
    RAISES (ValueError): If the file is damaged."""
    with _name_file(path):
        if filters := _filters(item):
            _check_chunks(name, item, filters)
        return numpy.asarray(item[()], dtype=item.dtype.newbyteorder("="))


def _filters(item: h5py.Dataset) -> list[str]:
    """RETURNS (list): The names of a dataset's filters, in the order in which they were applied."""
    created = item.id.get_create_plist()
    codes = [created.get_filter(i)[0] for i in range(created.get_nfilters())]
    return [_FILTERS.get(code, f"number {code}") for code in codes]


def _check_chunks(name: str, item: h5py.Dataset, filters: list[str]) -> None:
    """RAISES (ValueError, OSError, zlib.error): If a chunk was not written, or does not inflate to
    just the bytes of a chunk."""
    size = item.dtype.itemsize * math.prod(item.chunks)
    for region in item.iter_chunks():
        skipped, data = item.id.read_direct_chunk(tuple(x.start for x in region))
        for number, kind in reversed(tuple(enumerate(filters))):
            if skipped >> number & 1:
                continue
            if kind == "deflate":
                data = zlib.decompressobj().decompress(data, size + _CHECKSUM_BYTES + 1)
            elif kind == "fletcher32":
                data = data[:-_CHECKSUM_BYTES]
        if len(data) != size:
            raise ValueError(f"a chunk of {name} does not have its {size:,} bytes")
