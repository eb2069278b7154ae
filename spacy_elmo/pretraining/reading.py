"""Text files of several kinds as a stream of paragraphs."""

from __future__ import annotations

import gzip
import json
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
    YIELDS (str): The texts, without empty ones.
    RAISES (ValueError): Naming file and line, if something cannot be read.
    """
    for path in files:
        if path.name.endswith(".spacy"):
            yield from _read_docs(path)
            continue
        is_json = ".jsonl" in path.suffixes
        number = 0
        try:
            with _open(path) as stream:
                for number, raw in enumerate(stream, start=1):  # noqa: B007 (for errors)
                    if b"\0" in raw:
                        raise ValueError("holds NUL bytes: is it text?")
                    line = raw.decode(encoding, errors)
                    if line := (_record(line) if is_json else line).strip():
                        yield line
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path}, line {number}: not {encoding} ({error.reason} at byte {error.start}): "
                "give the right --encoding, or --errors replace"
            ) from error
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
        except (OSError, EOFError) as error:
            raise ValueError(f"{path}, after line {number}: {error}") from error


def _open(path: Path) -> Any:
    if path.suffix == ".gz":
        return gzip.open(path, "rb")
    if path.suffix == ".zst":
        try:
            import zstandard
        except ImportError as error:
            raise ValueError("to read .zst, install zstandard: pip install zstandard") from error
        return zstandard.open(path, "rb")
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
