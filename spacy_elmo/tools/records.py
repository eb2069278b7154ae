"""Read the records of a file: lines, JSON lines, rows of a table, docs. All files may be compressed
with what `smart_open` reads."""

from __future__ import annotations

import codecs
import contextlib
import csv
import io
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

import smart_open
from smart_open.compression import compression_wrapper
from spacy.tokens import Doc, DocBin
from spacy.vocab import Vocab

Source = Union[Path, str]
Text = Union[str, list[str], Doc, None]
Progress = Optional[Callable[[int], object]]
# A number, the line where it begins, and the fields, what is wrong, or None for an empty line.
_Fields = tuple[int, int, Union[dict[str, Any], str, None]]

STDIN = Path("-")
ERRORS = ("strict", "replace", "ignore")
LINES, JSON, TABLE, DOCS, PARQUET = "lines", "json", "table", "docs", "parquet"
# What a suffix means. A name has the meaning of its last suffix that is here, whatever follows,
# such as .gz or .part1; without one, it has lines.
KINDS = {
    ".txt": LINES,
    ".jsonl": JSON,
    ".ndjson": JSON,
    ".csv": TABLE,
    ".tsv": TABLE,
    ".spacy": DOCS,
    ".parquet": PARQUET,
}
# Known formats that are not read, and what to do with them.
_ADVICE = {
    ".json .geojson": "name it .jsonl if it has an object per line, or else write it so",
    ".conllu .conllubio .conll .conllx .iob .iob2 .ner": "`python -m spacy convert FILE "
    "FOLDER` makes a .spacy file of it",
    ".html .htm .xhtml .xml .pdf .doc .docx .odt .rtf .epub": "write its text to a .txt file, "
    "a text per line",
    ".xlsx .xls .ods": "save it as .csv",
    ".arrow .feather .orc .avro .db .sqlite .sqlite3 .pkl .pickle": "write it as .parquet, .csv or "
    ".jsonl",
    ".npy .npz .hdf5 .h5 .safetensors": "it has arrays, not text",
    ".zip .tar .tgz .tbz2 .txz .7z .rar": "unpack it",
}
_REFUSED = {suffix: advice for suffixes, advice in _ADVICE.items() for suffix in suffixes.split()}
# The suffixes of the files that are read in a folder.
_COMPRESSIONS = ("", ".gz", ".zst", ".bz2", ".xz")
SUFFIXES = tuple(x + end for x in KINDS if KINDS[x] != PARQUET for end in _COMPRESSIONS)
_MAX_FIELD = 2**31 - 1  # Characters of a field of a table. The default of `csv` is 131,072.

# Bytes that cannot be decoded become this surrogate, which no encoding has.
_BAD = "\udfff"
codecs.register_error("spacy-elmo", lambda error: (_BAD, error.end))  # type: ignore[attr-defined]


def path_of(source: Source) -> str:
    """RETURNS (str): A path, or a URL without its query, such as a signature."""
    return str(source) if isinstance(source, Path) else source.partition("?")[0]


def suffix_of(source: Source) -> str:
    """RETURNS (str): The suffix that says of what kind a source is; empty if none does."""
    suffixes = [f".{x}" for x in os.path.basename(path_of(source)).lower().split(".")[1:]]
    return next((x for x in reversed(suffixes) if x in KINDS or x in _REFUSED), "")


def kind_of(source: Source) -> str:
    """RETURNS (str): How a source is read."""
    return KINDS.get(suffix_of(source), LINES)


def check_kind(source: Source, *, columns: bool, parquet: bool) -> None:
    """RAISES (ValueError): If a source is of a kind that is not read (Parquet is, if the caller
    reads it), or has no columns although the user has named some."""
    suffix, kind = suffix_of(source), kind_of(source)
    if suffix in _REFUSED:
        raise ValueError(f"{source}: {suffix} is not read: {_REFUSED[suffix]}")
    if kind == PARQUET and not parquet:
        raise ValueError(
            f"{source}: only `spacy elmo embed` reads .parquet: write it as .csv or .jsonl"
        )
    if columns and kind in (LINES, DOCS):
        raise ValueError(
            f"{source}: its {kind} have no columns: leave out --text and --id, or give .csv, .tsv, "
            ".jsonl or .parquet"
        )


class Record(NamedTuple):
    """A line, a row or a doc: its number in the file, from 1 (the header and empty lines of a table
    have none), its text, and the values of other columns."""

    number: int
    text: Text
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
    RAISES (ValueError): If a value is impossible.
    """

    text: Optional[str] = None
    encoding: str = "utf8"
    errors: str = "strict"
    nulls: str = "error"
    n_bad: int = 0

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
        """Read a file, or a URL that `smart_open` reads. An empty line of JSON lines is an empty
        text, or no record if there are `ids`.

        ids (Sequence[str]): Other columns to read, as strings.
        progress (Optional[Callable]): Called with the number of bytes read since the last call.
        RAISES (ValueError): If something cannot be read. The message names file and line.
        """
        self._last_bad = 0
        is_table = kind_of(source) == TABLE
        for number, line, fields in self._parse(source, ids, progress):
            text: Text = ""
            values: list[Optional[str]] = [""] * len(ids)
            if fields is None and {*ids} - {self.text or "text"}:
                continue
            try:
                if isinstance(fields, str):
                    raise ValueError(fields)
                if fields is not None:
                    values = [_get_id(fields, name) for name in ids]
                    text = self._get_text(fields)
            except ValueError as error:
                where = f"row {number} (line {line})" if is_table else f"line {line}"
                self._report(source, line, f"{where}: {error}")
                if self.errors == "ignore":
                    continue
            yield Record(number, text, values)

    def _parse(self, source: Source, ids: Sequence[str], progress: Progress) -> Iterator[_Fields]:
        kind = kind_of(source)
        if kind == DOCS:
            for number, doc in enumerate(_read_docbin(source, progress), start=1):
                yield number, number, {"text": doc}
            return
        # Lines end at line feeds only. Python's `csv` wants the line ends of a table as they are.
        lines = self._read_lines(source, "" if kind == TABLE else "\n", progress)
        if kind == TABLE:
            yield from self._parse_table(lines, source, ids)
        for number, line in enumerate(lines, start=1):
            yield (
                number,
                number,
                _parse_json(line) if kind == JSON else {"text": line.rstrip("\r\n")},
            )

    def _report(self, source: Source, line: int, problem: str) -> None:
        """Count a line that is wrong. RAISES (ValueError): If the user wants an error."""
        if self.errors == "strict":
            raise ValueError(f"{_name(source)}, {problem}")
        # A row with several wrong lines, or a line that is wrong twice, counts once.
        if line > self._last_bad:
            self.n_bad += 1
            self._last_bad = line

    def _get_text(self, fields: dict[str, Any]) -> Text:
        """RAISES (ValueError): If an object has no text."""
        name = self.text or ("tokens" if isinstance(fields.get("tokens"), list) else "text")
        value = fields.get(name)
        if isinstance(value, Doc):
            return value
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

    def _read_lines(self, source: Source, newline: str, progress: Progress) -> Iterator[str]:
        """YIELDS (str): Lines with their ends, decoded."""
        raw = _read_raw(source, self.encoding, newline, progress)
        for number, line in enumerate(raw, start=1):
            line = line.removeprefix("\ufeff") if number == 1 else line
            if _BAD in line or "\0" in line:
                problem = (
                    f"not {self.encoding} text: give the right --encoding or --errors replace, "
                    "where the command has them, or convert it"
                    if _BAD in line
                    else "holds NUL characters: is it text?"
                )
                self._report(source, number, f"line {number}: {problem}")
                mark = "" if self.errors == "ignore" else "\ufffd"
                line = line.replace(_BAD, mark).replace("\0", mark)
            yield line

    def _parse_table(
        self, lines: Iterator[str], source: Source, ids: Sequence[str]
    ) -> Iterator[_Fields]:
        """Read rows, as Python's `csv` does. Empty lines are no rows."""
        is_over = False

        def feed() -> Iterator[str]:
            nonlocal is_over
            yield from lines
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
            if row and not header:
                header = row
                for column in (*ids, self.text or "text"):
                    if header.count(column) != 1:
                        problem = "several columns" if column in header else "no column"
                        raise ValueError(
                            f"{_name(source)}: {problem} {column!r}, only {header}: name the one "
                            "of the texts with --text"
                        )
            elif row:
                number += 1
                problem = f"has {len(row)} fields, but the header {len(header)}"
                is_right = len(row) == len(header)
                yield number, start, dict(zip(header, row)) if is_right else problem
        if not header:
            raise ValueError(f"{_name(source)}: it is empty, but must have a header of columns")


def _parse_json(line: str) -> Union[dict[str, Any], str, None]:
    """RETURNS (Union[dict, str, None]): The object, what is wrong, or None for an empty line."""
    if not line.strip():
        return None
    try:
        value = json.loads(line)
    except RecursionError:
        return "brackets are nested too deep to be read"
    except ValueError as error:
        return f"not JSON: {error}"
    return value if isinstance(value, dict) else f"must be an object, found {value!r:.80}"


def _get_id(fields: dict[str, Any], name: str) -> Optional[str]:
    """RETURNS (Optional[str]): A field that is carried through, or null.
    RAISES (ValueError): If there is none."""
    value = fields.get(name)
    if value is None and name in fields:
        return None
    if isinstance(value, (str, Doc)):
        return replace_surrogates(str(value))
    if isinstance(value, (int, float)):
        return json.dumps(value)
    raise ValueError(_misfit("a string or a number", name, fields))


def _misfit(kind: str, name: str, fields: dict[str, Any]) -> str:
    return f"must have {kind} {name!r}, found {fields.get(name)!r:.80} in {list(fields)}"


def replace_surrogates(text: str) -> str:
    """Halves of surrogate pairs, valid in JSON but not in UTF-8, become question marks."""
    return text.encode("utf8", "replace").decode("utf8")


def _read_docbin(source: Source, progress: Progress) -> Iterator[Doc]:
    """RAISES (ValueError): If it is not a complete .spacy file."""
    try:
        with _open(source) as (_, stream):
            docs = DocBin().from_bytes(stream.read())
        yield from docs.get_docs(Vocab())
    except Exception as error:  # A damaged file raises many kinds of errors.
        raise ValueError(f"{source}: not a complete .spacy file ({error})") from error
    if progress is not None and isinstance(source, Path):
        progress(source.stat().st_size)


def _read_raw(source: Source, encoding: str, newline: str, progress: Progress) -> Iterator[str]:
    number = position = 0
    has_size = isinstance(source, Path) and source.is_file()
    try:
        with _open(source) as (file, stream):
            text = io.TextIOWrapper(stream, encoding, "spacy-elmo", newline)
            try:
                for line in text:
                    number += 1
                    if progress is not None and has_size and (end := file.tell()) > position:
                        progress(end - position)
                        position = end
                    yield line
            finally:
                with contextlib.suppress(ValueError):  # It is closed.
                    text.detach()  # Else stdin would be.
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
