"""Hostile files of every family.

Each is a whole model in which one thing is hostile: a reader that does not mind it either succeeds,
or does what the file wants. What it wants is harmless: to create a marker (a path that the caller
chooses), to be read through a link, or to use a few gigabytes.
"""

from __future__ import annotations

import gzip
import io
import pickle
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy
import torch

from . import allennlp_archive, bilm_tf, manylangs, one_layer_hdf5, tensor_bundle
from .network import Architecture, Weights
from .torch_files import pickle_length, state_dict_bytes, unicode_opcode

STEP = 1 << 24
STEPS = 96  # A bomb unpacks to 1.5 gigabytes.


def model(family, seed: int = 0, **settings) -> tuple[Architecture, Weights]:  # type: ignore[no-untyped-def]
    """A small model of a family."""
    rng = numpy.random.default_rng(seed)
    architecture = family.random_architecture(rng, **settings)
    return architecture, family.random_weights(architecture, rng)


# Pickles. All call os.mkdir, which takes one argument and leaves nothing else behind.

MKDIR = b"cos\nmkdir\n"


def _reduce(marker: bytes) -> bytes:
    return MKDIR + marker + pickle.TUPLE1 + pickle.REDUCE


def _instance(marker: bytes) -> bytes:
    return pickle.MARK + marker + b"ios\nmkdir\n"


def _object(marker: bytes) -> bytes:
    return pickle.MARK + MKDIR + marker + pickle.OBJ


def _build(marker: bytes) -> bytes:
    """An object whose state gives it a method that sets the state."""
    new = b"ctypes\nSimpleNamespace\n" + pickle.EMPTY_TUPLE + pickle.REDUCE
    method = pickle.EMPTY_DICT + unicode_opcode("__setstate__") + MKDIR + pickle.SETITEM
    return new + method + pickle.BUILD + marker + pickle.BUILD


def _persistent_id(marker: bytes) -> bytes:
    """A storage whose key is computed."""
    storage = unicode_opcode("storage") + b"ctorch\nFloatStorage\n" + _reduce(marker)
    numbers = unicode_opcode("cpu") + pickle.BININT1 + b"\x00" + pickle.NONE
    return pickle.MARK + storage + numbers + pickle.TUPLE + pickle.BINPERSID


def _nested(marker: bytes) -> bytes:
    """A storage that PyTorch itself loads from bytes, which hold another pickle."""
    content = add_to_legacy(state_dict_bytes({}), _reduce(marker))
    data = pickle.BINBYTES + struct.pack("<I", len(content)) + content
    return b"ctorch.storage\n_load_from_bytes\n" + data + pickle.TUPLE1 + pickle.REDUCE


def _attribute(marker: bytes) -> bytes:
    """The function is looked up by another function that looks harmless."""
    name = b"cbuiltins\ngetattr\n" + b"ctorch\nserialization\n"
    look_up = name + unicode_opcode("os") + pickle.TUPLE2 + pickle.REDUCE
    method = b"cbuiltins\ngetattr\n" + look_up + unicode_opcode("mkdir")
    return method + pickle.TUPLE2 + pickle.REDUCE + marker + pickle.TUPLE1 + pickle.REDUCE


PICKLES: dict[str, Callable[[bytes], bytes]] = {
    "reduce": _reduce,
    "instance": _instance,
    "object": _object,
    "build": _build,
    "persistent id": _persistent_id,
    "nested": _nested,
    "attribute": _attribute,
}


def payload(kind: str, marker: Path) -> bytes:
    """Opcodes that create the marker and leave nothing on the stack."""
    return PICKLES[kind](unicode_opcode(str(marker))) + pickle.POP


def insert(pickled: bytes, opcodes: bytes) -> bytes:
    """The pickle with other opcodes run first."""
    assert pickled[:1] == pickle.PROTO
    return pickled[:2] + opcodes + pickled[2:]


def add_to_legacy(content: bytes, opcodes: bytes, number: int = 3) -> bytes:
    """Into the pickle of this number: magic, protocol, system, object."""
    start = 0
    for _ in range(number):
        start += pickle_length(content[start:])
    return content[:start] + insert(content[start:], opcodes)


def add_to_magic(content: bytes, opcodes: bytes) -> bytes:
    """Into the first pickle, which is loaded before the layout is known."""
    return add_to_legacy(content, opcodes, 0)


def add_to_zip(content: bytes, opcodes: bytes) -> bytes:
    """Into a file of the legacy layout, moved to the zip layout."""
    file = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(content)) as source,
        zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as target,
    ):
        for member in source.infolist():
            data = source.read(member)
            if member.filename.endswith("/data.pkl"):
                data = insert(data, opcodes)
            target.writestr(member.filename, data)
    return file.getvalue()


def to_tar(content: bytes, opcodes: bytes) -> bytes:
    """PyTorch's oldest layout, a tar, of an empty state dict."""
    empty = pickle.dumps({}, protocol=2)
    members = {"sys_info": empty, "pickle": insert(empty, opcodes)}
    none = pickle.dumps(0, protocol=2)
    members |= {"storages": none + pickle.dumps([], protocol=2), "tensors": none}
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:", format=tarfile.PAX_FORMAT) as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return file.getvalue()


CONTAINERS: dict[str, Callable[[bytes, bytes], bytes]] = {
    "legacy": add_to_legacy,
    "magic": add_to_magic,
    "zip": add_to_zip,
    "tar": to_tar,
}


def torch_file(weights: Weights, kind: str, container: str, marker: Path) -> bytes:
    """A state dict; loading it without restrictions creates the marker first."""
    content = state_dict_bytes(weights, legacy=container != "zip")
    return CONTAINERS[container](content, payload(kind, marker))


def pickled_manylangs(path: Path, kind: str, container: str, marker: Path) -> Path:
    """An ELMoForManyLangs folder whose encoder is hostile."""
    architecture, weights = model(manylangs)
    manylangs.write(path, architecture, weights)
    encoder = {k: v for k, v in weights.items() if k.startswith(manylangs.DIRECTIONS)}
    (path / "encoder.pkl").write_bytes(torch_file(encoder, kind, container, marker))
    return path


def pickled_allennlp(path: Path, kind: str, container: str, marker: Path) -> Path:
    """An AllenNLP archive whose weights are hostile."""
    architecture, weights = model(allennlp_archive)
    members = allennlp_archive.files(architecture, weights)
    state = allennlp_archive.state_dict(architecture, weights)
    members["weights.th"] = torch_file(state, kind, container, marker)
    path.write_bytes(allennlp_archive.tar_bytes(members))
    return path


# Pickles that take memory and execute nothing


def greedy_pickles() -> dict[str, bytes]:
    """State dicts for `weights.th`, by what is wrong."""
    programs = {
        "nested": b"}N" + b"\x85" * 60_000 + b"Ns.",
        "bytearray": b"cbuiltins\nbytearray\nJ\0\0\0\x70\x85R.",
        "number": b"}\x8a\x06\0\0\0\0\0\x01Ns.",
        "storage": b"(X\x07\0\0\0storagectorch\nFloatStorage\n"
        b"X\x01\0\0\0aX\x03\0\0\0cpuJ\0\0\0\x70NtQ.",
    }
    start = [pickle.dumps(x, 2) for x in (0x1950A86A20F9469CFC6C, 1001, {})]
    files = {
        name: b"".join([*start, b"\x80\x02" + program, pickle.dumps([], 2)])
        for name, program in programs.items()
    }
    place = torch.zeros((2, 0), dtype=torch.int64)
    values = {
        "expanded": {"x": torch.ones(1).expand(1 << 40, 4)},
        "sparse": {
            "x": torch.sparse_coo_tensor(place, torch.zeros(0), (1 << 40, 4), check_invariants=True)
        },
        "list": [torch.ones(2)],
        "strings": {"x": "weights"},
    }
    for name, value in values.items():
        file = io.BytesIO()
        torch.save(value, file)
        files[name] = file.getvalue()
    return files


# Zips and tars

ZIP_SLIPS = ("parent", "deep parent", "absolute", "backslash", "symlink", "linked file")


def zip_slip(path: Path, kind: str, marker: Path) -> Path:
    """A zip of ELMoForManyLangs with a member that leads out of the folder it is unpacked to.

    marker (Path): The file that unpacking creates. Relative names lead to the parent of the folder
        of unpacking: there, only the marker's name counts. For "linked file" it is one that holds
        the encoder, to which that member leads.
    """
    members = manylangs.files(*model(manylangs))
    links = {"symlink": ("link", marker.parent), "linked file": ("encoder.pkl", marker)}
    names = {
        "parent": f"../{marker.name}",
        "deep parent": f"xx.model/../../{marker.name}",
        "absolute": str(marker),
        "backslash": f"..\\{marker.name}",
        "symlink": f"link/{marker.name}",
    }
    if kind in names:
        members[names[kind]] = b"outside"
    else:
        marker.write_bytes(members.pop("encoder.pkl"))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        if kind in links:
            link = zipfile.ZipInfo(links[kind][0])
            link.create_system = 3
            link.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(link, str(links[kind][1]))
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    return path


ZIP_BOMBS = ("honest", "lying", "many")


def zip_bomb(path: Path, kind: str) -> Path:
    """A zip of ELMoForManyLangs whose encoder has gigabytes, with the size that it states or with
    that of another one; or with 20,000 more members."""
    packed = {name: deflated(data) for name, data in manylangs.files(*model(manylangs)).items()}
    if kind == "many":
        packed |= {f"{number:05x}": deflated(b"") for number in range(20_000)}
    else:
        packer = zlib.compressobj(9, zlib.DEFLATED, -15)
        piece = packer.compress(bytes(STEP)) + packer.flush(zlib.Z_FULL_FLUSH)
        size = STEP * STEPS if kind == "honest" else packed["encoder.pkl"][2]
        # Nobody gets so far that the checksum matters.
        packed["encoder.pkl"] = piece * STEPS + deflated(b"")[0], 0, size
    path.write_bytes(raw_zip([(name, *parts) for name, parts in packed.items()]))
    return path


def raw_zip(members: list[tuple[str, bytes, int, int]]) -> bytes:
    """A zip of deflated members: name, deflate stream, CRC and the size that is stated."""
    data, directory = bytearray(), bytearray()
    for name, stream, crc, size in members:
        fields = struct.pack(
            "<HHHHHIIIHH", 20, 0, 8, 0, 0x21, crc, len(stream), size, len(name.encode()), 0
        )
        directory += b"PK\x01\x02" + struct.pack("<H", 20) + fields
        directory += struct.pack("<HHHII", 0, 0, 0, 0o644 << 16, len(data)) + name.encode()
        data += b"PK\x03\x04" + fields + name.encode() + stream
    count = len(members)
    end = struct.pack("<HHHHIIH", 0, 0, count, count, len(directory), len(data), 0)
    return bytes(data + directory + b"PK\x05\x06" + end)


def deflated(content: bytes) -> tuple[bytes, int, int]:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    stream = packer.compress(content) + packer.flush()
    return stream, zlib.crc32(content), len(content)


def gzip_bomb(path: Path, prefix: bytes, rest: bytes = b"") -> Path:
    """A gzip file of the prefix, gigabytes of zeros and the rest: files of gzip may be joined."""
    path.write_bytes(gzip.compress(prefix) + gzip.compress(bytes(STEP)) * STEPS)
    with path.open("ab") as file:
        file.write(gzip.compress(rest))
    return path


def tar_bomb(path: Path, kind: str) -> Path:
    """An AllenNLP archive with a member of gigabytes: a file that nobody needs, or a header."""
    rest = allennlp_archive.tar_bytes(allennlp_archive.files(*model(allennlp_archive)), "w:")
    member = tarfile.TarInfo("notes.txt")
    member.type = tarfile.XHDTYPE if kind == "header" else tarfile.REGTYPE
    member.size = STEP * STEPS
    return gzip_bomb(path, member.tobuf(), rest)


TARS = ("symlink", "hard link", "device", "fifo", "parent", "absolute", "linked folder")


def tar(path: Path, kind: str, outside: Path) -> Path:
    """An AllenNLP archive with a member that is no file, or that leads out of its folder.

    outside (Path): For "symlink" and "hard link" a file that holds the weights, to which the
        member `weights.th` leads. Otherwise the file that unpacking creates ("parent": a file of
        this name in the parent of the folder of unpacking; "linked folder": through a link to its
        folder).
    """
    members = allennlp_archive.files(*model(allennlp_archive))
    kinds = {
        "symlink": tarfile.SYMTYPE,
        "hard link": tarfile.LNKTYPE,
        "device": tarfile.CHRTYPE,
        "fifo": tarfile.FIFOTYPE,
    }
    special = tarfile.TarInfo("weights.th")
    if kind in kinds:
        content = members.pop("weights.th")
        special.type = kinds[kind]
        if kind in ("symlink", "hard link"):
            outside.write_bytes(content)
            special.linkname = str(outside)
        special.devmajor, special.devminor = 1, 5  # /dev/zero
    elif kind == "linked folder":
        special = tarfile.TarInfo("fta")
        special.type, special.linkname = tarfile.SYMTYPE, str(outside.parent)
        members[f"fta/{outside.name}"] = b"outside"
    else:
        name = str(outside) if kind == "absolute" else f"../{outside.name}"
        special = tarfile.TarInfo(name)
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        archive.addfile(special, io.BytesIO())
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    path.write_bytes(file.getvalue())
    return path


# HDF5

HDF5 = ("external storage", "external link", "virtual", "huge", "cycle", "strings", "group")


def hdf5(path: Path, kind: str, outside: Path) -> Path:
    """A folder of options.json and weights.hdf5 whose table of characters is hostile.

    outside (Path): The file that holds the table: raw bytes for "external storage", HDF5 for
        "external link" and "virtual". Not written for other kinds: "huge" (300 GB by its shape,
        which the options confirm, without any data), "cycle" (a whole model, in which a group is
        its own child), "strings", "group".
    RETURNS (Path): The file.
    """
    architecture, weights = model(one_layer_hdf5, n_layers=2)
    name = "char_embed"
    table = weights[name]
    if kind == "huge":
        architecture = architecture | {"char_dim": 300_000_000}
    file_path = one_layer_hdf5.write(path, architecture, weights)
    with h5py.File(file_path, "a") as file:
        if kind == "cycle":
            file["CNN/CNN"] = file["CNN"]
            file["CNN/root"] = file["/"]
            return file_path
        del file[name]
        if kind == "external storage":
            outside.write_bytes(table.tobytes())
            external = [(str(outside), 0, table.nbytes)]
            file.create_dataset(name, table.shape, table.dtype, external=external)
        elif kind in ("external link", "virtual"):
            with h5py.File(outside, "w") as other:
                other.create_dataset(name, data=table)
            if kind == "external link":
                file[name] = h5py.ExternalLink(str(outside), name)
            else:
                layout = h5py.VirtualLayout(table.shape, table.dtype)
                layout[:] = h5py.VirtualSource(str(outside), name, table.shape)
                file.create_virtual_dataset(name, layout)
        elif kind == "huge":
            shape = (len(table), architecture["char_dim"])
            file.create_dataset(name, shape, table.dtype, chunks=(1, 1 << 16))
        elif kind == "strings":
            file.create_dataset(name, table.shape, h5py.string_dtype())
        else:
            file.create_group(name)
    return file_path


# Checkpoints

VICTIM = "lm/char_embed"
HUGE = 1 << 40
# Changes of the victim's entry, as `tensor_bundle.entry` takes them.
ENTRIES: dict[str, dict[str, Any]] = {
    "absurd size": {"size": 1 << 62},
    "overflowing shape": {"shape": (1 << 33, 1 << 33), "size": 0},
    "negative shape": {"shape": (-261, -5)},
    "many dimensions": {"shape": [1] * 5000},
    "negative offset": {"offset": -8},
    "offset past the end": {"offset": HUGE},
    "overlapping": {"offset": 0},
    "size unlike shape": {"size": 4},
    "shard out of range": {"shard": 7},
    "strings": {"dtype": 7},
    "unknown dtype": {"dtype": 99},
    "slices": {"slices": 2},
    "wrong checksum of a tensor": {"crc": 1},
}
# What stands in the index in place of another value, by its key.
VALUES: dict[str, dict[str, bytes]] = {
    "endless varint": {VICTIM: b"\x08" + b"\xff" * 30},
    "length past the end": {VICTIM: b"\x12" + tensor_bundle.varint(HUGE)},
    "wrong wire type": {VICTIM: b"\x0c"},
    "bytes for a number": {VICTIM: b"\x22\x01a"},
    "big-endian": {"": tensor_bundle.header(endianness=1)},
    "absurd shards": {"": tensor_bundle.header((1 << 31) - 1)},
    "no header": {"": b""},
}


def _around(block: bytes, repeats: int = 1) -> bytes:
    """A table of one data block with a right CRC, to which the index may lead more than once."""
    data = bytearray(block + tensor_bundle.trailer(block))
    keys = [(b"z%08d" % number, tensor_bundle.handle(0, len(block))) for number in range(repeats)]
    index = tensor_bundle.block(keys, restart_interval=1)
    handle = tensor_bundle.handle(len(data), len(index))
    data += index + tensor_bundle.trailer(index)
    return bytes(data) + tensor_bundle.footer(tensor_bundle.handle(0, 0), handle)


def _index(whole: bytes, *handle: int) -> bytes:
    footer = tensor_bundle.footer(tensor_bundle.handle(0, 8), tensor_bundle.handle(*handle))
    return whole[:-48] + footer


_COUNT = struct.pack("<II", 0, 1)
_varint = tensor_bundle.varint
# The index, from the right one.
TABLES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda whole: b"",
    "only a footer": lambda whole: whole[-48:],
    "truncated": lambda whole: whole[: len(whole) // 2],
    "wrong magic": lambda whole: whole[:-1] + b"x",
    "wrong block": lambda whole: whole[:20] + b"x" + whole[21:],
    "snappy": lambda whole: tensor_bundle.table([(b"", b"")], kind=tensor_bundle.SNAPPY),
    "absurd handle": lambda whole: _index(whole, 0, 1 << 62),
    "handle past the end": lambda whole: _index(whole, len(whole) + 100, 50),
    "absurd restarts": lambda whole: _around(b"\xff" * 8),
    "shared past the key": lambda whole: _around(b"\x64\x04\x02name\x08\x01" + _COUNT),
    "absurd key": lambda whole: _around(b"\0" + _varint(HUGE) + b"\0" + _COUNT),
    "absurd value": lambda whole: _around(b"\0\0" + _varint(HUGE) + _COUNT),
    "repeated block": lambda whole: _around(tensor_bundle.block([(b"", b"")]), 50_000),
}
DATA = ("no data", "short data")
CHECKPOINTS = (*ENTRIES, *VALUES, *TABLES, *DATA)


def checkpoint(path: Path, kind: str) -> Path:
    """A folder of a TensorFlow checkpoint in which one thing is wrong.

    RETURNS (Path): The prefix.
    """
    architecture, weights = model(bilm_tf, seed=6, characters=True, n_layers=2)
    prefix = bilm_tf.write(path, architecture, weights)
    index, data = tensor_bundle.index_path(prefix), tensor_bundle.shard_path(prefix, 0, 1)
    tensors = bilm_tf.variables(weights)
    if kind in ENTRIES:
        table = tensors[VICTIM]
        names = sorted(tensors)
        right: dict[str, Any] = {
            "shape": table.shape,
            "offset": sum(tensors[name].nbytes for name in names[: names.index(VICTIM)]),
            "size": table.nbytes,
            "crc": tensor_bundle.mask(tensor_bundle.crc32c(table.tobytes())),
        }
        value = tensor_bundle.entry(**(right | ENTRIES[kind]))
        tensor_bundle.write(prefix, tensors, replaced={VICTIM: value})
    elif kind in VALUES:
        tensor_bundle.write(prefix, tensors, replaced=VALUES[kind])
    elif kind in TABLES:
        index.write_bytes(TABLES[kind](index.read_bytes()))
    elif kind == "no data":
        data.unlink()
    else:
        data.write_bytes(data.read_bytes()[:1000])
    return prefix
