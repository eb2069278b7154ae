"""Read rows of texts for bulk embedding, as Arrow tables of a fixed number of rows.

Columns of .parquet keep their types, those of other files become strings (see `kinds`). A source
is a path, or the URL of a file (s3://, gs://, ...): .parquet is read by pyarrow, others by
`smart_open`. pyarrow lists folders.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any, Optional

from ..tools.kinds import KINDS, PARQUET, SUFFIXES, Source, check_kind, kind_of
from ..tools.records import Reader
from ..tools.texts import find_files
from .arrow import import_arrow


def find_sources(inputs: Sequence[str], out: Path, *, columns: bool = False) -> list[Source]:
    """Expand files, folders and patterns (see `find_files`), and URLs of folders, which end in "/".

    out (Path): The output. What it already has is not read.
    columns (bool): Whether the user has named columns.
    RAISES (ValueError): If an argument matches nothing, a file is of an unknown kind, or matches
        twice.
    """
    sources: list[Source] = []
    for name in inputs:
        if "://" in name:
            urls = _list_folder(name) if name.endswith("/") else [name]
            for url in urls:
                check_kind(url, columns=columns, parquet=True)
            sources += urls
            continue
        paths = find_files([name], columns=columns, parquet=True)
        sources += (path for path in paths if out.resolve() not in path.resolve().parents)
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


def _list_folder(url: str) -> list[str]:
    """RETURNS (list): The URLs of the files below a folder, sorted, without hidden ones."""
    arrow = import_arrow()
    from pyarrow.fs import FileSelector, FileSystem

    try:
        file_system, folder = FileSystem.from_uri(url)
        infos = file_system.get_file_info(FileSelector(folder, recursive=True))
    except (ValueError, OSError, arrow.ArrowException) as error:
        raise ValueError(f"{url}: cannot list it: name its files instead ({error})") from error
    names = sorted(x.path[len(folder.rstrip("/")) + 1 :] for x in infos if x.is_file)
    hidden = re.compile(r"(^|/)[._]")
    names = [
        x for x in names if x.lower().endswith((*SUFFIXES, ".parquet")) and not hidden.search(x)
    ]
    if not names:
        raise ValueError(f"no text in {url}: give files of {', '.join(KINDS)}")
    return [url.rstrip("/") + "/" + name for name in names]


def read_blocks(
    source: Source,
    text: str,
    ids: Sequence[str],
    n_rows: int,
    is_wanted: Callable[[int], bool] = lambda block: True,
    reader: Optional[Reader] = None,
) -> Iterator[tuple[int, Any]]:
    """Read a file in blocks.

    source (Union[Path, str]): A file or a URL.
    text (str): The column of texts, or of lists of tokens.
    ids (Sequence[str]): Other columns to read. Without one, there is a column "id" that names file
        and row, such as "a.txt:1".
    n_rows (int): Rows of each block but the last.
    is_wanted (Callable): Whether to yield a block of this number.
    reader (Optional[Reader]): How to read what is not Parquet.
    YIELDS (tuple): The number of a block, from 0, and its columns `ids` and `text`, an Arrow table.
    RAISES (ValueError): If something cannot be read, or there is no such column.
    """
    if kind_of(source) != PARQUET:
        yield from _read_records(source, text, ids, n_rows, is_wanted, reader or Reader())
        return
    names = list(dict.fromkeys([*ids, text]))
    for block, table in _read_parquet(source, names, n_rows, is_wanted):
        if not ids:
            first = block * n_rows + 1
            column = [f"{source}:{row}" for row in range(first, first + len(table))]
            table = table.add_column(0, "id", import_arrow().array(column))
        yield block, table


def _read_parquet(
    source: Source, names: list[str], n_rows: int, is_wanted: Callable[[int], bool]
) -> Iterator[tuple[int, Any]]:
    arrow = import_arrow()
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
            block = 0
            for batch in file.iter_batches(batch_size=n_rows, columns=names):
                batch = arrow.Table.from_batches([batch]).select(names)
                rest = arrow.concat_tables([rest, batch])
                while len(rest) >= n_rows:
                    if is_wanted(block):
                        yield block, rest[:n_rows]
                    rest, block = rest[n_rows:], block + 1
            if len(rest) and is_wanted(block):
                yield block, rest
    except (ValueError, OSError, LookupError, arrow.ArrowException) as error:
        raise ValueError(f"{source}: {error}") from error


def _read_records(
    source: Source,
    text: str,
    ids: Sequence[str],
    n_rows: int,
    is_wanted: Callable[[int], bool],
    reader: Reader,
) -> Iterator[tuple[int, Any]]:
    arrow = import_arrow()
    others = [name for name in ids if name != text]
    records = reader.read(source, others)
    for block in count():
        n_bad = reader.n_bad
        few = list(islice(records, n_rows))
        if not few:
            return
        if not is_wanted(block):
            reader.n_bad = n_bad  # Whoever wants the block counts them.
            continue
        columns: dict[str, Any] = {
            name: arrow.array([record.ids[i] for record in few], arrow.string())
            for i, name in enumerate(others)
        }
        columns[text] = _text_column([record.text for record in few])
        if not ids:
            columns["id"] = [f"{source}:{record.number}" for record in few]
        if text in ids and arrow.types.is_union(columns[text].type):
            raise ValueError(
                f"{source}: the column {text!r} has texts and lists of tokens, and so cannot be "
                "written: leave out its --id"
            )
        yield block, arrow.table(columns).select([*dict.fromkeys([*(ids or ["id"]), text])])


def _text_column(texts: list[Any]) -> Any:
    """RETURNS (Array): Strings, lists of tokens, or a union of both."""
    arrow = import_arrow()
    kinds = [int(isinstance(text, list)) for text in texts]
    has_kinds = {kind for text, kind in zip(texts, kinds) if text is not None}
    if len(has_kinds) <= 1:  # If all are null, the type is that of strings.
        return arrow.array(texts, None if 1 in has_kinds else arrow.string())
    children = [[x if y == kind else None for x, y in zip(texts, kinds)] for kind in (0, 1)]
    return arrow.UnionArray.from_sparse(
        arrow.array(kinds, arrow.int8()), list(map(arrow.array, children))
    )
