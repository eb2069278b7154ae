"""Vectors of many texts in one file, written so that a kill at any moment loses little.

Neither HDF5 nor zip files survive a kill in the middle of a write. So the records go to a folder
of part files beside the output, each of which appears whole or not at all; the output is put
together at the end, and the folder goes.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import sys
import zipfile
from collections.abc import Iterator
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import IO, Any, Optional, Union

import h5py
import numpy
import srsly
from spacy.language import Language
from spacy.tokens import Doc, DocBin
from thinc.api import to_numpy

from .component import Elmo, pipe_settings
from .files import atomic_file, locked, sha256

# A part is written when it holds this much: what a kill can lose.
_PART_BYTES = 32 << 20
_PART_RECORDS = 1000
_MANIFEST = "manifest.json"
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
    """Read one doc per line or record, not yet processed.

    nlp (Language): Makes the docs.
    source (Optional[Path]): A .txt, .jsonl or .spacy file; None: lines of text from stdin.
    whitespace (bool): Lines are tokens separated by spaces.
    skip (int): Records to leave out at the beginning.
    YIELDS (Doc): The docs.
    RAISES (ValueError): If a line is not UTF-8 or not a record; the message names it.
    """
    if source is not None and source.suffix == ".spacy":
        yield from islice(_read_doc_bin(source).get_docs(nlp.vocab), skip, None)
        return
    is_jsonl = source is not None and source.suffix == ".jsonl"
    with _open(source) as file:
        for number, raw in islice(enumerate(file, start=1), skip, None):
            where = f"{source or 'stdin'}, line {number}"
            try:
                line = raw.decode("utf8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise ValueError(f"{where} is not UTF-8: {error}") from error
            if is_jsonl:
                yield _doc_from_json(nlp, line, where, whitespace)
            elif whitespace:
                yield Doc(nlp.vocab, words=line.split())
            else:
                yield nlp.make_doc(line)


def _read_doc_bin(source: Path) -> DocBin:
    try:
        return DocBin().from_disk(source)
    except Exception as error:
        raise ValueError(f"{source} is not a readable .spacy file: {error}") from error


def _doc_from_json(nlp: Language, line: str, where: str, whitespace: bool) -> Doc:
    try:
        record = srsly.json_loads(line)
    except ValueError as error:
        raise ValueError(f"{where} is not JSON: {error}") from error
    if isinstance(record, dict):
        tokens, text = record.get("tokens"), record.get("text")
        if isinstance(tokens, list) and all(isinstance(token, str) for token in tokens):
            return Doc(nlp.vocab, words=tokens)
        if isinstance(text, str):
            return Doc(nlp.vocab, words=text.split()) if whitespace else nlp.make_doc(text)
    raise ValueError(f'{where} has neither "tokens" (a list of strings) nor "text" (a string)')


class Dump:
    """One output file in the making: `start`, `write`, `finish`.

    out (Path): The file; .hdf5, .h5, .npz or .spacy.
    source (Optional[Path]): The input, None for stdin.
    nlp (Language): The pipeline. What comes after the elmo component does not run.
    elmo (Elmo): The component whose vectors are written.
    layers (Layers): Which vectors.
    whitespace (bool): Lines are tokens separated by spaces.
    RAISES (ValueError): If the file's format is not known, or the input does not exist.
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
        if source is not None and not source.is_file():
            raise ValueError(f"no such file: {source}")
        self.out = out
        self.source = source
        self.nlp = nlp
        self.elmo = elmo
        self.layers = layers
        self.format = _FORMATS[out.suffix]
        self.folder = out.with_name(f"{out.name}.parts")
        self._whitespace = whitespace
        self._suffix = ".spacy" if self.format == "spacy" else ".hdf5"

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep a second run away from the same output.
        RAISES (ValueError): If there is one."""
        self.out.parent.mkdir(parents=True, exist_ok=True)
        path = self.out.with_name(f".{self.out.name}.lock")
        with locked(path, f"another run is writing {self.out}: wait for it, or choose another"):
            try:
                yield
            finally:
                path.unlink()

    def start(self) -> int:
        """RETURNS (int): How many records earlier runs have written already.
        RAISES (ValueError): If they had another input, other weights or other settings."""
        manifest = self._manifest()
        path = self.folder / _MANIFEST
        parts, done = self._parts()
        if not done or not path.exists():
            self.discard()
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
        for stray in set(self._all_parts()) - set(parts):
            stray.unlink()  # After a gap.
        return done

    def write(self) -> Iterator[Doc]:
        """Write the vectors of all records that no earlier run has written. YIELDS (Doc): Each
        one's doc, when it is processed."""
        number = first = self._parts()[1]
        texts = hashlib.sha256()
        records: list[Any] = []
        n_bytes = 0
        keep_layers = self.layers != Layers.mixed
        settings = pipe_settings(self.nlp, self.elmo, keep_layers=keep_layers)
        for doc in self.nlp.pipe(self._unwritten(), **settings):
            vectors = self._vectors(doc)
            n_bytes += vectors.nbytes
            records.append(doc if self.format == "spacy" else vectors)
            _add(texts, doc)
            number += 1
            if n_bytes >= _PART_BYTES or len(records) >= _PART_RECORDS:
                self._write_part(first, records, texts)
                first, records, texts, n_bytes = number, [], hashlib.sha256(), 0
            yield doc
        if records:
            self._write_part(first, records, texts)

    def finish(self) -> int:
        """Put the parts together. RETURNS (int): The number of records.
        RAISES (ValueError): If one is missing."""
        parts, total = self._parts()
        if len(parts) < len(self._all_parts()):
            raise ValueError(
                f"the records from {total} on are missing in {self.folder}: somebody removed them; "
                "run the same command again"
            )
        with atomic_file(self.out) as temporary:
            if self.format == "spacy":
                merged = DocBin(store_user_data=True)
                for part in parts:
                    merged.merge(DocBin(store_user_data=True).from_disk(part))
                merged.to_disk(temporary)
            elif self.format == "hdf5":
                with h5py.File(temporary, "w") as file:
                    for name, dataset in _datasets(parts):
                        dataset.file.copy(dataset, file, name)
            else:
                with zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED, allowZip64=True) as npz:
                    for name, dataset in _datasets(parts):
                        with npz.open(f"{name}.npy", "w", force_zip64=True) as member:
                            numpy.lib.format.write_array(member, dataset[()])
        self.discard()
        return total

    def discard(self) -> None:
        """Forget what earlier runs wrote."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def count_records(self) -> Optional[int]:
        """RETURNS (Optional[int]): The number of records of the input; None for stdin."""
        if self.source is None:
            return None
        if self.source.suffix == ".spacy":
            return len(_read_doc_bin(self.source))
        with self.source.open("rb") as file:
            return sum(1 for _ in file)

    def _unwritten(self) -> Iterator[Doc]:
        """The docs of the records that no earlier run has written.

        RAISES (ValueError): If stdin does not begin with the records that one has written: unlike a
            file, it cannot be compared before.
        """
        parts, done = self._parts()
        skip = 0 if self.source is None else done
        docs = read_docs(self.nlp, self.source, whitespace=self._whitespace, skip=skip)
        for part in parts if self.source is None else []:
            first, end, before = _range_of(part)
            texts = hashlib.sha256()
            for doc in islice(docs, end - first):
                _add(texts, doc)
            if _short(texts) != before:
                raise ValueError(
                    f"stdin differs from that of the run whose parts are in {self.folder}, between "
                    f"records {first} and {end}: start afresh with --force"
                )
        return docs

    def _vectors(self, doc: Doc) -> numpy.ndarray:
        if self.layers == Layers.all:
            return to_numpy(doc._.elmo_layers)
        if self.layers == Layers.mixed:
            chosen = to_numpy(doc._.elmo_tokens)
        else:
            layers = to_numpy(doc._.elmo_layers)
            chosen = layers[-1] if self.layers == Layers.top else layers.mean(axis=0)
        if self.format == "spacy":
            doc._.elmo_layers, doc._.elmo_tokens = None, chosen
        return chosen

    def _write_part(self, first: int, records: list[Any], texts: Any) -> None:
        name = f"{first:012}-{first + len(records):012}-{_short(texts)}{self._suffix}"
        path = self.folder / name
        with atomic_file(path) as temporary:
            if self.format == "spacy":
                DocBin(docs=records, store_user_data=True).to_disk(temporary)
                return
            with h5py.File(temporary, "w") as file:
                for number, vectors in enumerate(records, start=first):
                    file[str(number)] = vectors

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
        return sorted(self.folder.glob(f"[0-9]*{self._suffix}"))

    def _manifest(self) -> dict[str, Any]:
        weights = hashlib.sha256()
        for parameter in self.elmo.bilm.parameters():
            weights.update(parameter.detach().cpu().numpy().tobytes())
        config = self.nlp.config.interpolate()
        after = pipe_settings(self.nlp, self.elmo)["disable"]
        names = [name for name in self.nlp.pipe_names if name not in after]
        components = [config["components"][name] for name in names]
        made_by = [config["nlp"]["lang"], config["nlp"]["tokenizer"], components]
        return {
            "input": None if self.source is None else sha256(self.source),
            "weights": weights.hexdigest(),
            # What makes tokens and sentences, and the mix.
            "pipeline": hashlib.sha256(
                srsly.json_dumps(made_by, sort_keys=True).encode()
            ).hexdigest(),
            "precision": self.elmo.bilm.precision,
            "layers": self.layers.value,
            "format": self.format,
            "whitespace": self._whitespace,
        }


def _add(texts: Any, doc: Doc) -> None:
    texts.update(doc.text.encode("utf8", "surrogatepass") + b"\n")


def _short(texts: Any) -> str:
    return texts.hexdigest()[:16]


def _range_of(part: Path) -> tuple[int, int, str]:
    """RETURNS (tuple): The records of a part from the first to before the last, and a checksum of
    their texts."""
    first, end, texts = part.stem.split("-")
    return int(first), int(end), texts


def _datasets(parts: list[Path]) -> Iterator[tuple[str, h5py.Dataset]]:
    for part in parts:
        with h5py.File(part, "r") as file:
            for name in sorted(file, key=int):
                yield name, file[name]


@contextlib.contextmanager
def _open(source: Optional[Path]) -> Iterator[Union[IO[bytes], Any]]:
    if source is None:
        yield sys.stdin.buffer
    else:
        with source.open("rb") as file:
            yield file
