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
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Optional

import h5py
import numpy

# Declared bytes per byte of the file. Trained weights are hardly compressible.
_MAX_COMPRESSION = 16
_FILTERS = {
    h5py.h5z.FILTER_DEFLATE: "deflate",
    h5py.h5z.FILTER_SHUFFLE: "shuffle",
    h5py.h5z.FILTER_FLETCHER32: "fletcher32",
    h5py.h5z.FILTER_SZIP: "szip",
    h5py.h5z.FILTER_NBIT: "n-bit",
    h5py.h5z.FILTER_SCALEOFFSET: "scale-offset",
    h5py.h5z.FILTER_LZF: "lzf",
}
_ACCEPTED_FILTERS = Counter(("shuffle", "deflate", "fletcher32"))  # Each once.
_CHECKSUM_BYTES = 4  # Of fletcher32.


@contextlib.contextmanager
def _name_file(path: Path) -> Iterator[None]:
    try:
        yield
    # All of these are raised by h5py, except zlib's.
    except (OSError, RuntimeError, LookupError, TypeError, ValueError, zlib.error) as error:
        raise ValueError(f"{path} is not a complete HDF5 file: {error}") from error


class Dataset(NamedTuple):
    """What a file declares about one of its datasets."""

    item: h5py.Dataset
    shape: Optional[tuple[int, ...]]  # None if it has no values.
    dtype: numpy.dtype
    is_elsewhere: bool  # Whether its values are in other files.
    n_declared: int  # Bytes of all chunks, uncompressed.
    n_written: int  # Bytes in this file, compressed or not.
    filters: tuple[str, ...]  # Names, in the order in which they were applied.

    @classmethod
    def describe(cls, item: h5py.Dataset) -> Dataset:
        shape = item.shape or ()
        chunks = item.chunks or (1,) * len(shape)
        whole = (-(-size // chunk) * chunk for size, chunk in zip(shape, chunks))
        created = item.id.get_create_plist()
        codes = [created.get_filter(i)[0] for i in range(created.get_nfilters())]
        return cls(
            item,
            item.shape,
            item.dtype,
            bool(item.is_virtual or item.external),
            item.dtype.itemsize * math.prod(whole),
            item.id.get_storage_size(),
            tuple(_FILTERS.get(code, f"number {code}") for code in codes),
        )


@contextlib.contextmanager
def open_datasets(path: Path, groups: tuple[str, ...]) -> Iterator[dict[str, Dataset]]:
    """Open a file. Nothing but declarations is read.

    groups (tuple[str, ...]): What the names of the datasets start with. Others are left out.
    YIELDS (dict): The datasets by name.
    RAISES (ValueError): If the file is damaged.
    """
    datasets: dict[str, Dataset] = {}

    def visit(name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset) and name.startswith(groups):
            datasets[name] = Dataset.describe(item)

    with _name_file(path):
        file = h5py.File(path, "r")
    with file:
        with _name_file(path):
            file.visititems(visit)
        yield datasets


def check_dataset(path: Path, name: str, dataset: Dataset) -> None:
    """RAISES (ValueError): If the data are not in this file, or stored in a way that is refused."""
    if dataset.is_elsewhere:
        raise ValueError(
            f"{path}: the data of {name} are in other files (a virtual dataset, or external "
            "storage): refused. Copy them into this file where you trust it"
        )
    if Counter(dataset.filters) - _ACCEPTED_FILTERS:
        raise ValueError(
            f"{path}: {name} is stored with the HDF5 filters {', '.join(dataset.filters)}, but "
            f"only {', '.join(_ACCEPTED_FILTERS)} are read, each at most once: where you trust the "
            "file, store it without filters (h5repack -f NONE)"
        )


def check_sizes(path: Path, datasets: Mapping[str, Dataset]) -> None:
    """RAISES (ValueError): If datasets are not complete, or too large for the file."""
    for name, x in datasets.items():
        if x.n_written < x.n_declared and not x.filters:
            raise ValueError(
                f"{path}: {name} should take {x.n_declared:,} bytes, but only {x.n_written:,} were "
                "written"
            )
    size = path.stat().st_size
    declared = sum(x.n_declared for x in datasets.values())
    written = sum(x.n_written for x in datasets.values())
    if declared > _MAX_COMPRESSION * size or written > size:
        raise ValueError(
            f"{path} has {size:,} bytes, too few for the {declared:,} bytes of weights it declares "
            f"(stored in {written:,})"
        )


def read_values(path: Path, name: str, dataset: Dataset) -> numpy.ndarray:
    """RETURNS (ndarray): The data, in the byte order of this machine.
    RAISES (ValueError): If the file is damaged."""
    with _name_file(path):
        if dataset.filters:
            _check_chunks(name, dataset)
        return numpy.asarray(dataset.item[()], dtype=dataset.dtype.newbyteorder("="))


def _check_chunks(name: str, stored: Dataset) -> None:
    """RAISES (ValueError, OSError, zlib.error): If a chunk was not written, or does not inflate to
    just the bytes of a chunk."""
    item = stored.item
    size = stored.dtype.itemsize * math.prod(item.chunks)
    for region in item.iter_chunks():
        skipped, data = item.id.read_direct_chunk(tuple(x.start for x in region))
        for number, kind in reversed(tuple(enumerate(stored.filters))):
            if skipped >> number & 1:
                continue
            if kind == "deflate":
                data = zlib.decompressobj().decompress(data, size + _CHECKSUM_BYTES + 1)
            elif kind == "fletcher32":
                data = data[:-_CHECKSUM_BYTES]
        if len(data) != size:
            raise ValueError(f"a chunk of {name} does not have its {size:,} bytes")
