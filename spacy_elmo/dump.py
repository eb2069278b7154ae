"""Vectors of many texts in one file, written so that a kill at any moment loses little.

Neither HDF5 nor zip files survive a kill in the middle of a write. So the records go to a folder
of part files beside the output, each of which appears whole or not at all; the output is put
together at the end, and the folder goes.

Parts depend on the input and the settings alone, and nothing is carried from one to the next, so
that a run that was killed and resumed gives the same numbers as one that was not.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import Any, Optional

import h5py
import numpy
import srsly
from spacy.language import Language
from spacy.pipeline import Sentencizer
from spacy.tokens import Doc, DocBin
from thinc.api import to_numpy

from .component import Elmo, pipe_settings
from .files import atomic_file, clear_temporary, locked_output, sha256
from .layers.encoder import get_session
from .pretraining.reading import decompressed, find_files, read_errors

# A part has the tokens of so many batches: the more, the more alike in length are the sequences of
# a batch; the fewer, the less a kill loses.
_PART_BATCHES = 8
_MANIFEST = "spacy-elmo-embed.json"
_FINISHED = "spacy-elmo-embed-finished.json"
_PART = re.compile(r"\d{12}-\d{12}-[0-9a-f]{16}\.(hdf5|spacy)")
_FORMATS = {".hdf5": "hdf5", ".h5": "hdf5", ".npz": "npz", ".spacy": "spacy"}


class Layers(str, Enum):
    """Which vectors to write."""

    all = "all"
    top = "top"
    mixed = "mixed"
    mean = "mean"


def read_docs(
    nlp: Language, source: Optional[Path], *, whitespace: bool = False, skip: int = 0
) -> Iterator[Doc]:
    """Read one doc per line or record, not yet processed. A blank line is a record, too.

    nlp (Language): Makes the docs.
    source (Optional[Path]): A .txt, .jsonl (both also .gz, .zst) or .spacy file; None: lines of
        text from stdin.
    whitespace (bool): Lines are tokens separated by spaces.
    skip (int): Records to leave out at the beginning.
    YIELDS (Doc): The docs.
    RAISES (ValueError): If a line is not UTF-8 or not a record; the message names it.
    """
    if source is not None and _is_doc_bin(source):
        yield from islice(_read_doc_bin(source).get_docs(nlp.vocab), skip, None)
        return
    is_jsonl = source is not None and ".jsonl" in source.name.lower()
    for number, raw in islice(_read_lines(source), skip, None):
        where = f"{source or 'stdin'}, line {number}"
        try:
            line = raw.decode("utf8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise ValueError(f"{where} is not UTF-8: {error}") from error
        line = line.removeprefix("\ufeff") if number == 1 else line
        if is_jsonl and line.strip():
            yield _doc_from_json(nlp, line, where, whitespace)
        else:
            yield _make_doc(nlp, line.split() if whitespace else line, where)


def _is_doc_bin(source: Path) -> bool:
    return source.suffix.lower() == ".spacy"


def _read_doc_bin(source: Path) -> DocBin:
    try:
        return DocBin().from_disk(source)
    except Exception as error:
        raise ValueError(f"{source} is not a readable .spacy file: {error}") from error


def _read_lines(source: Optional[Path]) -> Iterator[tuple[int, bytes]]:
    number = 0
    try:
        with _open(source) as file:
            for number, raw in enumerate(file, start=1):
                yield number, raw
    except read_errors() as error:
        raise ValueError(f"{source or 'stdin'}, after line {number}: {error}") from error


@contextlib.contextmanager
def _open(source: Optional[Path]) -> Iterator[Any]:
    if source is None:
        yield sys.stdin.buffer
    else:
        with source.open("rb") as file, decompressed(file, source) as stream:
            yield stream


def _count_records(source: Path) -> int:
    if _is_doc_bin(source):
        return len(_read_doc_bin(source))
    return sum(1 for _ in _read_lines(source))


def _doc_from_json(nlp: Language, line: str, where: str, whitespace: bool) -> Doc:
    try:
        record = srsly.json_loads(line)
    except ValueError as error:
        raise ValueError(f"{where} is not JSON: {error}") from error
    if isinstance(record, dict):
        tokens, text = record.get("tokens"), record.get("text")
        if isinstance(tokens, list) and all(isinstance(token, str) for token in tokens):
            return _make_doc(nlp, tokens, where)
        if isinstance(text, str):
            return _make_doc(nlp, text.split() if whitespace else text, where)
    raise ValueError(f'{where} has neither "tokens" (a list of strings) nor "text" (a string)')


def _make_doc(nlp: Language, text: str | list[str], where: str) -> Doc:
    try:
        if isinstance(text, list):
            # Who gives tokens gives sentences: a line is one, as in bilm-tf and AllenNLP.
            starts: list[bool | int | None] = [number == 0 for number in range(len(text))]
            return Doc(nlp.vocab, words=text, sent_starts=starts)
        # Not `nlp.make_doc`, which refuses long texts for the sake of parsers.
        return nlp.tokenizer(text)
    except ValueError as error:  # An empty token, or half of a surrogate pair.
        raise ValueError(f"{where} cannot be made a doc: {error}") from error


@contextlib.contextmanager
def locked_dump(out: Path) -> Iterator[None]:
    """Keep a second run away from the same output, and remove the parts of one that was killed
    when the output was complete.

    out (Path): The file to write.
    RAISES (ValueError): If another run is writing it.
    """
    with locked_output(out):
        if _is_finished(out.resolve()):
            _remove_parts(_folder(out.resolve()))
        yield


def _folder(out: Path) -> Path:
    return out.with_name(f"{out.name}.parts")


def _remove_parts(folder: Path) -> None:
    """Remove what we have written to the folder, and the folder if nothing else is in it."""
    if not folder.is_dir():
        return
    clear_temporary(folder)
    for path in folder.iterdir():
        if _PART.fullmatch(path.name):
            path.unlink()
    # After the parts, which without these files would not be known as ours after a kill.
    (folder / _MANIFEST).unlink(missing_ok=True)
    (folder / _FINISHED).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()


def _is_finished(out: Path) -> bool:
    """Whether the output is complete, and the run was killed before it had removed all parts."""
    path = _folder(out) / _FINISHED
    return path.exists() and out.exists() and srsly.read_json(path) == _identity(out)


def _identity(path: Path) -> list[int]:
    """What a file keeps when it is renamed."""
    stat = path.stat()
    return [stat.st_ino, stat.st_mtime_ns, stat.st_size]


class Dump:
    """One output file in the making: `start`, `write`, `finish`, all in `locked_dump`.

    out (Path): The file; .hdf5, .h5, .npz or .spacy. A .spacy file is put together in memory: so is
        what reads it.
    source (Optional[Path]): The input: a file, a folder or a pattern (see `find_files`); None for
        stdin. A named pipe is read like stdin.
    nlp (Language): The pipeline. What comes after the elmo component does not run.
    elmo (Elmo): The component whose vectors are written.
    layers (Layers): Which vectors.
    whitespace (bool): Lines are tokens separated by spaces.
    RAISES (ValueError): If the file's format is not known or it is a folder, or the input does not
        exist.
    """

    def __init__(
        self,
        out: Path,
        source: Optional[Path],
        nlp: Language,
        elmo: Elmo,
        layers: Layers,
        *,
        whitespace: bool = False,
    ) -> None:
        if out.suffix not in _FORMATS:
            raise ValueError(f"{out}: the output must end in one of {', '.join(_FORMATS)}")
        if out.is_dir():
            raise ValueError(f"{out} is a folder, not a file to write: choose another path")
        self.out = out.resolve()
        self.folder = _folder(self.out)
        self.nlp = nlp
        self.elmo = elmo
        self.layers = layers
        self.format = _FORMATS[out.suffix]
        self._whitespace = whitespace
        self._suffix = ".spacy" if self.format == "spacy" else ".hdf5"
        # What can be read only once cannot be compared before.
        self._is_stream = source is None or (
            source.exists() and not source.is_file() and not source.is_dir()
        )
        self._sources = [source] if source is None or self._is_stream else self._find(source)

    def start(self, *, force: bool = False) -> int:
        """Begin, or prepare to go on.

        force (bool): Forget what earlier runs wrote.
        RETURNS (int): How many records earlier runs have written already.
        RAISES (ValueError): If they had another input, other weights or other settings, or if the
            folder is not ours.
        """
        path = self.folder / _MANIFEST
        if self.folder.exists() and not path.exists():
            # A kill may have left the folder without parts, and so without the manifest.
            clear_temporary(self.folder, _MANIFEST)
            if any(inside.name != _FINISHED for inside in self.folder.iterdir()):
                raise ValueError(
                    f"{self.folder} is not what this command writes (no {_MANIFEST} in it), and so "
                    "not used for the parts of the output: move it away, or choose another output"
                )
        manifest = self._manifest()
        parts, done = self._parts()
        if force or not done:
            _remove_parts(self.folder)
            with atomic_file(path) as temporary:
                srsly.write_json(temporary, manifest)
            return 0
        before = srsly.read_json(path)
        differing = sorted(key for key in manifest if before.get(key) != manifest[key])
        if differing:
            told = ", ".join(f"{key} (was {before.get(key)})" for key in differing)
            raise ValueError(
                f"{self.folder} holds parts of a run that differs in {told}: "
                "start afresh with --force"
            )
        if self.elmo.model.attrs["settings"].stateful:
            raise ValueError(
                f"{self.folder} holds parts of an earlier run, but the component is stateful: its "
                "vectors depend on all records before; start afresh with --force"
            )
        clear_temporary(self.folder)
        for stray in set(self._all_parts()) - set(parts):
            stray.unlink()  # After a gap.
        return done

    def write(self) -> Iterator[tuple[int, int]]:
        """Write the vectors of all records that no earlier run has written. YIELDS (tuple): The
        numbers of records and tokens of each part, when it is written."""
        first = self._parts()[1]
        keep_layers = self.layers != Layers.mixed
        settings = pipe_settings(self.nlp, self.elmo, keep_layers=keep_layers)
        for docs in self._portions():
            texts = _checksum(docs)
            records: list[Any] = []
            # The last bits of a type's encoding depend on the types that it is computed with.
            get_session(self.elmo.model).type_cache.clear()
            for doc in self.nlp.pipe(docs, **settings):
                vectors = self._vectors(doc)
                records.append(doc if self.format == "spacy" else vectors)
            self._write_part(first, records, texts)
            first += len(records)
            yield len(records), sum(map(len, docs))

    def finish(self) -> int:
        """Put the parts together. RETURNS (int): The number of records.
        RAISES (ValueError): If one is missing."""
        parts, total = self._parts()
        if len(parts) < len(self._all_parts()):
            raise ValueError(
                f"the records from {total} on are missing in {self.folder}: somebody removed them; "
                "run the same command again"
            )
        with self._written(self.out) as temporary:
            if self.format == "spacy":
                merged = DocBin(store_user_data=True)
                for part in parts:
                    merged.merge(DocBin(store_user_data=True).from_disk(part))
                merged.to_disk(temporary)
            elif self.format == "hdf5":
                with _hdf5_writer(temporary) as write:
                    for name, vectors in _arrays(parts):
                        write(name, vectors)
            else:
                with zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED, allowZip64=True) as npz:
                    for name, vectors in _arrays(parts):
                        with npz.open(f"{name}.npy", "w", force_zip64=True) as member:
                            numpy.lib.format.write_array(member, vectors)
            with atomic_file(self.folder / _FINISHED) as marker:
                srsly.write_json(marker, _identity(temporary))
        _remove_parts(self.folder)
        return total

    def count_records(self) -> Optional[int]:
        """RETURNS (Optional[int]): The number of records of the input; None for stdin."""
        if self._is_stream:
            return None
        return sum(_count_records(source) for source in self._sources if source is not None)

    def _find(self, source: Path) -> list[Path]:
        """The files of the input, without what this command writes among them. A file that is named
        may have any suffix."""
        if source.is_file():
            return [source]
        own = {self.out.resolve(), self.folder.resolve()}
        files = [
            file
            for file in find_files([source])
            if own.isdisjoint({file.resolve(), *file.resolve().parents})
        ]
        if not files:
            raise ValueError(f"no text in {source} besides the output")
        return files

    def _portions(self) -> Iterator[list[Doc]]:
        """The docs of each part that no earlier run has written."""
        most_tokens = _PART_BATCHES * self.elmo.model.attrs["settings"].max_tokens_per_batch
        docs: list[Doc] = []
        n_tokens = 0
        for doc in self._unwritten():
            docs.append(doc)
            n_tokens += len(doc)
            if len(docs) >= self.elmo.batch_size or n_tokens >= most_tokens:
                yield docs
                docs, n_tokens = [], 0
        if docs:
            yield docs

    def _unwritten(self) -> Iterator[Doc]:
        """The docs of the records that no earlier run has written.

        RAISES (ValueError): If a stream does not begin with the records that one has written:
            unlike a file, it cannot be compared before.
        """
        parts, done = self._parts()
        if self._is_stream:
            docs = self._docs(0)
            for part in parts:
                first, end, before = _range_of(part)
                if _checksum(list(islice(docs, end - first))) != before:
                    raise ValueError(
                        f"{self._sources[0] or 'stdin'} differs from that of the run whose parts "
                        f"are in {self.folder}, between records {first} and {end}: start afresh "
                        "with --force"
                    )
            return docs
        return self._docs(done)

    def _docs(self, skip: int) -> Iterator[Doc]:
        for source in self._sources:
            if skip and source is not None and (n := _count_records(source)) <= skip:
                skip -= n
                continue
            yield from read_docs(self.nlp, source, whitespace=self._whitespace, skip=skip)
            skip = 0

    def _vectors(self, doc: Doc) -> numpy.ndarray:
        """The vectors to write, copied from the device at once. In a .spacy file, the doc has them
        and no others."""
        if self.layers == Layers.mixed:
            chosen = to_numpy(doc._.elmo_tokens)
        elif self.layers == Layers.top:
            chosen = to_numpy(doc._.elmo_layers[-1])
        elif self.layers == Layers.mean:
            chosen = to_numpy(doc._.elmo_layers.mean(axis=0))
        else:
            chosen = to_numpy(doc._.elmo_layers)
        if self.format == "spacy":
            if self.layers == Layers.all:
                doc._.elmo_layers, doc._.elmo_tokens = chosen, to_numpy(doc._.elmo_tokens)
            else:
                doc._.elmo_layers, doc._.elmo_tokens = None, chosen
        return chosen

    def _write_part(self, first: int, records: list[Any], texts: str) -> None:
        name = f"{first:012}-{first + len(records):012}-{texts}{self._suffix}"
        with self._written(self.folder / name) as temporary:
            if self.format == "spacy":
                DocBin(docs=records, store_user_data=True).to_disk(temporary)
                return
            with _hdf5_writer(temporary) as write:
                for number, vectors in enumerate(records, start=first):
                    write(str(number), vectors)

    @contextlib.contextmanager
    def _written(self, path: Path) -> Iterator[Path]:
        try:
            with atomic_file(path) as temporary:
                yield temporary
        except OSError as error:
            raise OSError(
                f"cannot write {path}: {error.strerror or error}. What is done stays in "
                f"{self.folder}: the same command goes on from there"
            ) from error

    def _parts(self) -> tuple[list[Path], int]:
        """The parts without a gap from the first record on, and the number of their records."""
        parts, total = [], 0
        for path in self._all_parts():
            first, end, _ = _range_of(path)
            if first != total:
                break
            parts.append(path)
            total = end
        return parts, total

    def _all_parts(self) -> list[Path]:
        paths = self.folder.glob(f"*{self._suffix}")
        return sorted(path for path in paths if _PART.fullmatch(path.name))

    def _manifest(self) -> dict[str, Any]:
        bilm = self.elmo.bilm
        about = [bilm.config.to_options(), bilm.vocabulary]
        weights = hashlib.sha256(srsly.json_dumps(about, sort_keys=True).encode())
        for parameter in bilm.parameters():
            weights.update(parameter.detach().cpu().numpy().tobytes())
        config = self.nlp.config.interpolate()
        # What makes tokens and sentences, and the mix.
        after = pipe_settings(self.nlp, self.elmo)["disable"]
        makers = [(name, pipe) for name, pipe in self.nlp.pipeline if name not in after]
        components = [config["components"][name] for name, _ in makers]
        made_by = [config["nlp"]["lang"], config["nlp"]["tokenizer"], components]
        pipeline = hashlib.sha256(srsly.json_dumps(made_by, sort_keys=True).encode())
        for maker in (self.nlp.tokenizer, *(pipe for _, pipe in makers)):
            if isinstance(maker, Sentencizer):
                # Its bytes list a set, in an order that differs from process to process.
                settings = [sorted(maker.punct_chars), maker.overwrite]
                pipeline.update(srsly.json_dumps(settings).encode())
            elif maker is not self.elmo and hasattr(maker, "to_bytes"):
                pipeline.update(maker.to_bytes(exclude=["vocab"]))
        return {
            "input": None if self._is_stream else self._checksum_of_files(),
            "weights": weights.hexdigest(),
            "pipeline": pipeline.hexdigest(),
            "precision": get_session(self.elmo.model).settings.precision,
            "layers": self.layers.value,
            "format": self.format,
            "whitespace": self._whitespace,
        }

    def _checksum_of_files(self) -> str:
        digests = [sha256(source) for source in self._sources if source is not None]
        return hashlib.sha256(" ".join(digests).encode()).hexdigest()


class _Unfailing(io.FileIO):
    """A new file for the HDF5 library, which crashes when it cannot write (on a full disk): so it
    never learns of it. `check` raises the error.

    path (Path): The file.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "w+")
        self._error: Optional[OSError] = None

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        try:
            start = 0
            while start < len(view) and self._error is None:
                start += super().write(view[start:])
        except OSError as error:
            self._error = error
        return len(view)

    def truncate(self, size: Optional[int] = None) -> int:
        try:
            return super().truncate(size)
        except OSError as error:
            self._error = self._error or error
            return size or 0

    def check(self) -> None:
        """RAISES (OSError): If something could not be written."""
        if self._error is not None:
            raise self._error


@contextlib.contextmanager
def _hdf5_writer(path: Path) -> Iterator[Callable[[str, numpy.ndarray], None]]:
    """Yield a function that writes an array of this name to a new HDF5 file."""
    with _Unfailing(path) as raw:
        with h5py.File(raw, "w") as file:

            def write(name: str, vectors: numpy.ndarray) -> None:
                file[name] = vectors
                raw.check()

            yield write
        raw.check()


def _checksum(docs: Sequence[Doc]) -> str:
    """RETURNS (str): A short checksum of the docs' tokens."""
    digest = hashlib.sha256()
    for doc in docs:
        digest.update("\0".join(token.text for token in doc).encode() + b"\n")
    return digest.hexdigest()[:16]


def _range_of(part: Path) -> tuple[int, int, str]:
    """RETURNS (tuple): The records of a part from the first to before the last, and a checksum of
    their tokens."""
    first, end, texts = part.stem.split("-")
    return int(first), int(end), texts


def _arrays(parts: Sequence[Path]) -> Iterator[tuple[str, numpy.ndarray]]:
    for part in parts:
        with h5py.File(part, "r") as file:
            for name in sorted(file, key=int):
                yield name, file[name][()]
