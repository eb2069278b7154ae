"""Text files of several kinds as a stream of paragraphs."""

from __future__ import annotations

import contextlib
import gzip
import importlib
import io
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from glob import glob, has_magic
from pathlib import Path
from typing import Any, Optional, Union

ERRORS = ("strict", "replace", "ignore")
SUFFIXES = (".txt", ".jsonl", ".spacy", ".txt.gz", ".jsonl.gz", ".txt.zst", ".jsonl.zst")
# The files by which folders that spacy-elmo writes are known: those in them are no texts.
_WRITTEN = (
    ("manifest.json", "types.txt"),  # A corpus.
    ("config.cfg", "meta.json"),  # A pipeline.
    ("head.json", "vocab.txt"),  # An output layer.
    ("options.json", "vocab.txt"),  # Weights.
    ("log.jsonl", "step-*"),  # A run of pretraining.
)


def find_files(
    inputs: Sequence[Union[str, Path]], on_skip: Optional[Callable[[Path], None]] = None
) -> list[Path]:
    """Expand files, folders (recursively, without hidden files) and glob patterns. Corpora, models
    and runs below a folder or a pattern are no texts, and left out.

    on_skip (Optional[Callable]): Called with each folder that is left out.
    RETURNS (list): The files, in the order of the arguments, those of a folder or a pattern sorted.
    RAISES (ValueError): If an argument matches nothing, or a file is of no kind that we read.
    """
    found: list[Path] = []
    for name in inputs:
        path = Path(name)
        if path.is_file():
            files = [path]
        elif path.is_dir():
            files = sorted(_files_below(path, on_skip))
        else:
            files = list(_matches(path, on_skip))
        if not files:
            raise ValueError(
                f"no text in {str(name)!r}: give files, folders or patterns of "
                f"{', '.join(SUFFIXES)}"
            )
        found += files
    for path in found:
        if not path.name.lower().endswith(SUFFIXES):
            raise ValueError(f"{path}: cannot read this kind of file, only {', '.join(SUFFIXES)}")
    return found


def _files_below(top: Path, on_skip: Optional[Callable[[Path], None]]) -> Iterator[Path]:
    for name, folders, files in os.walk(top):
        folder = Path(name)
        # A folder that is named is meant.
        if folder != top and _is_written(folder):
            folders.clear()
            if on_skip is not None:
                on_skip(folder)
            continue
        # Hidden ones are such as a killed `spacy elmo prepare` leaves.
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (
            folder / name
            for name in files
            if name.lower().endswith(SUFFIXES) and not name.startswith(".")
        )


def _matches(pattern: Path, on_skip: Optional[Callable[[Path], None]]) -> Iterator[Path]:
    # A folder that is named without a wildcard is meant.
    named = {parent for parent in pattern.parents if not has_magic(str(parent))}
    written: dict[Path, bool] = dict.fromkeys(named, False)
    for path in sorted(map(Path, glob(str(pattern), recursive=True))):
        for folder in reversed(path.parents):
            if folder not in written:
                written[folder] = _is_written(folder)
                if written[folder] and on_skip is not None:
                    on_skip(folder)
            if written[folder]:
                break
        else:
            yield path


def _is_written(folder: Path) -> bool:
    """RETURNS (bool): Whether spacy-elmo has written this folder."""
    return any(all(any(folder.glob(name)) for name in names) for names in _WRITTEN)


def read_texts(
    files: Iterable[Path],
    encoding: str = "utf8",
    errors: str = "strict",
    progress: Optional[Callable[[int], None]] = None,
) -> Iterator[str]:
    """Read a text per line (.txt), per record's "text" (.jsonl) or per doc (.spacy, tokens joined
    by spaces).

    encoding, errors (str): As for `open`, errors one of "strict", "replace" and "ignore".
    progress (Optional[Callable]): Called with the number of bytes of the files that some more texts
        have taken.
    YIELDS (str): The texts, without empty ones. Halves of a surrogate pair, which JSON can hold but
        no file can, are replaced.
    RAISES (ValueError): Naming file and line, if something cannot be read.
    """
    try:
        # Not codecs.lookup: it also knows what is no encoding of text, such as rot13.
        "a".encode(encoding)
    except LookupError as error:
        raise ValueError(f"{error}: give another --encoding") from error
    if errors not in ERRORS:
        raise ValueError(f"--errors must be one of {', '.join(ERRORS)}, found {errors!r}")
    for path in files:
        name = path.name.lower()
        if name.endswith(".spacy"):
            yield from _read_docs(path)
            if progress is not None:
                progress(path.stat().st_size)
            continue
        is_json = name.endswith((".jsonl", ".jsonl.gz", ".jsonl.zst"))
        number = position = 0
        try:
            with path.open("rb") as file, decompressed(file, path) as stream:
                # Lines end at line feeds alone, and decoding follows the lines, so that an error
                # is in the line that it names; where line feeds are not single bytes, before it.
                lines = stream if _is_like_ascii(encoding) else _decoded(stream, encoding, errors)
                for number, raw in enumerate(lines, start=1):
                    if progress is not None and file.tell() > position:
                        progress(file.tell() - position)
                        position = file.tell()
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
        except read_errors() as error:
            raise ValueError(f"{path}, after line {number}: {error}") from error


def _is_like_ascii(encoding: str) -> bool:
    try:
        return "\n".encode(encoding) == b"\n"
    except UnicodeError:
        return False


def _decoded(stream: Any, encoding: str, errors: str) -> Iterator[str]:
    return io.TextIOWrapper(stream, encoding=encoding, errors=errors, newline="\n")


def read_errors() -> tuple[type[Exception], ...]:
    """RETURNS (tuple): What reading from such a file can raise."""
    zstd = _zstd()
    return (OSError, EOFError, zlib.error, *((zstd.ZstdError,) if zstd else ()))


def _zstd() -> Any:
    for name in ("compression.zstd", "backports.zstd"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None


def decompressed(file: Any, path: Path) -> Any:
    """Read a file that is open as bytes, decompressed if its name ends in .gz or .zst.

    RAISES (ValueError): If zst is not installed.
    """
    suffix = path.suffix.lower()
    if suffix == ".gz":
        return gzip.open(file, "rb")
    if suffix == ".zst":
        zstd = _zstd()
        if zstd is None:
            raise ValueError("to read .zst, install the extra zst: pip install spacy-elmo[zst]")
        return zstd.open(file, "rb")
    return contextlib.nullcontext(file)


def _record(line: str) -> str:
    if not line.strip():
        return ""
    try:
        record = json.loads(line)
    except RecursionError as error:
        raise ValueError("brackets within brackets, too deep to read") from error
    text = record.get("text") if isinstance(record, dict) else None
    if not isinstance(text, str):
        raise ValueError('a record must be an object with a string "text"')
    return text.replace("\n", " ")


def _read_docs(path: Path) -> Iterator[str]:
    from spacy.tokens import DocBin
    from spacy.vocab import Vocab

    try:
        for doc in DocBin().from_disk(path).get_docs(Vocab()):
            if words := [token.text for token in doc if not token.is_space]:
                yield " ".join(words)
    except Exception as error:  # A damaged file raises many kinds of errors.
        raise ValueError(f"{path}: not a complete .spacy file ({error})") from error
