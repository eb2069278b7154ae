"""Write the vectors of many rows in parts, by one process or by many, so that a restart completes
what is missing.

    _settings.json              What the vectors depend on, besides the rows.
    part-FFFFF-BBBBBB           Block B of input file F.
    _manifest-I-of-N.json       Counts and checksums of the parts of a shard, when it is complete.
    _manifest.json              Those of all parts, when all shards are complete.

The folder of the parts is the output, or lies beside it until the output is made of them. A block
is a fixed number of rows of one file, embedded by itself: a part has the same vectors whichever
shard makes it, so that a restart may have another number of shards.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice
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
from ..tools.records import Progress, Reader, Source, check_kind
from ..tools.texts import find_files
from .columns import EmbedColumns
from .outputs import OUTPUTS

SETTINGS, MANIFEST = "_settings.json", "_manifest.json"
_AFRESH = "choose another output, or start afresh with --force"


def default_rows(pool: str, layers: object = "mix") -> int:
    """RETURNS (int): Rows of a block: some tens of MB of vectors."""
    return 16_384 if pool != "none" else 256 if layers == "all" else 1024


def find_sources(inputs: Sequence[str], out: Path, *, columns: bool = False) -> list[Source]:
    """RETURNS (list): The files of folders and patterns (see `find_files`), without those in the
    output, and URLs."""
    found: list[tuple[str, Source]] = []
    for name in inputs:
        if "://" in name:
            check_kind(name, columns=columns)
            found.append((name, name))
        else:
            paths = ((x.resolve(), x) for x in find_files([name], columns=columns))
            found += ((str(x), y) for x, y in paths if out.resolve() not in (x, *x.parents))
    if len(dict(found)) < max(len(found), 1):
        problem = "the same text twice" if found else "no text besides the output"
        raise ValueError(f"{problem} in {', '.join(inputs)}")
    return [source for _, source in found]


@dataclass(frozen=True)
class Job:
    """What all processes of a run share: inputs in the same order, an output, and settings.

    ids (Sequence[str]): Columns to carry through; without one, "id" is file and row ("a.txt:1").
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
        """The module that writes the parts and the output."""
        return OUTPUTS[self.out.suffix]

    @property
    def folder(self) -> Path:
        """The folder of the parts."""
        out = self.out.resolve()
        return out if self.output.join is None else out.with_name(f".{out.name}.partial")

    def prepare(self, *, force: bool = False) -> None:
        """Make the folder, or check that it is of a run with the same settings."""
        exists = self.out.is_dir() or (self.out.exists() and not force)
        problem = "--id vector: the vectors have this name" if "vector" in self.ids else ""
        if self.output.join is not None and exists:
            problem = f"{self.out} exists: choose another, or overwrite a file with --force"
        if problem:
            raise ValueError(problem)
        folder, path, settings = self.folder, self.folder / SETTINGS, self._settings()
        clear_temporary(folder.parent, folder.name)
        if force and path.is_file():
            for lock in folder.glob(".*.lock"):
                with exclusive_lock(lock, f"another run is writing {self.out}: wait for it"):
                    pass
            remove_folder(folder)
        # One look: another shard may begin in this moment.
        names = [x.name for x in folder.glob("[!.]*")] if folder.is_dir() else []
        if not names and not folder.is_file():
            return _write_json(path, settings)
        if SETTINGS not in names:
            what = "was not written by this command: choose another output, or move it away"
            raise ValueError(f"{folder} {what}")
        previous = srsly.read_json(path)
        keys = sorted({*previous, *settings})
        if differing := [key for key in keys if previous.get(key) != settings.get(key)]:
            raise ValueError(f"{folder} differs from this run in {', '.join(differing)}: {_AFRESH}")

    def count_rows(
        self, shard: int = 0, n_shards: int = 1, progress: Progress = None
    ) -> Optional[int]:
        """RETURNS (Optional[int]): The rows of a shard; None if an input cannot be read (twice).
        `progress` is called with bytes read."""
        job = replace(self, reader=replace(self.reader))  # It counts bad records.
        with contextlib.suppress(ValueError):
            if all(Path(x).is_file() for x in self.sources):
                return sum(len(texts) for *_, texts, _ in job._blocks(shard, n_shards, progress))
        return None

    def run(
        self, shard: int = 0, n_shards: int = 1, progress: Progress = None
    ) -> Iterator[tuple[int, int, int]]:
        """Write the parts of a shard that are not there yet, and its manifest. Shards take whole
        files if there are as many, else every n-th block. `progress` is called with rows.
        YIELDS (tuple): The number of rows of a part, of nulls, and of rows computed now."""
        parts: dict[str, Any] = {}
        lock = self.folder / f".shard-{shard + 1}-of-{n_shards}.lock"
        with exclusive_lock(lock, f"another run is writing {self.out}: wait for it"):
            try:
                for path, where, texts, ids in self._blocks(shard, n_shards):
                    is_new = self._write_part(path, where, texts, ids, progress)
                    n, n_nulls = len(texts), texts.count(None)
                    parts[path.name] = {"rows": n, "nulls": n_nulls, "sha256": sha256(path)}
                    yield n, n_nulls, n * is_new
                self._write_manifest(self._manifest(shard, n_shards), parts)
            except Exception:
                # A run that fails at once does not bind the next one to its settings.
                if n_shards == 1 and not any(self.folder.glob("part-*")):
                    remove_folder(self.folder)
                raise

    def finish(self, n_shards: int = 1, progress: Progress = None) -> None:
        """Write the manifest of all parts and the output, if all shards are complete. `progress` is
        called with rows and the number of all."""
        paths = [self._manifest(shard, n_shards) for shard in range(n_shards)]
        if not all(path.is_file() for path in paths):
            return
        parts = {name: part for x in paths for name, part in srsly.read_json(x)["parts"].items()}
        others = {path.name for path in self.folder.glob("part-*")} ^ {*parts}
        if others & {*parts}:  # Another shard has to be written again.
            return
        if others:
            raise ValueError(f"{self.folder / min(others)} has rows that are gone: {_AFRESH}")
        self._write_manifest(self.folder / MANIFEST, parts)
        if self.output.join is not None:
            with locked_output(self.out), atomic_file(self.out) as temporary:
                paths = [self.folder / name for name in sorted(parts)]
                n_rows = sum(part["rows"] for part in parts.values())
                self.output.join(paths, temporary, progress and (lambda n: progress(n, n_rows)))
            remove_folder(self.folder)

    def _manifest(self, shard: int, n_shards: int) -> Path:
        return self.folder / f"_manifest-{shard + 1}-of-{n_shards}.json"

    def _write_manifest(self, path: Path, parts: dict[str, Any]) -> None:
        totals = {f"n_{x}": sum(part[x] for part in parts.values()) for x in ("rows", "nulls")}
        _write_json(path, {**totals, "n_parts": len(parts), "parts": dict(sorted(parts.items()))})

    def _settings(self) -> dict[str, Any]:
        nlp, elmo = self.embed.load()
        sizes = [Path(x).stat().st_size if Path(x).is_file() else None for x in self.sources]
        inputs = list(zip(map(str, self.sources), sizes))
        return {
            "inputs": _checksum(inputs)[:16],
            "rows": self.n_rows,
            "ids": list(self.ids),
            "whitespace": self.whitespace,
            **{x: getattr(self.reader, x) for x in ("text", "encoding", "errors")},
            **{x: getattr(self.embed, x) for x in ("layers", "pool", "dtype")},
            "precision": get_session(elmo.model).settings.precision,
            **_describe_pipeline(nlp, elmo),
        }

    def _blocks(
        self, shard: int, n_shards: int, progress: Progress = None
    ) -> Iterator[tuple[Path, str, list, dict]]:
        by_file = len(self.sources) >= n_shards
        for file, source in enumerate(self.sources):
            if by_file and file % n_shards != shard:
                continue
            records = self.reader.read(source, self.ids, progress)
            for number in count():
                n_bad = self.reader.n_bad
                if not (block := list(islice(records, self.n_rows))):
                    break
                if not by_file and (file + number) % n_shards != shard:
                    self.reader.n_bad = n_bad  # Whoever wants the block counts them.
                    continue
                numbers, texts, values = zip(*block)
                ids = dict(zip(self.ids, map(list, zip(*values))))
                ids = ids or {"id": [f"{source}:{x}" for x in numbers]}
                path = self.folder / f"part-{file:05}-{number:06}{self.output.PART}"
                first = number * self.n_rows + 1
                yield path, f"{source}, rows {first} to {first + len(texts) - 1}", list(texts), ids

    def _write_part(
        self, path: Path, where: str, texts: list, ids: dict[str, list], progress: Progress
    ) -> bool:
        checksum = _checksum([texts, ids])
        previous = self.output.read_part(path) if path.exists() else None
        split = [x.split() if self.whitespace and isinstance(x, str) else x for x in texts]
        rows = self.embed.stream(split)
        try:
            if previous not in (None, checksum):
                raise ValueError(f"other rows than those that {path} was made of: {_AFRESH}")
            if previous is None:
                clear_temporary(path.parent, path.name)
                with contextlib.closing(rows), atomic_file(path) as temporary:
                    self.output.write_part(temporary, ids, _counted(rows, progress), checksum)
            elif progress is not None:
                progress(len(texts))
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
        return previous is None


def _counted(rows: Iterable[tuple], progress: Progress) -> Iterator[tuple]:
    for row in rows:
        yield row
        if progress is not None:
            progress(1)


def _describe_pipeline(nlp: Language, elmo: Elmo) -> dict[str, str]:
    """RETURNS (dict): Checksums of the tokenizer and of each component up to elmo."""
    config = nlp.config.interpolate()
    settings = {"tokenizer": [config["nlp"][x] for x in ("lang", "tokenizer")]}
    after = pipe_settings(nlp, elmo)["disable"]
    described = {}
    for name, pipe in [("tokenizer", nlp.tokenizer), *nlp.pipeline]:
        if name in after:
            continue
        content = settings.get(name, config["components"].get(name))
        digest = hashlib.sha256(srsly.json_dumps(content, sort_keys=True).encode())
        if isinstance(pipe, Sentencizer):
            # Its bytes list a set, in an order that differs between processes.
            digest.update(repr((sorted(pipe.punct_chars), pipe.overwrite)).encode())
        elif hasattr(pipe, "to_bytes"):
            digest.update(pipe.to_bytes(exclude=["vocab"]))
        described[name] = digest.hexdigest()[:16]
    return described


def _write_json(path: Path, content: dict[str, Any]) -> None:
    with atomic_file(path) as temporary:
        srsly.write_json(temporary, content)


def _checksum(data: Any) -> str:
    return hashlib.sha256(json.dumps(data, default=_plain).encode()).hexdigest()


def _plain(value: Any) -> Any:  # Of docs and values of Arrow.
    is_doc = isinstance(value, Doc)
    return [value.text, value.to_array([ORTH, SENT_START]).tolist()] if is_doc else repr(value)
