"""Read the records of a file: lines, JSON lines, rows of a table, docs.

Lines end at line feeds only. All files may be compressed with what `smart_open` reads.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

import smart_open
from smart_open.compression import compression_wrapper
from spacy.tokens import Doc, DocBin
from spacy.vocab import Vocab

from .kinds import DOCS, LINES, STDIN, TABLE, Source, kind_of, path_of, suffix_of

Progress = Optional[Callable[[int], object]]

ERRORS = ("strict", "replace", "ignore")
_MAX_FIELD = 2**31 - 1  # Characters of a field of a table. The default of `csv` is 131,072.
# A number, the line where it begins, and the fields, what is wrong, or None for an empty line.
_Fields = tuple[int, int, Union[dict[str, Any], ValueError, None]]


class Record(NamedTuple):
    """A line, a row or a doc.

    number (int): Its number in the file, from 1. The header and empty lines of a table have none.
    text (Union[str, list[str], None]): The text or the tokens; None for null.
    ids (list[Optional[str]]): The values of other columns.
    """

    number: int
    text: Union[str, list[str], None]
    ids: Sequence[Optional[str]]


@dataclass
class Reader:
    """How records are read, and how many could not be.

    text (Optional[str]): The column of texts or of lists of tokens. By default it is "tokens" of an
        object that has this list, else "text".
    encoding (str): The encoding.
    errors (str): "strict": an error. "replace": U+FFFD for bytes that are not of the encoding, and
        for NUL; an empty text for a record without a text. "ignore": both are left out.
    nulls (str): Whether a text that is null is an "error", or "empty".
    n_bad (int): Lines and rows so far that were not read as they are.
    n_nulls (int): Texts so far that are null.
    RAISES (ValueError): If a value is impossible.
    """

    text: Optional[str] = None
    encoding: str = "utf8"
    errors: str = "strict"
    nulls: str = "error"
    n_bad: int = 0
    n_nulls: int = 0

    def __post_init__(self) -> None:
        try:
            # Not codecs.lookup: it also accepts encodings that are not of text, such as rot13.
            "\n".encode(self.encoding)
        except (LookupError, UnicodeError) as error:
            raise ValueError(f"{error}: give another --encoding") from error
        if self.errors not in ERRORS:
            raise ValueError(f"--errors must be one of {', '.join(ERRORS)}, found {self.errors!r}")
        self._last_bad = 0

    def read(
        self, source: Source, ids: Sequence[str] = (), progress: Progress = None
    ) -> Iterator[Record]:
        """Read a file.

        source (Union[Path, str]): A path, or a URL that `smart_open` reads.
        ids (Sequence[str]): Other columns to read, as strings.
        progress (Optional[Callable]): Called with the number of bytes read since the last call.
        YIELDS (Record): All records. An empty line of JSON lines is an empty text, or nothing if
            there are `ids`.
        RAISES (ValueError): If something cannot be read. The message names file and line.
        """
        kind, self._last_bad = kind_of(source), 0
        if kind == DOCS:
            for number, doc in enumerate(read_docbin(source, Vocab(), progress), start=1):
                words = [token.text for token in doc if not token.is_space]
                yield Record(number, " ".join(words), [])
            return
        lines = self._read_lines(source, progress)
        if kind == LINES:
            for number, text in enumerate(lines, start=1):
                yield Record(number, text.rstrip("\r\n"), [])
            return
        is_table = kind == TABLE
        objects = self._read_table(lines, source, ids) if is_table else _parse_lines(lines)
        for number, line, fields in objects:
            value: Union[str, list[str], None] = ""
            values: list[Optional[str]] = [""] * len(ids)
            try:
                if isinstance(fields, ValueError):
                    raise fields
                if fields is not None:
                    values = [_get_id(fields, name) for name in ids]
                    value = self._get_text(fields)
                elif ids:
                    continue
            except ValueError as error:
                where = f"row {number} (line {line})" if is_table else f"line {line}"
                self._report(source, line, f"{where}: {error}")
                if self.errors == "ignore":
                    continue
            self.n_nulls += value is None
            yield Record(number, value, values)

    def _report(self, source: Source, line: int, problem: str) -> None:
        """Count a line that is wrong. RAISES (ValueError): If the user wants an error."""
        if self.errors == "strict":
            raise ValueError(f"{_name(source)}, {problem}")
        # A row with several wrong lines, or a line that is wrong twice, counts once.
        if line > self._last_bad:
            self.n_bad += 1
            self._last_bad = line

    def _get_text(self, fields: dict[str, Any]) -> Union[str, list[str], None]:
        """RETURNS (Union[str, list, None]): The text or the tokens of an object.
        RAISES (ValueError): If it has none."""
        name = self.text or ("tokens" if isinstance(fields.get("tokens"), list) else "text")
        value = fields.get(name)
        if isinstance(value, str):
            return replace_surrogates(value)
        if isinstance(value, list) and all(isinstance(x, str) for x in value):
            if "" in value:
                raise ValueError(f"a token of {name!r} is an empty string: {value!r:.80}")
            return list(map(replace_surrogates, value))
        if value is None and name in fields:
            if self.nulls == "error":
                raise ValueError(f"{name!r} is null: remove it, or choose nulls 'empty'")
            return None
        raise ValueError(_misfit("a string or a list of strings", name, fields))

    def _read_lines(self, source: Source, progress: Progress) -> Iterator[str]:
        """YIELDS (str): Lines with their ends, decoded."""
        raw = _read_raw(source, self.encoding, self.errors, progress)
        for number, line in enumerate(raw, start=1):
            text, problem = self._decode(line)
            if "\0" in text:
                problem = problem or "holds NUL characters: is it text?"
                text = text.replace("\0", "\ufffd")
            if problem:
                self._report(source, number, f"line {number}: {problem}")
                text = text.replace("\ufffd", "") if self.errors == "ignore" else text
            yield text.removeprefix("\ufeff") if number == 1 else text

    def _decode(self, line: Union[str, bytes]) -> tuple[str, str]:
        """RETURNS (tuple): The line, with U+FFFD for what is wrong, and what is wrong."""
        if isinstance(line, str):
            is_bad = self.errors != "strict" and "\ufffd" in line
            return line, f"not {self.encoding}" if is_bad else ""
        try:
            return line.decode(self.encoding), ""
        except UnicodeDecodeError as error:
            return line.decode(self.encoding, "replace"), _undecodable(error, self.encoding)

    def _read_table(
        self, lines: Iterator[str], source: Source, ids: Sequence[str]
    ) -> Iterator[_Fields]:
        """Read rows, as Python's `csv` does. Empty lines are no rows.

        RAISES (ValueError): If the header has not the columns, or a quote is not closed.
        """
        is_over = False

        def feed() -> Iterator[str]:
            nonlocal is_over
            for line in lines:
                yield from io.StringIO(line, newline="")  # A line feed is not the only line end.
            is_over = True

        csv.field_size_limit(_MAX_FIELD)
        rows = csv.reader(feed(), delimiter="\t" if suffix_of(source) == ".tsv" else ",")
        header: list[str] = []
        number = end = 0
        for row in rows:
            start, end = end + 1, rows.line_num
            if is_over:  # `csv` takes the rest of the file for a field.
                raise ValueError(
                    f"{_name(source)}: a quote in the row that begins in line {start} is not closed"
                )
            if not row:
                continue
            if not header:
                header = row
                self._check_header(header, source, ids)
                continue
            number += 1
            if len(row) == len(header):
                yield number, start, dict(zip(header, row))
            else:
                problem = f"has {len(row)} fields, but the header {len(header)}"
                yield number, start, ValueError(problem)
        if not header:
            raise ValueError(f"{_name(source)}: it is empty, but must have a header of columns")

    def _check_header(self, header: list[str], source: Source, ids: Sequence[str]) -> None:
        for column in (*ids, self.text or "text"):
            if header.count(column) != 1:
                number = "no column" if column not in header else "several columns"
                is_default = self.text is None and column not in ids
                advice = ": name that of the texts with --text" if is_default else ""
                raise ValueError(f"{_name(source)}: {number} {column!r}, only {header}{advice}")


def _parse_lines(lines: Iterable[str]) -> Iterator[_Fields]:
    """YIELDS (tuple): JSON lines."""
    for number, line in enumerate(lines, start=1):
        fields: Union[dict[str, Any], ValueError, None] = None
        if line.strip():
            try:
                value = json.loads(line)
                is_object = isinstance(value, dict)
                fields = (
                    value if is_object else ValueError(f"must be an object, found {value!r:.80}")
                )
            except RecursionError:
                fields = ValueError("brackets are nested too deep to be read")
            except ValueError as error:
                fields = ValueError(f"not JSON: {error}")
        yield number, number, fields


def _get_id(fields: dict[str, Any], name: str) -> Optional[str]:
    """RETURNS (Optional[str]): A field that is carried through, or null.
    RAISES (ValueError): If there is none."""
    value = fields.get(name)
    if value is None and name in fields:
        return None
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, (int, float)):
        return json.dumps(value)
    raise ValueError(_misfit("a string or a number", name, fields))


def _misfit(kind: str, name: str, fields: dict[str, Any]) -> str:
    return f"must have {kind} {name!r}, found {fields.get(name)!r:.80} in {list(fields)}"


def _undecodable(error: UnicodeDecodeError, encoding: str) -> str:
    return (
        f"not {encoding} ({error.reason} at byte {error.start}): give the right --encoding "
        "or --errors replace, where the command has them, or convert it"
    )


def replace_surrogates(text: str) -> str:
    """Halves of surrogate pairs, valid in JSON but not in UTF-8, become question marks."""
    return text.encode("utf8", "replace").decode("utf8")


def read_docbin(source: Source, vocab: Vocab, progress: Progress = None) -> Iterator[Doc]:
    """RAISES (ValueError): If it is not a complete .spacy file."""
    try:
        with _open(source) as (_, stream):
            docs = DocBin().from_bytes(stream.read())
        yield from docs.get_docs(vocab)
    except Exception as error:  # A damaged file raises many kinds of errors.
        raise ValueError(f"{source}: not a complete .spacy file ({error})") from error
    if progress is not None and isinstance(source, Path):
        progress(source.stat().st_size)


def _read_raw(
    source: Source, encoding: str, errors: str, progress: Progress
) -> Iterator[Union[str, bytes]]:
    """YIELDS (Union[str, bytes]): Lines with their ends; decoded, if a line feed in this encoding
    is not a single byte. Else each is decoded by itself, so that an error names the right one."""
    number = position = 0
    has_size = isinstance(source, Path) and source.is_file()
    try:
        with _open(source) as (file, stream):
            if "\n".encode(encoding) != b"\n":
                errors = "strict" if errors == "strict" else "replace"
                stream = io.TextIOWrapper(stream, encoding, errors, newline="\n")
            for line in stream:
                number += 1
                if progress is not None and has_size and (end := file.tell()) > position:
                    progress(end - position)
                    position = end
                yield line
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{_name(source)}, after line {number}: {_undecodable(error, encoding)}"
        ) from error
    except ImportError as error:
        raise ValueError(
            f"{source}: to read {os.path.splitext(path_of(source))[1]}, install what it needs: "
            f'pip install "spacy-elmo[zst]" ({error})'
        ) from error
    except Exception as error:  # Each kind of compression raises its own errors.
        raise ValueError(f"{_name(source)}, after line {number}: {error}") from error


def _name(source: Source) -> str:
    return "stdin" if source == STDIN else str(source)


@contextlib.contextmanager
def _open(source: Source) -> Iterator[tuple[Any, Any]]:
    """YIELDS (tuple): The file as it is, and as it reads uncompressed."""
    if source == STDIN:
        yield sys.stdin.buffer, sys.stdin.buffer
        return
    if isinstance(source, Path):
        file: Any = source.open("rb")
    else:
        try:
            file = smart_open.open(source, "rb", compression="disable")
        except ImportError as error:  # Not of the compression, but of the kind of URL.
            raise ValueError(error) from error
    with file:
        yield file, compression_wrapper(file, "rb", filename=path_of(source))
