"""Read the records of a file: lines, JSON lines, rows of a table or of Parquet, docs. A source is a
path, or the URL of a file. All but Parquet may be compressed with what `smart_open` reads."""

from __future__ import annotations

import codecs
import contextlib
import csv
import io
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Optional, Union

import numpy
import smart_open
from smart_open.compression import compression_wrapper
from spacy.tokens import Doc, DocBin
from spacy.vocab import Vocab

Source = Union[Path, str]
Text = Union[str, list[str], Doc, None]
# Called with how much was done since the last call; where it says so, also with the total.
Progress = Optional[Callable[..., object]]
# The fields of a record, what is wrong with it, or None for an empty line.
_Fields = Union[dict[str, Any], ValueError, None]

STDIN = Path("-")
ERRORS = ("strict", "replace", "ignore")
LINES, JSON, TABLE, DOCS, PARQUET = "lines", "lines of JSON", "rows", "docs", "rows of Parquet"
# What a suffix means. A name has the meaning of its last suffix that is here, or is refused,
# whatever follows, such as .gz or .part1; without one, it has lines.
KINDS = {
    ".txt": LINES,
    ".jsonl": JSON,
    ".ndjson": JSON,
    ".csv": TABLE,
    ".tsv": TABLE,
    ".spacy": DOCS,
    ".parquet": PARQUET,
}
_REFUSED = re.compile(
    r"\.(json|geojson|conll|conllu|conllx|conllubio|iob2?|ner|x?html?|xml|pdf|docx?|odt|rtf|epub|"
    r"xlsx?|ods|arrow|feather|orc|avro|db|sqlite3?|pkl|pickle|np[yz]|hdf5|h5|safetensors|zip|tar|"
    r"tgz|tbz2|txz|7z|rar)"
)
# The suffixes of the files that are read in a folder.
SUFFIXES = tuple(x + end for x in KINDS for end in ("", ".gz", ".zst", ".bz2", ".xz"))

# Bytes that cannot be decoded become this surrogate, which no encoding has.
_BAD = "\udfff"
codecs.register_error("spacy-elmo", lambda error: (_BAD, error.end))  # type: ignore[attr-defined]


def import_arrow() -> Any:
    """RETURNS (module): pyarrow. RAISES (ValueError): If it is not installed."""
    try:
        import pyarrow.fs
        import pyarrow.parquet
    except ImportError as error:
        raise ValueError(f'Parquet: pip install "spacy-elmo[arrow]" ({error})') from error
    return pyarrow


def suffix_of(source: Source) -> str:
    """RETURNS (str): The suffix that says of what kind a source is; empty if none does."""
    suffixes = [f".{x}" for x in os.path.basename(_path_of(source)).lower().split(".")[:0:-1]]
    return next((x for x in suffixes if x in KINDS or _REFUSED.fullmatch(x)), "")


def check_kind(source: Source, *, columns: bool = False) -> str:
    """RETURNS (str): How a source is read. RAISES (ValueError): If it is of a kind that is not
    read, or has no columns although the user has named some (`columns`)."""
    suffix = suffix_of(source)
    kind = KINDS.get(suffix, LINES)
    if _REFUSED.fullmatch(suffix):
        advice = "of annotated files, `python -m spacy convert FILE FOLDER` makes .spacy"
        raise ValueError(f"{source}: {suffix} is not read: write .txt, .jsonl or .csv; {advice}")
    if columns and kind in (LINES, DOCS):
        advice = "leave out the options that name one (--text, --id, --label)"
        raise ValueError(f"{source}: its {kind} have no columns: {advice}")
    return kind


def check_text(value: Any, nulls: str, name: str) -> Text:
    """RETURNS (Union[str, list, Doc, None]): A string, a list of tokens or a doc. Halves of
    surrogate pairs, valid in JSON but not in UTF-8, are question marks. Null, or what pandas makes
    of it, is None if `nulls` is "empty", not "error". `name` is for messages."""
    if isinstance(value, str):
        return value.encode("utf8", "replace").decode("utf8")
    if isinstance(value, Doc):
        return value
    is_list = isinstance(value, (list, tuple, numpy.ndarray))
    if is_list and all(isinstance(x, str) and x for x in value):
        return [x.encode("utf8", "replace").decode("utf8") for x in value]
    is_nan = isinstance(value, float) and math.isnan(value)
    is_null = value is None or is_nan or type(value).__name__ == "NAType"
    problem = f"is neither a string nor a list of tokens: {value!r:.80}"
    if is_null and nulls == "error":
        problem = "is null: remove it, or choose nulls 'empty'"
    elif is_null:
        return None
    raise ValueError(f"{name} {problem}")


@dataclass
class Reader:
    """How records are read, and how many could not be.

    text (Optional[str]): The column of texts or of lists of tokens. By default it is "tokens" of an
        object that has this list, else "text".
    errors (str): "strict": an error. "replace": U+FFFD for bytes that are not of the encoding, and
        for NUL; an empty text for a record without a text. "ignore": both are left out.
    nulls (str): Whether a text that is null is an "error", or "empty".
    n_bad (int): Records so far that were not read as they are.
    """

    text: Optional[str] = None
    encoding: str = "utf8"
    errors: str = "strict"
    nulls: str = "error"
    n_bad: int = 0
    _problem: str = field(default="", init=False, repr=False, compare=False)  # Of lines.

    def __post_init__(self) -> None:
        try:
            "\n".encode(self.encoding)  # Fails for those that are not of text, such as rot13.
            ERRORS.index(self.errors)
        except (LookupError, ValueError) as error:
            advice = f"give an --encoding of text, and --errors {', '.join(ERRORS)}"
            raise ValueError(f"{error}: {advice}") from error

    def read(
        self, source: Source, ids: Sequence[str] = (), progress: Progress = None
    ) -> Iterator[tuple[int, Text, list[Any]]]:
        """Read a file. Empty lines of tables and of JSON lines are no records.

        progress (Optional[Callable]): Called with the number of bytes read since the last call.
        YIELDS (tuple): The number of the line, row or doc in the file, from 1, the text, and the
            values of the columns `ids`: strings and nulls, of Parquet scalars of Arrow.
        """
        where = self._problem = ""
        unit = check_kind(source).split()[0][:-1]
        try:
            for number, fields in enumerate(self._parse(source, ids, progress), start=1):
                where, problem = f", {unit} {number}", ""
                text: Text = ""
                values: list[Any] = [""] * len(ids)
                if fields is None:
                    continue
                if isinstance(fields, ValueError):
                    problem = str(fields)
                else:
                    try:
                        values = [_get_id(fields[name]) for name in ids]
                        text = self._get_text(fields)
                    except (KeyError, ValueError) as error:
                        is_missing = isinstance(error, KeyError)
                        problem = f"no {error}, only {list(fields)}" if is_missing else str(error)
                if problem or self._problem:
                    if self.errors == "strict":
                        raise ValueError(problem or self._problem)
                    self._problem = ""
                    self.n_bad += 1
                where = f", after {unit} {number}"
                if not problem or self.errors == "replace":
                    yield number, text, values
        except Exception as error:  # Each kind of file and of compression has its own errors.
            name = "stdin" if source == STDIN else source
            raise ValueError(f"{name}{where}: {error}") from error

    def _parse(self, source: Source, ids: Sequence[str], progress: Progress) -> Iterator[_Fields]:
        kind = check_kind(source)
        columns = list(dict.fromkeys([*ids, self.text or "text"]))
        if kind in (DOCS, PARQUET):
            rows = _read_docs(source) if kind == DOCS else _read_parquet(source, columns)
            size = source.stat().st_size if isinstance(source, Path) and progress else 0
            for number, (fields, n_rows) in enumerate(rows):
                yield fields
                if progress is not None:  # Rows have no sizes of their own.
                    progress(size * (number + 1) // n_rows - size * number // n_rows)
            return
        # Lines end at line feeds only, but Python's `csv` wants line ends as they are.
        lines = self._read_lines(source, "" if kind == TABLE else "\n", progress)
        if kind == TABLE:
            yield from _read_table(lines, "\t" if suffix_of(source) == ".tsv" else ",", columns)
        for line in lines:
            yield _parse_json(line) if kind == JSON else {"text": line.rstrip("\r\n")}

    def _read_lines(self, source: Source, newline: str, progress: Progress) -> Iterator[str]:
        position = 0
        encoding = "utf-8-sig" if codecs.lookup(self.encoding).name == "utf-8" else self.encoding
        with _open(source) as (file, stream):
            text = io.TextIOWrapper(stream, encoding, "spacy-elmo", newline)
            try:
                for line in text:
                    if progress is not None and file.seekable():
                        progress(file.tell() - position)
                        position = file.tell()
                    if _BAD in line or "\0" in line:
                        what = f"not {self.encoding} text" if _BAD in line else "NUL: no text"
                        self._problem = f"{what}: give another --encoding, or --errors replace"
                        mark = "" if self.errors == "ignore" else "\ufffd"
                        line = line.replace(_BAD, mark).replace("\0", mark)
                    yield line
            finally:
                with contextlib.suppress(ValueError):  # It is closed.
                    text.detach()  # Else stdin would be.

    def _get_text(self, fields: dict[str, Any]) -> Text:
        name = self.text or ("tokens" if isinstance(fields.get("tokens"), list) else "text")
        value = fields[name]
        value = value.as_py() if hasattr(value, "as_py") else value
        return check_text(value, self.nulls, repr(name))


def _get_id(value: Any) -> Any:
    if isinstance(value, (str, Doc)):
        return check_text(str(value), "error", "")
    return json.dumps(value) if isinstance(value, (int, float, list, dict)) else value


def _read_table(lines: Iterator[str], delimiter: str, columns: Sequence[str]) -> Iterator[_Fields]:
    csv.field_size_limit(2**31 - 1)  # By default 131,072 characters.
    # The mark is a row of its own, unless a quote is not closed.
    rows = filter(None, csv.reader(chain(lines, [_BAD]), delimiter=delimiter))
    header = next(rows)
    _check_header(header, columns)
    for row in rows:
        if row == [_BAD]:
            return
        if row[-1].endswith(_BAD):
            raise ValueError("a quote in the next row is not closed")
        problem = ValueError(f"has {len(row)} fields, but the header {len(header)}")
        yield dict(zip(header, row)) if len(row) == len(header) else problem


def _check_header(header: list[str], columns: Sequence[str]) -> None:
    if wrong := [name for name in columns if header.count(name) != 1]:
        advice = f"found {[x for x in header if x != _BAD]}: rename one, or name it with --text"
        raise ValueError(f"there must be one column {wrong[0]!r}, {advice}")


def _parse_json(line: str) -> _Fields:
    try:
        value = json.loads(line) if line.strip() else None
    except (ValueError, RecursionError) as error:  # The second one for brackets without end.
        return ValueError(f"not JSON: {error}")
    is_right = isinstance(value, dict) or not line.strip()
    return value if is_right else ValueError(f"no object: {value!r:.80}")


def _read_docs(source: Source) -> Iterator[tuple[_Fields, int]]:
    """YIELDS (tuple): The fields of a row, and the number of all rows."""
    with _open(source) as (_, stream):
        docs = DocBin().from_bytes(stream.read())
    yield from (({"text": doc}, len(docs)) for doc in docs.get_docs(Vocab()))


def _read_parquet(source: Source, columns: list[str]) -> Iterator[tuple[_Fields, int]]:
    """YIELDS (tuple): See `_read_docs`."""
    arrow = import_arrow()  # Its scalars have their types.
    is_url = isinstance(source, str)
    file_system, path = arrow.fs.FileSystem.from_uri(source) if is_url else (None, source)
    with arrow.parquet.ParquetFile(path, filesystem=file_system) as file:
        _check_header(file.schema_arrow.names, columns)
        n_rows = file.metadata.num_rows
        for batch in file.iter_batches(columns=columns):
            yield from ((dict(zip(batch.schema.names, row)), n_rows) for row in zip(*batch.columns))


def _path_of(source: Source) -> str:  # Without the query of a URL, such as a signature.
    return str(source) if isinstance(source, Path) else source.partition("?")[0]


@contextlib.contextmanager
def _open(source: Source) -> Iterator[tuple[Any, Any]]:
    """YIELDS (tuple): The file as it is, and as it reads uncompressed."""
    if source == STDIN:
        yield sys.stdin.buffer, sys.stdin.buffer
    else:
        with smart_open.open(source, "rb", compression="disable") as file:
            yield file, compression_wrapper(file, "rb", filename=_path_of(source))
