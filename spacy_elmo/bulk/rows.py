"""Read rows of texts in blocks of a fixed number. A source is a path, or the URL of a file (s3://,
gs://, ...): .parquet is read by pyarrow, others by `smart_open`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

from ..tools.records import PARQUET, Reader, Source, Text, check_kind, kind_of
from ..tools.texts import find_files
from .arrow import import_arrow


def find_sources(inputs: Sequence[str], out: Path, *, columns: bool = False) -> list[Source]:
    """Expand files, folders and patterns (see `find_files`). URLs stay as they are.

    out (Path): The output. What it already has is not read.
    columns (bool): Whether the user has named columns.
    RAISES (ValueError): If an argument matches nothing, a file is of an unknown kind, or matches
        twice.
    """
    sources: list[Source] = []
    target = out.resolve()
    for name in inputs:
        if "://" in name:
            check_kind(name, columns=columns, parquet=True)
            sources.append(name)
            continue
        paths = find_files([name], columns=columns, parquet=True)
        sources += (x for x in paths if target not in (x.resolve(), *x.resolve().parents))
    if not sources:
        raise ValueError(f"no text in {', '.join(inputs)} besides the output")
    counts = Counter(x if isinstance(x, str) else str(x.resolve()) for x in sources)
    source, n = counts.most_common(1)[0]
    if n > 1:
        raise ValueError(f"{source} is given {n} times: its rows would have the same IDs")
    return sources


def is_stream(source: Source) -> bool:
    """RETURNS (bool): Whether it can be read only once, as stdin and named pipes."""
    return isinstance(source, Path) and not source.is_file()


class Block(NamedTuple):
    """Rows of a file.

    number (int): Its number in the file, from 0.
    texts (list): Texts, lists of tokens, docs, or None for null.
    ids (dict): The columns that are carried through: lists, or columns of Arrow.
    """

    number: int
    texts: list[Text]
    ids: dict[str, Any]


def read_blocks(
    source: Source,
    text: str,
    ids: Sequence[str],
    n_rows: int,
    reader: Reader,
    first: int = 0,
    every: int = 1,
) -> Iterator[Block]:
    """Read a file in blocks of `n_rows`.

    text (str): The column of texts, of Parquet.
    ids (Sequence[str]): Other columns to read. Without one, there is a column "id" that names file
        and row, such as "a.txt:1".
    reader (Reader): How to read what is not Parquet.
    first, every (int): Yield the blocks `first`, `first + every`, ...
    RAISES (ValueError): If something cannot be read, or there is no such column.
    """
    if kind_of(source) == PARQUET:
        for number, table in enumerate(_read_tables(source, [*ids, text], n_rows)):
            if number % every == first:
                start = number * n_rows + 1
                names = [f"{source}:{row}" for row in range(start, start + len(table))]
                columns = {name: table.column(name) for name in ids} or {"id": names}
                yield Block(number, table.column(text).to_pylist(), columns)
        return
    records = reader.read(source, ids)
    for number in count():
        n_bad = reader.n_bad
        block = list(islice(records, n_rows))
        if not block:
            return
        if number % every != first:
            reader.n_bad = n_bad  # Whoever wants the block counts them.
            continue
        columns = {name: [record.ids[i] for record in block] for i, name in enumerate(ids)}
        names = [f"{source}:{record.number}" for record in block]
        yield Block(number, [record.text for record in block], columns or {"id": names})


def _read_tables(source: Source, names: list[str], n_rows: int) -> Iterator[Any]:
    """YIELDS (Table): Columns of a Parquet file, so many rows at a time."""
    arrow = import_arrow()
    names = list(dict.fromkeys(names))
    try:
        file_system, path = None, str(source)
        if isinstance(source, str):
            from pyarrow.fs import FileSystem

            file_system, path = FileSystem.from_uri(source)
        with arrow.parquet.ParquetFile(path, filesystem=file_system) as file:
            missing = [name for name in names if name not in file.schema_arrow.names]
            if missing:
                raise ValueError(f"no column {missing[0]!r}, only {file.schema_arrow.names}")
            rest = file.schema_arrow.empty_table().select(names)
            for batch in file.iter_batches(batch_size=n_rows, columns=names):
                batch = arrow.Table.from_batches([batch]).select(names)
                rest = arrow.concat_tables([rest, batch])
                while len(rest) >= n_rows:
                    yield rest[:n_rows]
                    rest = rest[n_rows:]
            if len(rest):
                yield rest
    except (ValueError, OSError, LookupError, arrow.ArrowException) as error:
        raise ValueError(f"{source}: {error}") from error
