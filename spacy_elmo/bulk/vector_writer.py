"""Write the vectors of many docs to one file, so that an interrupted run can be resumed.

HDF5 and zip files do not survive a kill in the middle of a write. Vectors are therefore written to
parts in a folder beside the output, which become the output at the end: it is complete or absent.

Docs are processed in portions, each of which makes a part. Their boundaries depend on the docs and
the settings alone, and nothing is carried over from one portion to the next, so that a resumed run
writes the same numbers as an uninterrupted one. It reads all docs again, and skips those whose
parts are there.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Optional

import h5py
import numpy
import srsly
from spacy.attrs import ORTH, SENT_START
from spacy.language import Language
from spacy.pipeline import Sentencizer
from spacy.tokens import Doc, DocBin
from thinc.api import to_numpy

from ..component import Elmo, pipe_settings
from ..files import atomic_file, atomic_folder, clear_temporary, locked_output, remove_folder
from ..layers.encoder import get_session

# Batches per portion. With more, sequences of similar length are batched together more often; with
# fewer, a kill loses less.
_PORTION_BATCHES = 8
# In the folder of parts: all that vectors depend on, besides the input.
_SETTINGS = "settings.json"
# The name of a part: its number, how many docs it has, and their checksum.
_PART = re.compile(r"\d{8}-\d+-[0-9a-f]{16}\.zip")
# All that zipfile raises for damaged files.
_DAMAGED = (zipfile.BadZipFile, RuntimeError, EOFError, ValueError, OSError, zlib.error)

# Which vectors to write.
LAYERS: dict[str, Callable[[Doc], Any]] = {
    "all": lambda doc: doc._.elmo_layers,
    "top": lambda doc: doc._.elmo_layers[-1],
    "mixed": lambda doc: doc._.elmo_tokens,
    "mean": lambda doc: doc._.elmo_layers.mean(axis=0),
}


@contextlib.contextmanager
def locked_vectors(out: Path) -> Iterator[None]:
    """Lock an output, and remove its parts if a run was killed after it had completed the output.

    out (Path): The file to write.
    RAISES (ValueError): If another run is writing it.
    """
    folder = _parts_folder(out)
    with locked_output(out):
        clear_temporary(folder.parent, folder.name)
        clear_temporary(folder)
        is_done = out.is_file() and (folder / _SETTINGS).is_file()
        if is_done and all(_mtime(path) <= _mtime(out) for path in folder.iterdir()):
            remove_folder(folder)
        yield


def _parts_folder(out: Path) -> Path:
    out = out.resolve()
    return out.with_name(f".{out.name}.partial")


def _mtime(path: Path) -> int:
    return path.stat().st_mtime_ns


class VectorWriter:
    """Writes vectors to an HDF5 file or an .npz archive, as arrays named by the number of the doc,
    or to a .spacy file, on the docs. A .spacy file is put together in memory.

    out (Path): The file: .hdf5, .h5, .npz or .spacy.
    nlp (Language): The pipeline. Components after elmo do not run.
    elmo (Elmo): The component whose vectors are written.
    layers (str): Which vectors: a key of `LAYERS`.
    force (bool): Discard all that an earlier run has left, not only damaged parts.
    RAISES (ValueError): If the format is unknown, or an earlier run had other weights or settings.
    """

    def __init__(
        self, out: Path, nlp: Language, elmo: Elmo, layers: str = "all", *, force: bool = False
    ) -> None:
        if out.suffix not in _OUTPUTS:
            suffixes = ", ".join([*_OUTPUTS, ".parquet"])  # The last is not written here.
            raise ValueError(f"{out}: the output must end in one of {suffixes}")
        self.out = out
        self.nlp = nlp
        self.elmo = elmo
        self.layers = layers
        self._is_docs = out.suffix == ".spacy"
        self._numbers: dict[str, str] = {}
        self._folder = _parts_folder(out)
        self._settings = {
            "layers": layers,
            "format": "spacy" if self._is_docs else "arrays",
            "precision": get_session(elmo.model).settings.precision,
            **describe_pipeline(nlp, elmo),
        }
        if self._folder.exists() and not (self._folder / _SETTINGS).is_file():
            raise ValueError(
                f"{self._folder} was not written by this command, which needs the name: move it "
                "away, or choose another output"
            )
        paths = [] if force else sorted(self._folder.glob("*.zip"))
        paths = [path for path in paths if _PART.fullmatch(path.name)]
        if paths:
            self._check_resumable()
        self._parts = _complete_parts(paths)
        # Parts that are damaged, or that follow a part that is damaged or missing.
        discarded = paths[len(self._parts) :]
        for path in discarded:
            path.unlink()
        self.n_discarded = len(discarded)

    @property
    def n_records(self) -> int:
        """The number of docs whose vectors are in the parts."""
        return sum(int(path.name.split("-")[1]) for path in self._parts)

    def write(self, docs: Iterable[Doc]) -> Iterator[int]:
        """Write the vectors of docs that no earlier run has written.

        docs (Iterable[Doc]): All docs, not yet processed.
        YIELDS (int): The number of tokens of each part, when it is written.
        RAISES (ValueError): If the docs differ from those of an earlier run.
        """
        settings = pipe_settings(self.nlp, self.elmo, keep_layers=self.layers != "mixed")
        written, n_read = list(self._parts), 0
        portions = self.elmo.batch_docs(docs, n_batches=_PORTION_BATCHES)
        for number, portion in enumerate(portions):
            path = self._folder / f"{number:08}-{len(portion)}-{_checksum(portion)}.zip"
            if written:
                if written.pop(0) != path:
                    raise self._other_docs(n_read, n_read + len(portion))
            else:
                # The last bits of a type's encoding depend on the types that it is computed with.
                get_session(self.elmo.model).type_cache.clear()
                records = map(self._encode, self.nlp.pipe(portion, **settings))
                self._write_part(path, records)
                yield sum(map(len, portion))
            if _OUTPUTS[self.out.suffix] is _write_hdf5:
                texts = (doc.text.strip() for doc in portion)
                self._numbers.update((text, str(i)) for i, text in enumerate(texts, n_read))
            n_read += len(portion)
        if written:
            raise self._other_docs(n_read, self.n_records)

    def finish(self) -> None:
        """Make the output of the parts, and remove them."""
        with self._resumable(self.out), atomic_file(self.out) as temporary:
            _OUTPUTS[self.out.suffix](temporary, self._read_records(), self._numbers)
        remove_folder(self._folder)

    def _check_resumable(self) -> None:
        """RAISES (ValueError): If the parts are of a run whose vectors would differ."""
        path = self._folder / _SETTINGS
        try:
            previous = dict(srsly.read_json(path))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path} is damaged: start afresh with --force") from error
        names = sorted({*previous, *self._settings})
        names = [x for x in names if previous.get(x) != self._settings.get(x)]
        if names:
            differences = ", ".join(f"{name} (was {previous.get(name)})" for name in names)
            raise ValueError(
                f"{self._folder} is of an interrupted run that differs in {differences}: start "
                "afresh with --force"
            )
        if get_session(self.elmo.model).settings.stateful:
            raise ValueError(
                f"{self._folder} is of an interrupted run, but the component is stateful: its "
                "vectors depend on all docs before; start afresh with --force"
            )

    def _write_part(self, path: Path, records: Iterable[bytes]) -> None:
        with self._resumable(self._folder):
            if not self._parts:  # This replaces the folder of an earlier run.
                with atomic_folder(self._folder) as new:
                    srsly.write_json(new / _SETTINGS, self._settings)
            with atomic_file(path) as temporary:
                _write_zip(temporary, records, {})
        self._parts.append(path)

    def _encode(self, doc: Doc) -> bytes:
        """RETURNS (bytes): The record of a processed doc: a DocBin with no other vectors than those
        to write, or an array in NumPy's file format."""
        vectors = to_numpy(LAYERS[self.layers](doc))
        if not self._is_docs:
            buffer = io.BytesIO()
            numpy.save(buffer, vectors)
            return buffer.getvalue()
        if self.layers == "all":
            doc._.elmo_layers, doc._.elmo_tokens = vectors, to_numpy(doc._.elmo_tokens)
        else:
            doc._.elmo_layers, doc._.elmo_tokens = None, vectors
        return DocBin(docs=[doc], store_user_data=True).to_bytes()

    def _read_records(self) -> Iterator[bytes]:
        for path in self._parts:
            try:
                with zipfile.ZipFile(path) as file:
                    yield from map(file.read, file.namelist())
            except _DAMAGED as error:
                raise ValueError(
                    f"{path} is damaged: remove it, and the same command computes it again"
                ) from error

    def _other_docs(self, start: int, end: int) -> ValueError:
        return ValueError(
            f"the input differs from that of the interrupted run in {self._folder}, between "
            f"records {start} and {end}: start afresh with --force"
        )

    @contextlib.contextmanager
    def _resumable(self, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OSError(
                f"cannot write {path}: {error.strerror or error}. What is finished is kept in "
                f"{self._folder}: the same command continues from there"
            ) from error


def _complete_parts(paths: list[Path]) -> list[Path]:
    """RETURNS (list): The parts before the first that is missing or damaged."""
    for expected, path in enumerate(paths):
        number, count, _ = path.name.split("-")
        try:
            with zipfile.ZipFile(path) as file:
                is_complete = len(file.namelist()) == int(count)
        except _DAMAGED:
            is_complete = False
        if int(number) != expected or not is_complete:
            return paths[:expected]
    return paths


def describe_pipeline(nlp: Language, elmo: Elmo) -> dict[str, str]:
    """RETURNS (dict): Checksums of the tokenizer and of each component up to elmo."""
    config = nlp.config.interpolate()
    after = pipe_settings(nlp, elmo)["disable"]
    pipes: list[tuple[str, Any, Any]] = [
        ("tokenizer", nlp.tokenizer, [config["nlp"]["lang"], config["nlp"]["tokenizer"]]),
        *((x, pipe, config["components"][x]) for x, pipe in nlp.pipeline if x not in after),
    ]
    checksums = {}
    for name, pipe, settings in pipes:
        digest = hashlib.sha256(srsly.json_dumps(settings, sort_keys=True).encode())
        if isinstance(pipe, Sentencizer):
            # Its bytes list a set, in an order that differs between processes.
            attributes = [sorted(pipe.punct_chars), pipe.overwrite]
            digest.update(srsly.json_dumps(attributes).encode())
        elif hasattr(pipe, "to_bytes"):
            digest.update(pipe.to_bytes(exclude=["vocab"]))
        checksums[name] = digest.hexdigest()[:16]
    return checksums


def _checksum(docs: Iterable[Doc]) -> str:
    """RETURNS (str): A short checksum of the docs' tokens and sentence boundaries."""
    digest = hashlib.sha256()
    for doc in docs:
        digest.update(len(doc).to_bytes(8, "little"))
        digest.update(doc.to_array([ORTH, SENT_START]).tobytes())
    return digest.hexdigest()[:16]


class _NonFailingFile(io.FileIO):
    """A file for the HDF5 library, which crashes if it cannot write, as on a full disk.

    error (Optional[OSError]): The first error, which the library does not see.
    """

    error: Optional[OSError] = None

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        n_written = 0
        try:
            while self.error is None and n_written < len(view):
                n_written += super().write(view[n_written:])
        except OSError as error:
            self.error = error
        return len(view)

    def truncate(self, size: Optional[int] = None) -> int:
        try:
            return super().truncate(size)
        except OSError as error:
            self.error = self.error or error
            return size or 0


def _write_hdf5(path: Path, records: Iterable[bytes], numbers: Mapping[str, str]) -> None:
    with _NonFailingFile(path, "w+") as raw:
        with h5py.File(raw, "w") as file:
            for number, record in enumerate(records):
                file[str(number)] = numpy.load(io.BytesIO(record))
                if raw.error is not None:
                    break
            # As AllenNLP's command `elmo` writes it.
            text = [json.dumps(numbers)]
            file.create_dataset("sentence_to_index", data=text, dtype=h5py.string_dtype())
        if raw.error is not None:
            raise raw.error


def _write_zip(path: Path, records: Iterable[bytes], numbers: Mapping[str, str]) -> None:
    with zipfile.ZipFile(path, "w") as file:
        for number, record in enumerate(records):
            # ZipInfo has a fixed time: the same records, the same bytes.
            file.writestr(zipfile.ZipInfo(f"{number}.npy"), record)


def _write_docbin(path: Path, records: Iterable[bytes], numbers: Mapping[str, str]) -> None:
    docs = DocBin(store_user_data=True)
    for record in records:
        docs.merge(DocBin(store_user_data=True).from_bytes(record))
    docs.to_disk(path)


_OUTPUTS: dict[str, Callable[[Path, Iterable[bytes], Mapping[str, str]], None]] = {
    ".hdf5": _write_hdf5,
    ".h5": _write_hdf5,
    ".npz": _write_zip,
    ".spacy": _write_docbin,
}
