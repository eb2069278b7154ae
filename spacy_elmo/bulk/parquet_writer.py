"""Write the vectors of many rows to a folder of Parquet files, by one process or by many.

    _settings.json              What the vectors depend on, besides the rows.
    part-FFFFF-BBBBBB.parquet   Block B of input file F: one row group.
    _manifest-I-of-N.json       Counts and checksums of the parts of a shard, when it is complete.
    _manifest.json              Of all parts, when all shards are complete.

A block is a fixed number of rows of one file, and is embedded by itself: a part has the same
vectors whichever shard or process makes it, so that a restart may have another number of shards. A
part appears as a whole. Parquet's readers skip names that begin with an underscore or a dot.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Optional

import srsly

from ..files import atomic_file, clear_temporary, exclusive_lock, remove_folder, sha256
from ..layers.encoder import get_session
from ..tools.kinds import Source
from ..tools.records import Reader
from .arrow import import_arrow
from .columns import Embed
from .rows import is_stream, read_blocks
from .vector_writer import describe_pipeline

SETTINGS, MANIFEST = "_settings.json", "_manifest.json"
_PART = re.compile(r"part-(\d{5,})-(\d{6,})\.parquet")
_VERSION = 2
# In the footer of a part: the checksum of the rows that it was made of.
_INPUT = b"spacy-elmo.input"
# Rows of a block: some tens of MB of vectors.
DEFAULT_ROWS = {"mean": 16_384, "tokens": 1024, "layers": 256}


@dataclass(frozen=True)
class ParquetJob:
    """What all processes of a run share. It can be pickled.

    out (Path): The folder.
    sources (Sequence): The input files and URLs, always in the same order.
    embed (Embed): Makes the vectors. Its `text` names the column of texts, its `output` that of the
        vectors.
    ids (Sequence[str]): Columns that are carried through; see `read_blocks`.
    n_rows (int): Rows of a block.
    reader (Reader): How inputs are read that are not Parquet.
    """

    out: Path
    sources: Sequence[Source]
    embed: Embed
    ids: Sequence[str]
    n_rows: int
    reader: Reader = field(default_factory=Reader)

    def prepare(self, *, force: bool = False) -> None:
        """Make the folder, or check that it is of a run with the same settings.

        force (bool): Remove what an earlier run has written.
        RAISES (ValueError): If it is of another run, or of something else, or if the settings are
            impossible.
        """
        import_arrow()
        output = self.embed.output
        if self.n_rows < 1:
            raise ValueError(f"rows must be 1 or more, found {self.n_rows}")
        if output in (self.ids or ["id"]) or (not self.ids and self.embed.text == "id"):
            raise ValueError(
                f"the names of the columns {[*(self.ids or ['id']), self.embed.text, output]} are "
                "not distinct: rename one"
            )
        settings, path = self._settings(), self.out / SETTINGS
        if force and path.is_file():
            for lock in self.out.glob(".*.lock"):
                with exclusive_lock(lock, f"another process is writing {self.out}: wait for it"):
                    pass
            remove_folder(self.out)
        # One look: another shard may begin in this moment.
        names = [x.name for x in self.out.glob("[!.]*")] if self.out.is_dir() else None
        if names and SETTINGS in names:
            try:
                previous = dict(srsly.read_json(path))
            except (ValueError, TypeError) as error:
                raise ValueError(
                    f"{path} is damaged ({error}): start afresh with --force"
                ) from error
            keys = sorted({*previous, *settings})
            differing = [key for key in keys if previous.get(key) != settings.get(key)]
            if differing:
                raise ValueError(
                    f"{self.out} is of a run that differs in {', '.join(differing)}: choose "
                    "another output, or start afresh with --force"
                )
            return
        if names or self.out.is_file():
            raise ValueError(
                f"{self.out} was not written by this command (no {SETTINGS} in it): choose another "
                "path, or remove it"
            )
        with atomic_file(path) as temporary:
            srsly.write_json(temporary, settings)

    def run(
        self, shard: int = 0, n_shards: int = 1, *, patience: float = 0
    ) -> Iterator[tuple[int, int, bool]]:
        """Write the parts of a shard that are not there yet, and its manifest. Shards take whole
        files if there are as many, else every n-th block.

        shard, n_shards (int): The number of the shard, from 0, and how many there are.
        patience (float): Seconds to wait for another process that is writing the shard.
        YIELDS (tuple): For each part, its number of rows, how many of them are null, and whether it
            was computed now.
        RAISES (ValueError): If something cannot be read, or differs from what an earlier run read.
        """
        manifest = self.out / f"_manifest-{shard + 1}-of-{n_shards}.json"
        with self._locked(shard, n_shards, patience):
            done, times = self._read_manifest(manifest), self._times()
            if done is not None and done.get("times") == times:
                yield done["n_rows"], done["n_nulls"], False
            else:
                self._clear(shard, n_shards)
                parts = {}
                for path, n_rows, n_nulls, is_new in self._write_parts(shard, n_shards):
                    counts = {"rows": n_rows, "nulls": n_nulls, "bytes": path.stat().st_size}
                    parts[path.name] = {**counts, "sha256": sha256(path)}
                    yield n_rows, n_nulls, is_new
                self._write_manifest(manifest, parts, times)
        self._merge(n_shards)

    @contextlib.contextmanager
    def _locked(self, shard: int, n_shards: int, patience: float) -> Iterator[None]:
        path = self.out / f".shard-{shard + 1}-of-{n_shards}.lock"
        message = f"another process is writing shard {shard + 1}/{n_shards} of {self.out}"
        end = time.monotonic() + patience
        with contextlib.ExitStack() as stack:
            while True:
                try:
                    stack.enter_context(exclusive_lock(path, message))
                    break
                except ValueError:
                    if time.monotonic() >= end:
                        raise
                    time.sleep(0.2)
            yield

    def _times(self) -> str:
        """RETURNS (str): A checksum of when the inputs were changed: if it differs, the rows of
        complete shards are compared again. URLs have no time, streams another one each time."""
        times = (_time(source) for source in self.sources)
        return _checksum(list(times))

    def _settings(self) -> dict[str, Any]:
        nlp, elmo = self.embed.load()
        return {
            "version": _VERSION,
            "inputs": _checksum([[str(source), _size(source)] for source in self.sources])[:16],
            "rows": self.n_rows,
            "ids": list(self.ids),
            "text": self.reader.text or self.embed.text,
            "encoding": self.reader.encoding,
            "errors": self.reader.errors,
            "pool": self.embed.pool,
            "layer": self.embed.layer,
            "dtype": self.embed.dtype,
            "precision": get_session(elmo.model).settings.precision,
            **describe_pipeline(nlp, elmo),
        }

    def _owns(self, file: int, block: int, shard: int, n_shards: int) -> bool:
        number = file if len(self.sources) >= n_shards else file + block
        return number % n_shards == shard

    def _write_parts(self, shard: int, n_shards: int) -> Iterator[tuple[Path, int, int, bool]]:
        by_file = len(self.sources) >= n_shards
        for number, source in enumerate(self.sources):
            if by_file and not self._owns(number, 0, shard, n_shards):
                continue
            is_wanted = partial(self._owns, number, shard=shard, n_shards=n_shards)
            text, ids, n = self.embed.text, self.ids, self.n_rows
            for block, table in read_blocks(source, text, ids, n, is_wanted, self.reader):
                path = self.out / f"part-{number:05}-{block:06}.parquet"
                first_row = block * self.n_rows + 1
                n_nulls = table.column(text).to_pylist().count(None)
                is_new = self._write_part(path, table, source, first_row)
                yield path, len(table), n_nulls, is_new

    def _write_part(self, path: Path, table: Any, source: Source, first_row: int) -> bool:
        """RETURNS (bool): Whether it was written, because it was not there."""
        where = f"{source}, rows {first_row} to {first_row + len(table) - 1}"
        checksum = _checksum(table.to_pydict())
        previous = _read_checksum(path)
        if previous is not None:
            if previous != checksum:
                raise ValueError(
                    f"{where}: the rows differ from those that {path} was made of: choose another "
                    "output, or start afresh with --force"
                )
            return False
        try:
            table = self.embed(table, first_row=first_row)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
        if self.embed.text not in self.ids:
            table = table.drop_columns([self.embed.text])
        table = table.replace_schema_metadata({_INPUT: checksum.encode()})
        try:
            with atomic_file(path) as temporary:
                import_arrow().parquet.write_table(
                    table,
                    temporary,
                    row_group_size=max(len(table), 1),
                    compression="zstd",
                    use_dictionary=list(self.ids),  # Vectors do not repeat.
                    write_statistics=list(self.ids or ["id"]),
                    write_page_checksum=True,
                )
        except OSError as error:  # Arrow's do not name the file.
            raise OSError(f"cannot write {path}: {error}") from error
        return True

    def _read_manifest(self, path: Path) -> Optional[dict[str, Any]]:
        """RETURNS (Optional[dict]): What it has, if the shard is complete."""
        try:
            content = srsly.read_json(path)
            parts = content["parts"]
            is_complete = all(_size(self.out / x) == parts[x]["bytes"] for x in parts)
        except (OSError, ValueError, LookupError, TypeError):
            return None
        return content if is_complete else None

    def _write_manifest(self, path: Path, parts: dict[str, Any], times: str) -> None:
        content = {
            "times": times,
            "n_rows": sum(part["rows"] for part in parts.values()),
            "n_nulls": sum(part["nulls"] for part in parts.values()),
            "n_parts": len(parts),
            "parts": dict(sorted(parts.items())),
        }
        with atomic_file(path) as temporary:
            srsly.write_json(temporary, content)

    def _merge(self, n_shards: int) -> None:
        """Write the manifest of all parts, if this was the last shard."""
        paths = list(self.out.glob(f"_manifest-*-of-{n_shards}.json"))
        done = [self._read_manifest(path) for path in paths] if len(paths) == n_shards else [None]
        if None not in done:
            parts = {name: part for x in done if x for name, part in x["parts"].items()}
            if others := sorted({x.name for x in self.out.glob("part-*")} - {*parts}):
                raise ValueError(
                    f"{self.out} has parts of rows that are no longer there, such as {others[0]}: "
                    "choose another output, or start afresh with --force"
                )
            self._write_manifest(self.out / MANIFEST, parts, self._times())

    def _clear(self, shard: int, n_shards: int) -> None:
        """Remove the temporary files that a killed run of this shard has left."""
        for path in self.out.glob(".part-*.tmp"):
            match = _PART.match(path.name[1:])
            if match and self._owns(int(match[1]), int(match[2]), shard, n_shards):
                clear_temporary(self.out, match[0])


def _size(source: Source) -> Optional[int]:
    """RETURNS (Optional[int]): Bytes of a file; None for a URL or a stream."""
    return source.stat().st_size if isinstance(source, Path) and source.is_file() else None


def _time(source: Source) -> Optional[int]:
    if isinstance(source, str):
        return None
    return time.time_ns() if is_stream(source) else source.stat().st_mtime_ns


def _checksum(data: Any) -> str:
    return hashlib.sha256(json.dumps(data, default=str).encode()).hexdigest()


def _read_checksum(path: Path) -> Optional[str]:
    """RETURNS (Optional[str]): The checksum of a part's rows; None if it is missing or damaged."""
    arrow = import_arrow()
    try:
        return arrow.parquet.read_metadata(path).metadata[_INPUT].decode()
    except (OSError, ValueError, LookupError, TypeError):
        return None
