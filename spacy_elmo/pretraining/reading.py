"""Text files of several kinds as a stream of paragraphs."""

from __future__ import annotations

import codecs
import gzip
import importlib
import io
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from glob import glob
from pathlib import Path
from typing import Any, Union

SUFFIXES = (".txt", ".jsonl", ".spacy", ".txt.gz", ".jsonl.gz", ".txt.zst", ".jsonl.zst")


def find_files(inputs: Sequence[Union[str, Path]]) -> list[Path]:
    """Expand files, folders (recursively) and glob patterns.

    RETURNS (list): The files, in the order of the arguments, those of a folder or a pattern sorted.
    RAISES (ValueError): If an argument matches nothing, or a file is of no kind that we read.
    """
    found: list[Path] = []
    for name in inputs:
        path = Path(name)
        if path.is_file():
            files = [path]
        elif path.is_dir():
            files = sorted(file for file in path.rglob("*") if file.name.endswith(SUFFIXES))
        else:
            files = sorted(Path(match) for match in glob(str(name), recursive=True))
        if not files:
            raise ValueError(
                f"no text in {str(name)!r}: give files, folders or patterns of "
                f"{', '.join(SUFFIXES)}"
            )
        found += files
    for path in found:
        if not path.name.endswith(SUFFIXES):
            raise ValueError(f"{path}: cannot read this kind of file, only {', '.join(SUFFIXES)}")
    return found


def read_texts(
    files: Iterable[Path], encoding: str = "utf8", errors: str = "strict"
) -> Iterator[str]:
    """Read a text per line (.txt), per record's "text" (.jsonl) or per doc (.spacy, tokens joined
    by spaces).

    encoding, errors (str): As for `open`.
    YIELDS (str): The texts, without empty ones. Halves of a surrogate pair, which JSON can hold but
        no file can, are replaced.
    RAISES (ValueError): Naming file and line, if something cannot be read.
    """
    try:
        codecs.lookup(encoding)
        codecs.lookup_error(errors)
    except LookupError as error:
        raise ValueError(f"{error}: give another --encoding or --errors") from error
    for path in files:
        if path.name.endswith(".spacy"):
            yield from _read_docs(path)
            continue
        is_json = ".jsonl" in path.suffixes
        number = 0
        try:
            with _open(path) as stream:
                # Lines end at line feeds alone, and decoding follows the lines, so that an error
                # is in the line that it names; where line feeds are not single bytes, before it.
                lines = stream if _is_like_ascii(encoding) else _decoded(stream, encoding, errors)
                for number, raw in enumerate(lines, start=1):
                    line = raw if isinstance(raw, str) else raw.decode(encoding, errors)
                    if "\0" in line:
                        raise ValueError("holds NUL characters: is it text?")
                    line = line.removeprefix("\ufeff") if number == 1 else line
                    if line := (_record(line) if is_json else line).strip():
                        yield line.encode("utf8", "replace").decode("utf8")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path}, line {number}: not {encoding} ({error.reason} at byte {error.start}): "
                "give the right --encoding, or --errors replace"
            ) from error
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
        except _read_errors() as error:
            raise ValueError(f"{path}, after line {number}: {error}") from error


def _is_like_ascii(encoding: str) -> bool:
    try:
        return "\n".encode(encoding) == b"\n"
    except UnicodeError:
        return False


def _decoded(stream: Any, encoding: str, errors: str) -> Iterator[str]:
    return io.TextIOWrapper(stream, encoding=encoding, errors=errors, newline="\n")


def _read_errors() -> tuple[type[Exception], ...]:
    zstd = _zstd()
    return (OSError, EOFError, zlib.error, *((zstd.ZstdError,) if zstd else ()))


def _zstd() -> Any:
    for name in ("compression.zstd", "backports.zstd"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None


def _open(path: Path) -> Any:
    if path.suffix == ".gz":
        return gzip.open(path, "rb")
    if path.suffix == ".zst":
        zstd = _zstd()
        if zstd is None:
            raise ValueError("to read .zst, install the extra zst: pip install spacy-elmo[zst]")
        return zstd.open(path, "rb")
    return path.open("rb")


def _record(line: str) -> str:
    if not line.strip():
        return ""
    record = json.loads(line)
    text = record.get("text") if isinstance(record, dict) else None
    if not isinstance(text, str):
        raise ValueError('a record must be an object with a string "text"')
    return text.replace("\n", " ")


def _read_docs(path: Path) -> Iterator[str]:
    from spacy.tokens import DocBin
    from spacy.vocab import Vocab

    try:
        docs = DocBin().from_disk(path)
    except Exception as error:
        raise ValueError(f"{path}: not a .spacy file ({error})") from error
    for doc in docs.get_docs(Vocab()):
        if words := [token.text for token in doc if not token.is_space]:
            yield " ".join(words)
