"""Write the vectors of many rows in parts, by one process or by many, so that a restart completes
what is missing.

    _settings.json              What the vectors depend on, besides the rows.
    part-FFFFF-BBBBBB           Block B of input file F.
    _manifest-I-of-N.json       Counts and checksums of the parts of a shard, when it is complete.
    _manifest.json              Those of all parts, when all shards are complete.

The parts are in a folder. For some outputs this is the output; for others it lies beside the output
until that is made of them (see `outputs`). A block is a fixed number of rows of one file, and is
embedded by itself: a part has the same vectors whichever shard or process makes it, so that a
restart may have another number of shards. Parts and outputs appear as a whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Optional

import srsly
from spacy.attrs import ORTH, SENT_START
from spacy.language import Language
from spacy.pipeline import Sentencizer
from spacy.tokens import Doc

from ..component import Elmo, pipe_settings
from ..files import (
    atomic_file,
    clear_temporary,
    exclusive_lock,
    locked_output,
    remove_folder,
    sha256,
)
from ..layers.encoder import get_session
from ..tools.records import Reader, Source
from .columns import EmbedColumns
from .outputs import OUTPUTS
from .rows import Block, read_blocks

SETTINGS, MANIFEST = "_settings.json", "_manifest.json"
_AFRESH = "choose another output, or start afresh with --force"


def default_rows(pool: str) -> int:
    """RETURNS (int): Rows of a block: some tens of MB of vectors."""
    return 16_384 if pool == "mean" else 1024


@dataclass(frozen=True)
class Job:
    """What all processes of a run share. It can be pickled.

    out (Path): The output. Its suffix is a key of `OUTPUTS`.
    sources (Sequence): The input files and URLs, always in the same order.
    embed (EmbedColumns): Makes the vectors. Its `text` names the column of texts.
    ids (Sequence[str]): Columns that are carried through; see `read_blocks`.
    n_rows (int): Rows of a block.
    reader (Reader): How inputs are read that are not Parquet.
    whitespace (bool): Spaces separate the tokens of texts.
    """

    out: Path
    sources: Sequence[Source]
    embed: EmbedColumns
    n_rows: int
    ids: Sequence[str] = ()
    reader: Reader = field(default_factory=Reader)
    whitespace: bool = False

    @property
    def output(self) -> ModuleType:
        """What writes the parts and the output."""
        return OUTPUTS[self.out.suffix]

    @property
    def folder(self) -> Path:
        """The folder of the parts."""
        out = self.out.resolve()
        return out if self.output.join is None else out.with_name(f".{out.name}.partial")

    def prepare(self, *, force: bool = False) -> None:
        """Make the folder, or check that it is of a run with the same settings. `force` removes
        what an earlier run has written.
        RAISES (ValueError): If it is of another run, or the settings are impossible."""
        self._check_output(force)
        folder, path, settings = self.folder, self.folder / SETTINGS, self._settings()
        clear_temporary(folder.parent, folder.name)
        if force and path.is_file():
            for lock in folder.glob(".*.lock"):
                with exclusive_lock(lock, f"another run is writing {self.out}: wait for it"):
                    pass
            remove_folder(folder)
        # One look: another shard may begin in this moment.
        names = [x.name for x in folder.glob("[!.]*")] if folder.is_dir() else None
        if names and SETTINGS in names:
            try:
                previous = dict(srsly.read_json(path))
            except (ValueError, TypeError) as error:
                raise ValueError(f"{path} is damaged: start afresh with --force") from error
            keys = sorted({*previous, *settings})
            differing = [key for key in keys if previous.get(key) != settings.get(key)]
            if differing:
                raise ValueError(
                    f"{folder} is of a run that differs in {', '.join(differing)}: {_AFRESH}"
                )
        elif names or folder.is_file():
            raise ValueError(
                f"{folder} was not written by this command (no {SETTINGS} in it): choose another "
                "output, or move it away"
            )
        else:
            with self._resumable(path), atomic_file(path) as temporary:
                srsly.write_json(temporary, settings)

    def _check_output(self, force: bool) -> None:
        names = [*(self.ids or ["id"]), *([] if self.ids else [self.embed.text]), "vector"]
        if len({*names}) < len(names):
            raise ValueError(f"the names of the columns {names} are not distinct: rename one")
        if self.output.join is None:
            return
        with locked_output(self.out):
            if self.out.is_dir():
                raise ValueError(f"{self.out} is a folder, not a file to write: choose another")
            manifest = self.folder / MANIFEST
            if self.out.exists() and manifest.exists() and _time(manifest) <= _time(self.out):
                remove_folder(self.folder)  # A run was killed when it had made the output.
            if self.out.exists() and not force:
                raise ValueError(
                    f"{self.out} exists already: choose another path, or overwrite it with --force"
                )

    def run(self, shard: int = 0, n_shards: int = 1) -> Iterator[tuple[int, int, int]]:
        """Write the parts of a shard that are not there yet, and its manifest. Shards take whole
        files if there are as many, else every n-th block.

        shard, n_shards (int): The number of the shard, from 0, and how many there are.
        YIELDS (tuple): For each part, its number of rows, how many of them are null, and how many
            were computed now.
        RAISES (ValueError): If something cannot be read, or differs from what an earlier run read.
        """
        parts: dict[str, Any] = {}
        manifest = self._manifest(shard, n_shards)
        lock = self.folder / f".shard-{shard + 1}-of-{n_shards}.lock"
        with exclusive_lock(lock, f"another run is writing {self.out}: wait for it"):
            try:
                for path, source, block in self._blocks(shard, n_shards):
                    is_new = self._write_part(path, source, block)
                    n, n_nulls = len(block.texts), block.texts.count(None)
                    parts[path.name] = {"rows": n, "nulls": n_nulls, "sha256": sha256(path)}
                    yield n, n_nulls, n * is_new
                self._write_manifest(manifest, parts)
            except Exception:
                # A run that fails at once does not bind the next one to its settings.
                if n_shards == 1 and not any(self.folder.glob("part-*")):
                    remove_folder(self.folder)
                raise

    def finish(self, n_shards: int = 1) -> None:
        """Write the manifest of all parts and the output, if all shards are complete."""
        paths = [self._manifest(shard, n_shards) for shard in range(n_shards)]
        if not all(path.is_file() for path in paths):
            return
        parts = {name: part for x in paths for name, part in srsly.read_json(x)["parts"].items()}
        there = {path.name for path in self.folder.glob("part-*")}
        if not there >= {*parts}:  # Another shard has to be written again.
            return
        if others := sorted(there - {*parts}):
            raise ValueError(
                f"{self.folder} has parts of rows that are no longer there, such as {others[0]}: "
                f"{_AFRESH}"
            )
        self._write_manifest(self.folder / MANIFEST, parts)
        if self.output.join is not None:
            files = [self.folder / name for name in sorted(parts)]
            with (
                locked_output(self.out),
                self._resumable(self.out),
                atomic_file(self.out) as temporary,
            ):
                self.output.join(files, temporary)
            remove_folder(self.folder)

    def _manifest(self, shard: int, n_shards: int) -> Path:
        return self.folder / f"_manifest-{shard + 1}-of-{n_shards}.json"

    @contextlib.contextmanager
    def _resumable(self, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:  # Arrow's do not name the file.
            raise OSError(
                f"cannot write {path}: {error.strerror or error}. What is finished is kept in "
                f"{self.folder}: the same command continues from there"
            ) from error

    def _settings(self) -> dict[str, Any]:
        nlp, elmo = self.embed.load()
        return {
            "inputs": _checksum([[str(source), _size(source)] for source in self.sources])[:16],
            "rows": self.n_rows,
            "ids": list(self.ids),
            "text": self.reader.text or self.embed.text,
            "whitespace": self.whitespace,
            "encoding": self.reader.encoding,
            "errors": self.reader.errors,
            "layers": self.embed.layers,
            "pool": self.embed.pool,
            "dtype": self.embed.dtype,
            "precision": get_session(elmo.model).settings.precision,
            **_describe_pipeline(nlp, elmo),
        }

    def _blocks(self, shard: int, n_shards: int) -> Iterator[tuple[Path, Source, Block]]:
        """YIELDS (tuple): The path, the source and the rows of each part of a shard."""
        by_file = len(self.sources) >= n_shards
        text, ids, n_rows = self.embed.text, self.ids, self.n_rows
        for file, source in enumerate(self.sources):
            if by_file and file % n_shards != shard:
                continue
            every, first = (1, 0) if by_file else (n_shards, (shard - file) % n_shards)
            for block in read_blocks(source, text, ids, n_rows, self.reader, first, every):
                name = f"part-{file:05}-{block.number:06}{self.output.PART}"
                yield self.folder / name, source, block

    def _write_part(self, path: Path, source: Source, block: Block) -> bool:
        """RETURNS (bool): Whether it was written, because it was not there."""
        first_row = block.number * self.n_rows + 1
        where = f"{source}, rows {first_row} to {first_row + len(block.texts) - 1}"
        checksum = _checksum([block.texts, block.ids])
        previous = self.output.read_part(path) if path.exists() else None
        if previous is not None:
            if previous != checksum:
                raise ValueError(
                    f"{where}: the rows differ from those that {path} was made of: {_AFRESH}"
                )
            return False
        texts: list[Any] = block.texts
        if self.whitespace:
            texts = [text.split() if isinstance(text, str) else text for text in texts]
        clear_temporary(path.parent, path.name)
        try:
            rows = self.embed.stream(texts, first_row=first_row)
            with self._resumable(path), contextlib.closing(rows), atomic_file(path) as temporary:
                self.output.write_part(temporary, block, rows, checksum)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
        return True

    def _write_manifest(self, path: Path, parts: dict[str, Any]) -> None:
        totals = {f"n_{x}": sum(part[x] for part in parts.values()) for x in ("rows", "nulls")}
        content = {**totals, "n_parts": len(parts), "parts": dict(sorted(parts.items()))}
        with self._resumable(path), atomic_file(path) as temporary:
            srsly.write_json(temporary, content)


def _describe_pipeline(nlp: Language, elmo: Elmo) -> dict[str, str]:
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


def _size(source: Source) -> Optional[int]:
    """RETURNS (Optional[int]): Bytes of a file; None for a URL or a stream."""
    return source.stat().st_size if isinstance(source, Path) and source.is_file() else None


def _time(path: Path) -> int:
    return path.stat().st_mtime_ns


def _checksum(data: Any) -> str:
    return hashlib.sha256(json.dumps(data, default=_plain).encode()).hexdigest()


def _plain(value: Any) -> Any:
    """RETURNS (Any): What JSON can hold, of docs, columns of Arrow and their values."""
    if isinstance(value, Doc):
        return [[token.text for token in value], value.to_array([ORTH, SENT_START]).tolist()]
    return value.to_pylist() if hasattr(value, "to_pylist") else str(value)
