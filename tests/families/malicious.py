"""Hostile files of every family.

Each writer makes a whole model in which one thing is hostile: a reader that does not mind it either
succeeds, or does what the file wants. What it wants is harmless: to create a marker (a path that
the caller chooses), to be read through a link, or to use a few gigabytes.
"""

from __future__ import annotations

import io
import json
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

from . import allennlp_archive, bilm_tf, manylangs, network, nlpl, one_layer_hdf5, tensor_bundle
from .network import Architecture, Weights
from .torch_files import pickle_length, state_dict_bytes, unicode_opcode

BOMB = 3 << 30  # Bytes that a bomb unpacks to.


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


# State dicts that only hold what may be loaded

STATE_DICTS = ("expanded", "sparse", "meta", "list", "numbered", "strings", "half empty")


def state_dict(path: Path, kind: str) -> Path:
    """An ELMoForManyLangs folder whose token embedder loads without code, and is no use.

    kind (str): "expanded" (the word table and the projection are terabytes by their shapes, which
        the architecture confirms; each is stored as one number), "sparse" (the same, without any
        number), "meta" (tensors without data), "list" (of tensors), "numbered" (keys are numbers),
        "strings" (in place of tensors), "half empty" (a tensor is missing).
    """
    architecture, weights = model(manylangs, seed=1)
    words, projection = "word_emb_layer.embedding.weight", "projection.weight"
    if kind in ("expanded", "sparse"):
        architecture = architecture | {"word_dim": 1 << 40}
    manylangs.write(path, architecture, weights)
    embedder = {k: v for k, v in weights.items() if not k.startswith(manylangs.DIRECTIONS)}
    tensors = {name: torch.from_numpy(array) for name, array in embedder.items()}
    if kind in ("expanded", "sparse"):
        features = network.total_filters(architecture)
        sizes = {
            words: (len(architecture["words"]), architecture["word_dim"]),
            projection: (architecture["projection_dim"], architecture["word_dim"] + features),
        }
        for name, size in sizes.items():
            place = torch.zeros((2, 0), dtype=torch.int64)
            tensors[name] = (
                torch.ones(1).expand(*size)
                if kind == "expanded"
                else torch.sparse_coo_tensor(place, torch.zeros(0), size, check_invariants=True)
            )
    state: Any = {
        "meta": lambda: {name: tensor.to("meta") for name, tensor in tensors.items()},
        "list": lambda: list(tensors.values()),
        "numbered": lambda: dict(enumerate(tensors.values())),
        "strings": lambda: dict.fromkeys(tensors, "weights"),
        "half empty": lambda: {k: v for k, v in tensors.items() if k != projection},
    }.get(kind, lambda: tensors)()
    torch.save(state, path / "token_embedder.pkl", _use_new_zipfile_serialization=False)
    return path


ABSURD = {"dim": 1 << 33, "projection_dim": 1 << 33, "n_layers": 1 << 33, "n_highway": 1 << 33}
ABSURD |= {"max_characters_per_token": 1 << 33, "char_dim": 1 << 33}
OPTIONS = (*ABSURD, "filters", "negative", "nested")


def absurd_options(path: Path, kind: str, family: str = "manylangs") -> Path:
    """A folder of honest tensors and an architecture that no machine can hold.

    kind (str): What is absurd; "filters" has one of 2 ** 33 outputs, "negative" negative sizes,
        "nested" is JSON of 100,000 lists in each other.
    family (str): "manylangs", "bilm_tf" or "one_layer_hdf5".
    """
    module = {"manylangs": manylangs, "bilm_tf": bilm_tf, "one_layer_hdf5": one_layer_hdf5}[family]
    architecture, weights = model(module, seed=1)
    module.write(path, architecture, weights)
    changes: dict[str, Any] = {kind: ABSURD.get(kind)}
    if kind == "filters":
        changes = {"filters": [*architecture["filters"][1:], [1, 1 << 33]]}
    elif kind == "negative":
        changes = {name: -architecture[name] for name in ("dim", "projection_dim")}
    settings = module.options(architecture | changes) if kind != "nested" else None
    text = json.dumps(settings) if kind != "nested" else "[" * 100_000 + "]" * 100_000
    (path / (manylangs.BASENAMES[0] if module is manylangs else "options.json")).write_text(text)
    return path


# Zips

ZIP_SLIPS = ("parent", "deep parent", "absolute", "backslash", "symlink")


def zip_slip(path: Path, kind: str, marker: Path, *, needed: bool = False) -> Path:
    """A zip of ELMoForManyLangs with a member that leads out of the folder it is unpacked to.

    marker (Path): The file that unpacking creates. Relative names lead to the parent of the folder
        of unpacking: there, only the marker's name counts.
    needed (bool): The member is `encoder.pkl` by its content, which stands nowhere else;
        otherwise the model is whole and the member is one more.
    """
    members = manylangs.files(*model(manylangs))
    content = members.pop("encoder.pkl") if needed else b"outside"
    name = {
        "parent": f"../{marker.name}",
        "deep parent": f"xx.model/../../{marker.name}",
        "absolute": str(marker),
        "backslash": f"..\\{marker.name}",
        "symlink": f"link/{marker.name}",
    }[kind]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for other, data in members.items():
            archive.writestr(other, data)
        if kind == "symlink":
            link = zipfile.ZipInfo("link")
            link.create_system = 3
            link.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(link, str(marker.parent))
        archive.writestr(zipfile.ZipInfo(name), content)
    return path


def zip_symlink(path: Path, outside: Path) -> Path:
    """A zip of ELMoForManyLangs whose encoder is a link to a file outside that holds it."""
    members = manylangs.files(*model(manylangs))
    outside.write_bytes(members.pop("encoder.pkl"))
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
        link = zipfile.ZipInfo("encoder.pkl")
        link.create_system = 3
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, str(outside))
    return path


def deflate(prefix: bytes, zeros: int) -> tuple[bytes, int, int]:
    """The prefix and many zeros, compressed without being written out.

    RETURNS (tuple[bytes, int, int]): The raw deflate stream, its content's CRC-32 and size.
    """
    step = 1 << 24
    assert zeros % step == 0
    parts = []
    for data in (prefix, bytes(step)):
        packer = zlib.compressobj(9, zlib.DEFLATED, -15)
        parts.append(packer.compress(data) + packer.flush(zlib.Z_FULL_FLUSH))
    end = zlib.compressobj(9, zlib.DEFLATED, -15).flush()
    stream = parts[0] + parts[1] * (zeros // step) + end
    return stream, crc_with_zeros(zlib.crc32(prefix), zeros), len(prefix) + zeros


def crc_with_zeros(crc: int, zeros: int) -> int:
    """The CRC-32 of data of this CRC and as many zeros after it.

    A zero byte is a linear map of the register's bits; powers of it come from squaring.
    """

    def apply(images: list[int], register: int) -> int:
        result = 0
        for bit, image in enumerate(images):
            if register >> bit & 1:
                result ^= image
        return result

    images = []
    for bit in range(32):
        register = 1 << bit
        for _ in range(8):
            register = (register >> 1) ^ (0xEDB88320 if register & 1 else 0)
        images.append(register)
    register = crc ^ 0xFFFFFFFF
    while zeros:
        if zeros & 1:
            register = apply(images, register)
        images = [apply(images, image) for image in images]
        zeros >>= 1
    return register ^ 0xFFFFFFFF


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


ZIP_BOMBS = (
    "encoder.pkl", "token_embedder.pkl", "config.json", "architecture", "char.dic", "word.dic",
    "model.hdf5", "options.json", "meta.json", "vocab.txt", "vocab.txt.gz", "lying", "many",
)  # fmt: skip


def zip_bomb(path: Path, kind: str, size: int = BOMB) -> Path:
    """A zip of which one member unpacks to `size` bytes.

    kind (str): The member's name, in an archive of the family that has such a member;
        "architecture" is that file of ELMoForManyLangs, "lying" an encoder.pkl whose stated size is
        that of the honest one, "many" 65,535 empty members.
    """
    if kind in ("model.hdf5", "options.json", "meta.json", "vocab.txt", "vocab.txt.gz"):
        architecture, weights = model(bilm_tf, characters=True)
        archive = {
            "contents": "hdf5",
            "model": architecture,
            "vocabulary": "vocab.txt",
            "n_characters": 262,
            "lemmatized": False,
        }
        members = nlpl.files(archive, weights)
    else:
        architecture, weights = model(manylangs, seed=1)
        members = manylangs.files(architecture, weights)
    packed = {name: deflated(content) for name, content in members.items()}
    victim = {"architecture": manylangs.BASENAMES[0], "lying": "encoder.pkl"}.get(kind, kind)
    # A beginning that looks right.
    prefix = members.get(victim, b"the\n").removesuffix(b"}")
    if kind == "many":
        names = [f"{number:05x}" for number in range(65535 - len(packed))]
        packed |= {name: deflated(b"") for name in names}
    elif kind == "vocab.txt.gz":
        packed.pop("vocab.txt")
        packed[victim] = deflated(gzip_zeros(prefix, size))
    else:
        stream, crc, stated = deflate(prefix, size)
        packed[victim] = (stream, crc, len(prefix) if kind == "lying" else stated)
    path.write_bytes(raw_zip([(name, *parts) for name, parts in packed.items()]))
    return path


def gzip_zeros(prefix: bytes, zeros: int) -> bytes:
    """A gzip file of the prefix and many zeros."""
    stream, crc, size = deflate(prefix, zeros)
    head = b"\x1f\x8b\x08\0\0\0\0\0\x02\xff"
    return head + stream + struct.pack("<II", crc, size & 0xFFFFFFFF)


# Tars

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


TAR_BOMBS = ("config.json", "weights.th", "files_to_archive.json", "before", "options")


def tar_bomb(path: Path, kind: str, size: int = BOMB) -> Path:
    """An AllenNLP archive of which one member unpacks to `size` bytes.

    kind (str): The member's name; "before" is a member that nobody needs, in front of all others,
        "options" the local options.json.
    """
    architecture, weights = model(allennlp_archive)
    members = allennlp_archive.files(architecture | {"local_options": True}, weights)
    names = {"before": "notes.txt", "options": f"fta/{allennlp_archive.OPTIONS_KEY}"}
    victim = names.get(kind, kind)
    content = members.pop(victim, b"").removesuffix(b"}")
    rest = allennlp_archive.tar_bytes(members, "w:")
    member = tarfile.TarInfo(victim)
    # Whole blocks of 512 bytes, so that the zeros end where the next header begins.
    content = content[: len(content) // 512 * 512]
    member.size = len(content) + size
    head, crc, length = deflate(member.tobuf() + content, size)
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    # The empty last block of a stream of its own takes two bytes.
    stream = head[:-2] + packer.compress(rest) + packer.flush()
    end = struct.pack("<II", zlib.crc32(rest, crc), (length + len(rest)) & 0xFFFFFFFF)
    path.write_bytes(b"\x1f\x8b\x08\0\0\0\0\0\x02\xff" + stream + end)
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
ENTRIES = (
    "absurd shape", "absurd size", "overflowing shape", "negative shape", "many dimensions",
    "negative offset", "offset past the end", "overlapping", "size unlike shape",
    "shard out of range", "negative shard", "strings", "unknown dtype", "slices", "endless varint",
    "length past the end", "wrong wire type", "big-endian", "absurd shards", "no shards",
    "no header",
)  # fmt: skip
TABLES = (
    "empty", "only a footer", "truncated", "wrong magic", "wrong block", "wrong block CRC",
    "wrong index CRC", "snappy", "absurd handle", "handle past the end", "negative handle",
    "absurd restarts", "shared past the key", "absurd key", "absurd value",
    "endless varint in block", "repeated block", "duplicate key", "no data", "short data",
)  # fmt: skip
CHECKPOINTS = (*ENTRIES, *TABLES)
# Only a reader with a fast implementation of the CRC can be asked to see this.
WRONG_TENSOR_CRC = "wrong tensor CRC"


def checkpoint(path: Path, kind: str) -> Path:
    """A folder of a TensorFlow checkpoint in which one thing is wrong.

    RETURNS (Path): The prefix.
    """
    architecture, weights = model(bilm_tf, seed=6, characters=True, n_layers=2)
    prefix = bilm_tf.write(path, architecture, weights)
    tensors = bilm_tf.variables(weights)
    if kind == "absurd shape":
        settings = bilm_tf.options(architecture | {"char_dim": 1 << 40})
        (path / "options.json").write_text(json.dumps(settings))
    if kind in ENTRIES or kind == WRONG_TENSOR_CRC:
        tensor_bundle.write(prefix, tensors, replaced=replaced_entries(kind, tensors))
        if kind == "no header":
            items = table_items(tensors)
            tensor_bundle.index_path(prefix).write_bytes(tensor_bundle.table(items[1:]))
        return prefix
    data = tensor_bundle.shard_path(prefix, 0, 1)
    if kind == "no data":
        data.unlink()
    elif kind == "short data":
        data.write_bytes(data.read_bytes()[:1000])
    else:
        items = table_items(tensors)
        tensor_bundle.index_path(prefix).write_bytes(damaged_table(kind, items))
    return prefix


def table_items(tensors: Weights) -> list[tuple[bytes, bytes]]:
    """The header and the entries of tensors that lie in one shard in the order of their names."""
    items, offset = [(b"", tensor_bundle.header())], 0
    for name in sorted(tensors):
        array = tensors[name]
        crc = tensor_bundle.mask(tensor_bundle.crc32c(array.tobytes()))
        dtype = tensor_bundle.DTYPES[str(array.dtype)]
        value = tensor_bundle.entry(array.shape, offset, array.nbytes, crc, dtype=dtype)
        items.append((name.encode(), value))
        offset += array.nbytes
    return items


def replaced_entries(kind: str, tensors: Weights) -> dict[str, bytes]:
    """The wrong entry of one tensor, or the wrong header, by its key."""
    table = tensors[VICTIM]
    rows, columns = table.shape
    names = sorted(tensors)
    offset = sum(tensors[name].nbytes for name in names[: names.index(VICTIM)])
    crc = tensor_bundle.mask(tensor_bundle.crc32c(table.tobytes()))
    right: dict[str, Any] = {
        "shape": table.shape,
        "offset": offset,
        "size": table.nbytes,
        "crc": crc,
    }
    huge = 1 << 40
    changes: dict[str, dict[str, Any]] = {
        "absurd shape": {"shape": (rows, huge), "size": 4 * rows * huge},
        "absurd size": {"size": 1 << 62},
        # The number of bytes is a multiple of 2 ** 64.
        "overflowing shape": {"shape": (1 << 33, 1 << 33), "size": 0},
        "negative shape": {"shape": (-rows, -columns)},
        "many dimensions": {"shape": (*table.shape, *[1] * 5000)},
        "negative offset": {"offset": -8},
        "offset past the end": {"offset": huge},
        "overlapping": {"offset": 0},
        "size unlike shape": {"size": table.nbytes - 4},
        "shard out of range": {"shard": 7},
        "negative shard": {"shard": -1},
        "strings": {"dtype": tensor_bundle.DTYPES["string"]},
        "unknown dtype": {"dtype": 99},
        "slices": {"slices": 2},
        WRONG_TENSOR_CRC: {"crc": crc ^ 1},
    }
    if kind == "overlapping":
        data = b"".join(tensors[name].tobytes() for name in names)[: table.nbytes]
        changes[kind]["crc"] = tensor_bundle.mask(tensor_bundle.crc32c(data))
    if kind in changes:
        return {VICTIM: tensor_bundle.entry(**(right | changes[kind]))}
    value = tensor_bundle.entry(**right)
    length = tensor_bundle.varint(1 << 40)
    return {
        "endless varint": {VICTIM: value + b"\x08" + b"\xff" * 30},
        "length past the end": {VICTIM: value + b"\x12" + length},
        "wrong wire type": {VICTIM: value + b"\x0c"},
        "big-endian": {"": tensor_bundle.header(endianness=1)},
        "absurd shards": {"": tensor_bundle.header((1 << 31) - 1)},
        "no shards": {"": tensor_bundle.header(0)},
        "no header": {},
    }[kind]


def damaged_table(kind: str, items: list[tuple[bytes, bytes]]) -> bytes:
    """The bytes of a wrong index file."""
    whole = tensor_bundle.table(items)
    block = tensor_bundle.block(items)
    end = len(block)
    varint = tensor_bundle.varint
    count = struct.pack("<II", 0, 1)
    empty = tensor_bundle.handle(end + 5, 8)
    if kind in ("repeated block", "duplicate key"):
        repeats = 50_000 if kind == "repeated block" else 1
        if kind == "duplicate key":
            place = [key for key, _ in items].index(VICTIM.encode())
            block = tensor_bundle.block([*items[: place + 1], items[place], *items[place + 1 :]])
        return table_around(block, repeats)
    if kind in ("absurd handle", "handle past the end", "negative handle"):
        index = {
            "absurd handle": tensor_bundle.handle(0, 1 << 62),
            "handle past the end": tensor_bundle.handle(len(whole) + 100, 50),
            "negative handle": tensor_bundle.handle(-100, 50),
        }[kind]
        return whole[:-48] + tensor_bundle.footer(empty, index)
    return {
        "empty": lambda: b"",
        "only a footer": lambda: whole[-48:],
        "truncated": lambda: whole[: len(whole) // 2],
        "wrong magic": lambda: whole[:-8] + struct.pack("<Q", tensor_bundle.MAGIC ^ 1),
        "wrong block": lambda: flip(whole, 20),
        "wrong index CRC": lambda: flip(whole, len(whole) - 48 - 1),
        "wrong block CRC": lambda: flip(whole, end + 1),
        "snappy": lambda: tensor_bundle.table(items, kind=tensor_bundle.SNAPPY),
        "absurd restarts": lambda: table_around(block[:-4] + struct.pack("<I", 0xFFFFFFFF)),
        "shared past the key": lambda: table_around(
            varint(100) + varint(4) + varint(2) + b"name" + b"\x08\x01" + count
        ),
        "absurd key": lambda: table_around(varint(0) + varint(1 << 40) + varint(0) + count),
        "absurd value": lambda: table_around(varint(0) + varint(0) + varint(1 << 40) + count),
        "endless varint in block": lambda: table_around(b"\xff" * 40 + count),
    }[kind]()


def flip(content: bytes, place: int) -> bytes:
    """One bit turned over."""
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def table_around(block: bytes, repeats: int = 1) -> bytes:
    """A table of one data block with a right CRC, to which the index may lead more than once."""
    data = bytearray(block + tensor_bundle.trailer(block))
    keys = [(b"z%08d" % number, tensor_bundle.handle(0, len(block))) for number in range(repeats)]
    handles = []
    for content in (tensor_bundle.block([]), tensor_bundle.block(keys, restart_interval=1)):
        handles.append(tensor_bundle.handle(len(data), len(content)))
        data += content + tensor_bundle.trailer(content)
    metaindex, index = handles
    return bytes(data) + tensor_bundle.footer(metaindex, index)
