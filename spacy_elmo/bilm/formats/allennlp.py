"""The published format: `options.json` and an HDF5 file, as bilm-tf and AllenNLP read and write.

Weights are stored as (input, output). The character table has 261 rows, without the masking row
that the models add at run time; files that already hold that row, as zeros, have 262.

An HDF5 file may name other files as the place of its data, and may declare more data than it
holds: both are refused. Links are not followed. What the file declares is compared with the options
before anything is read. HDF5 does not bound what a compressed chunk grows to, and not all of its
filters check their input: few filters are accepted, and each chunk is inflated with a limit before
HDF5 reads it.
"""

from __future__ import annotations

import contextlib
import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Optional

import h5py
import numpy
import torch

from ...files import atomic_folder
from ..config import N_CHARACTERS, BiLMConfig
from ..model import BiLM
from .format import Format
from .options import OPTIONS, read_files_beside, write_options
from .parameters import check_names, check_tensor, empty_model, stored_tensors, to_float32

WEIGHTS = "weights.hdf5"
_CHARACTERS = "char_embed"
# Other groups, such as the softmax of a training dump, are ignored.
_OUR_GROUPS = ("char_embed", "embedding", "CNN", "RNN_")
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


@dataclass(frozen=True)
class Layout:
    """A two-way change of axes between the file and the model."""

    to_model: Callable[[numpy.ndarray], numpy.ndarray]
    to_file: Callable[[numpy.ndarray], numpy.ndarray]


SAME = Layout(lambda x: x, lambda x: x)
TRANSPOSED = Layout(numpy.transpose, numpy.transpose)
# (1, width, dim, number) <-> (number, dim, width)
CONVOLUTION = Layout(lambda x: x[0].transpose(2, 1, 0), lambda x: x.transpose(2, 1, 0)[None])
# The model's first row is the masking row.
MASKED = Layout(
    lambda x: numpy.concatenate((numpy.zeros_like(x[:1]), x)),
    lambda x: x[1:],
)


def name_map(config: BiLMConfig) -> dict[str, tuple[str, Layout]]:
    """RETURNS (dict): For each dataset of the file, the model's parameter and the layout."""
    names: dict[str, tuple[str, Layout]] = {}
    if config.char_cnn is None:
        names["embedding"] = "token_encoder.embedding.weight", SAME
    else:
        names[_CHARACTERS] = "token_encoder.char_embedding.weight", MASKED
        for i in range(len(config.char_cnn.filters)):
            conv = f"token_encoder.convolutions.{i}"
            names[f"CNN/W_cnn_{i}"] = f"{conv}.weight", CONVOLUTION
            names[f"CNN/b_cnn_{i}"] = f"{conv}.bias", SAME
        for i in range(config.char_cnn.n_highway):
            for gate in ("carry", "transform"):
                linear = f"token_encoder.highways.{i}.{gate}"
                names[f"CNN_high_{i}/W_{gate}"] = f"{linear}.weight", TRANSPOSED
                names[f"CNN_high_{i}/b_{gate}"] = f"{linear}.bias", SAME
        if config.has_char_projection:
            names["CNN_proj/W_proj"] = "token_encoder.projection.weight", TRANSPOSED
            names["CNN_proj/b_proj"] = "token_encoder.projection.bias", SAME
    for number, direction in enumerate(("forward_layers", "backward_layers")):
        for i in range(config.lstm.n_layers):
            cell = f"RNN_{number}/RNN/MultiRNNCell/Cell{i}/LSTMCell"
            layer = f"lstm.{direction}.{i}"
            names[f"{cell}/W_0"] = f"{layer}.gate_weight", TRANSPOSED
            names[f"{cell}/B"] = f"{layer}.gate_bias", SAME
            if config.lstm.has_projection:
                names[f"{cell}/W_P_0"] = f"{layer}.projection_weight", TRANSPOSED
    return names


def detect(path: Path, start: bytes) -> bool:
    """RETURNS (bool): Whether this is an HDF5 file."""
    return start.startswith(b"\x89HDF\r\n\x1a\n")


def read(path: Path, options: Optional[Path] = None) -> BiLM:
    """Read an HDF5 file of weights.

    RAISES (ValueError): If the file is damaged or contradicts the options. The message names the
        dataset, the expected and the actual shape.
    """
    config, vocabulary = read_files_beside(path, options)
    if config is None:
        raise ValueError(
            f"no options for {path}: put {OPTIONS} (or the published *_options.json) beside it"
        )
    with _name_file(path):
        file = h5py.File(path, "r")
    with file:
        with _name_file(path):
            datasets = _list_datasets(file)
        if "RNN_0/RNN/LSTMCell/W_0" in datasets:
            raise ValueError(
                f"{path} holds a single LSTM layer per direction, under names of bilm-tf that are "
                "not read yet: with h5py, move RNN_0/RNN/LSTMCell to "
                "RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell, and RNN_1/RNN/LSTMCell likewise"
            )
        config = _with_projection_as_stored(config, datasets)
        names = name_map(config)
        check_names(path, names, datasets)
        model = empty_model(config, vocabulary, path)
        _check_datasets(path, names, datasets, dict(model.named_parameters()))
        values = {}
        for dataset, (name, layout) in names.items():
            array = layout.to_model(_read_values(path, dataset, datasets[dataset]))
            tensor = torch.from_numpy(numpy.ascontiguousarray(array))
            values[name] = to_float32(path, dataset, tensor)
    model.load_state_dict(values, assign=True)
    return model


def write(model: BiLM, folder: Path, *, half: bool = False) -> None:
    """Write a folder of `options.json`, `weights.hdf5` and, for word input, `vocab.txt`.
    An existing folder is replaced when the new one is complete.

    half (bool): Write float16. The default is float32, which all other ELMo software reads.
    """
    tensors = stored_tensors(model, torch.float16 if half else torch.float32)
    with atomic_folder(folder) as new:
        with h5py.File(new / WEIGHTS, "w") as file:
            for dataset, (name, layout) in name_map(model.config).items():
                file[dataset] = layout.to_file(tensors[name].numpy())
        write_options(model.config, model.vocabulary, new)


@contextlib.contextmanager
def _name_file(path: Path) -> Iterator[None]:
    try:
        yield
    # All of these are raised by h5py, except zlib's.
    except (OSError, RuntimeError, LookupError, TypeError, ValueError, zlib.error) as error:
        raise ValueError(f"{path} is not a complete HDF5 file: {error}") from error


class _Dataset(NamedTuple):
    """What a file declares about one of its datasets."""

    item: h5py.Dataset
    shape: Optional[tuple[int, ...]]  # None if it has no values.
    dtype: numpy.dtype
    is_elsewhere: bool  # Whether its values are in other files.
    n_declared: int  # Bytes of all chunks, uncompressed.
    n_written: int  # Bytes in this file, compressed or not.
    filters: tuple[str, ...]  # Names, in the order in which they were applied.

    @classmethod
    def describe(cls, item: h5py.Dataset) -> _Dataset:
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


def _list_datasets(file: h5py.File) -> dict[str, _Dataset]:
    datasets: dict[str, _Dataset] = {}

    def visit(name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset) and name.startswith(_OUR_GROUPS):
            datasets[name] = _Dataset.describe(item)

    file.visititems(visit)
    return datasets


def _check_datasets(
    path: Path,
    names: Mapping[str, tuple[str, Layout]],
    datasets: Mapping[str, _Dataset],
    parameters: Mapping[str, torch.Tensor],
) -> None:
    """RAISES (ValueError): If the datasets are not what the options require, or not in this file.
    Nothing but their declarations is read."""
    for dataset, (name, layout) in names.items():
        # An array of this shape that takes no memory.
        empty = numpy.broadcast_to(numpy.False_, parameters[name].shape)
        _check_dataset(path, dataset, layout.to_file(empty).shape, datasets[dataset])
    size = path.stat().st_size
    declared = sum(x.n_declared for x in datasets.values())
    written = sum(x.n_written for x in datasets.values())
    if declared > _MAX_COMPRESSION * size or written > size:
        raise ValueError(
            f"{path} has {size:,} bytes, too few for the {declared:,} bytes of weights it declares "
            f"(stored in {written:,})"
        )


def _check_dataset(path: Path, name: str, expected: tuple[int, ...], stored: _Dataset) -> None:
    if stored.is_elsewhere:
        raise ValueError(
            f"{path}: the data of {name} are in other files (a virtual dataset, or external "
            "storage): refused. Copy them into this file where you trust it"
        )
    if Counter(stored.filters) - _ACCEPTED_FILTERS:
        raise ValueError(
            f"{path}: {name} is stored with the HDF5 filters {', '.join(stored.filters)}, but only "
            f"{', '.join(_ACCEPTED_FILTERS)} are read, each at most once: where you trust the "
            "file, store it without filters (h5repack -f NONE)"
        )
    shape = stored.shape
    if name == _CHARACTERS and shape and shape[0] == N_CHARACTERS:
        shape = (N_CHARACTERS - 1, *shape[1:])
    check_tensor(path, name, expected, shape, stored.dtype.name)
    if stored.n_written < stored.n_declared and not stored.filters:
        raise ValueError(
            f"{path}: {name} should take {stored.n_declared:,} bytes, but only "
            f"{stored.n_written:,} were written"
        )


def _read_values(path: Path, name: str, stored: _Dataset) -> numpy.ndarray:
    with _name_file(path):
        if stored.filters:
            _check_chunks(name, stored)
        # Big-endian numbers become native ones here.
        array = numpy.asarray(stored.item[()], dtype=stored.dtype.newbyteorder("="))
    if name == _CHARACTERS and len(array) == N_CHARACTERS:
        # 262 rows: a masking row of zeros in front, or, in a model trained with n_characters = 262,
        # a last row that no character uses.
        return array[:-1] if array[0].any() else array[1:]
    return array


def _check_chunks(name: str, stored: _Dataset) -> None:
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


def _with_projection_as_stored(config: BiLMConfig, datasets: Mapping[str, _Dataset]) -> BiLMConfig:
    """The options do not say whether a projection ends the character encoder. bilm-tf leaves it
    out where widths agree, AllenNLP never does: follow the file."""
    if config.char_cnn is None or config.has_char_projection or "CNN_proj/W_proj" not in datasets:
        return config
    return replace(config, char_cnn=replace(config.char_cnn, projection=True))


FORMAT = Format(
    name="hdf5",
    description="the format of AllenNLP and bilm-tf",
    suffixes=(".hdf5", ".h5"),
    detect=detect,
    read=read,
    write=write,
)
