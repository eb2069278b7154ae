"""Read rows of texts for bulk embedding, as Arrow tables of a fixed number of rows.

.parquet            Named columns.
.jsonl              Named fields. Those that are carried through become strings. An empty line is a
                    row with an empty text, if that is the only field.
.txt, .spacy, -     One column, "text". Docs are joined by spaces.

A source is a path, or the URL of a file (s3://, gs://, ...): .parquet is read by pyarrow, others by
`smart_open`. pyarrow lists folders.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any, Union

from spacy.vocab import Vocab

from .arrow import import_arrow
from .texts import (
    EMPTY_LINE,
    SUFFIXES,
    find_files,
    path_of,
    read_docbin,
    read_fields,
    replace_surrogates,
)

ROW_SUFFIXES = (*SUFFIXES, ".parquet")
Source = Union[Path, str]


def find_sources(inputs: Sequence[str], out: Path) -> list[Source]:
    """Expand files, folders and patterns (see `find_files`), and URLs of folders, which end in "/".

    out (Path): The output. What it already has is not read.
    RAISES (ValueError): If an argument matches nothing, a file is of an unknown kind, or matches
        twice.
    """
    sources: list[Source] = []
    for name in inputs:
        if "://" in name:
            sources += _list_folder(name) if name.endswith("/") else [name]
            continue
        paths = find_files([name], any_suffix=True, suffixes=ROW_SUFFIXES)
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


def _list_folder(url: str) -> list[Source]:
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
    names = [x for x in names if x.lower().endswith(ROW_SUFFIXES) and not hidden.search(x)]
    if not names:
        raise ValueError(f"no text in {url}: give files of {', '.join(ROW_SUFFIXES)}")
    return [url.rstrip("/") + "/" + name for name in names]


def read_blocks(
    source: Source,
    text: str,
    ids: Sequence[str],
    n_rows: int,
    is_wanted: Callable[[int], bool] = lambda block: True,
) -> Iterator[tuple[int, Any]]:
    """Read a file in blocks.

    source (Union[Path, str]): A file or a URL.
    text (str): The column of texts, or of lists of tokens.
    ids (Sequence[str]): Other columns to read. Without one, there is a column "id" that names file
        and row, such as "a.txt:1".
    n_rows (int): Rows of each block but the last.
    is_wanted (Callable): Whether to yield a block of this number. Rows of others are not checked.
    YIELDS (tuple): The number of a block, from 0, and its columns `ids` and `text`, an Arrow table.
    RAISES (ValueError): If something cannot be read, or there is no such column.
    """
    names = list(dict.fromkeys([*ids, text]))
    is_parquet = path_of(source).lower().endswith(".parquet")
    read = _read_parquet if is_parquet else _read_rows
    for block, table in read(source, names, text, n_rows, is_wanted):
        if not ids:
            first = block * n_rows + 1
            column = [f"{source}:{row}" for row in range(first, first + len(table))]
            table = table.add_column(0, "id", import_arrow().array(column))
        yield block, table


def _read_parquet(
    source: Source, names: list[str], text: str, n_rows: int, is_wanted: Callable[[int], bool]
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


def _read_rows(
    source: Source, names: list[str], text: str, n_rows: int, is_wanted: Callable[[int], bool]
) -> Iterator[tuple[int, Any]]:
    arrow = import_arrow()
    is_docs = path_of(source).lower().endswith(".spacy")
    fields = _read_docs(source) if is_docs else read_fields(source)
    if names != ["text"]:
        fields = (pair for pair in fields if pair[1] is not EMPTY_LINE)
    for block in count():
        few = islice(fields, n_rows)
        if not is_wanted(block):
            if not sum(1 for _ in few):
                return
            continue
        rows = [[_value(where, row, name, text) for name in names] for where, row in few]
        if not rows:
            return
        columns = dict(zip(names, zip(*rows)))
        try:
            # Without values, the type is that of other blocks.
            arrays = [
                arrow.array(x, None if any(value is not None for value in x) else arrow.string())
                for x in columns.values()
            ]
            table = arrow.table(arrays, names)
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"{source}, after row {block * n_rows}: cannot make columns of {names}: the texts "
                f"must be all strings, or all lists of tokens ({error})"
            ) from error
        yield block, table


def _read_docs(path: Source) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, doc in enumerate(read_docbin(path, Vocab(), None), start=1):
        words = [token.text for token in doc if not token.is_space]
        yield f"{path}, doc {number}", {"text": " ".join(words)}


def _value(where: str, row: dict[str, Any], name: str, text: str) -> Any:
    """RETURNS (Union[str, list[str], None]): A field, as it goes into its column. `Embed` decides
        about texts that are null.
    RAISES (ValueError): If there is none, or it does not fit."""
    value = row.get(name)
    if value is None and name in row:
        return None
    if isinstance(value, str):
        return replace_surrogates(value)
    if name == text:
        if isinstance(value, list) and all(isinstance(token, str) for token in value):
            return list(map(replace_surrogates, value))
        kind = "a string or a list of strings"
    else:
        if isinstance(value, (int, float)):
            return json.dumps(value)
        kind = "a string or a number"
    raise ValueError(f"{where}: must have {kind} {name!r}, found {value!r:.80} in {list(row)}")
