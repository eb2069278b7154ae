"""Read texts, as strings for `prepare` and `perplexity`, as docs for `embed` and `neighbors`.

.txt        A text per line. Lines end at line feeds only.
.jsonl      A JSON object per line, with "text" (a string) or "tokens" (a list of strings).
.spacy      A `DocBin`.
-           Lines of text from stdin. Named pipes are read in the same way.

.txt and .jsonl may be compressed with whatever `smart_open` reads, such as .gz and .zst.

Empty lines: `read_docs` yields an empty doc for each, because `embed` names vectors by the number
of their line. `read_texts` skips them.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from glob import glob, has_magic
from pathlib import Path
from typing import Any, NoReturn, Optional, Union

import smart_open
from smart_open.compression import compression_wrapper
from spacy.language import Language
from spacy.tokens import Doc, DocBin
from spacy.vocab import Vocab

STDIN = Path("-")
ERRORS = ("strict", "replace", "ignore")
_COMPRESSIONS = ("", ".gz", ".zst", ".bz2", ".xz")
_LINE_SUFFIXES = tuple(".txt" + suffix for suffix in _COMPRESSIONS)
_JSON_SUFFIXES = tuple(".jsonl" + suffix for suffix in _COMPRESSIONS)
SUFFIXES = (*_LINE_SUFFIXES, *_JSON_SUFFIXES, ".spacy")
# Names and patterns of files that identify the folders that spacy-elmo writes: not texts.
_WRITTEN = (
    ("manifest.json", "types.txt"),  # A corpus.
    ("config.cfg", "meta.json"),  # A pipeline.
    ("head.json", "vocab.txt"),  # An output layer.
    ("options.json", "vocab.txt"),  # Weights.
    ("log.jsonl", "step-*"),  # A run of pretraining.
    ("_settings.json", "part-*"),  # Vectors in Parquet.
)

# What `read_fields` yields for a line of .jsonl without an object.
EMPTY_LINE: dict[str, Any] = {"text": ""}

Progress = Optional[Callable[[int], object]]
_Record = tuple[str, Optional[str], Optional[list[str]]]


def find_files(
    inputs: Sequence[Union[str, Path]],
    on_skip: Optional[Callable[[Path], object]] = None,
    *,
    any_suffix: bool = False,
    suffixes: tuple[str, ...] = SUFFIXES,
) -> list[Path]:
    """Expand files, folders (recursively, without hidden files) and glob patterns. Corpora, models
    and runs below a folder or a pattern are skipped: they are not texts.

    on_skip (Optional[Callable]): Called with each folder that is skipped.
    any_suffix (bool): Accept a file of another suffix, as lines of text, if it is named itself.
    suffixes (tuple): How names of files end.
    RETURNS (list): The files, in the order of the arguments, those of a folder or a pattern sorted.
    RAISES (ValueError): If an argument matches nothing, or a file is of an unknown kind.
    """
    files: list[Path] = []
    for name in inputs:
        path = Path(name)
        if path.is_dir():
            matches = [x for x in _walk(path, on_skip) if x.name.lower().endswith(suffixes)]
        elif path == STDIN or path.exists():
            matches = [path]
        else:
            # Folders up to the first wildcard are named.
            named = next(parent for parent in path.parents if not has_magic(str(parent)))
            matches = list(_match(path, named, on_skip))
        if not matches:
            raise ValueError(
                f"no text in {str(name)!r}: give files, folders or patterns of "
                f"{', '.join(suffixes)}"
            )
        for match in matches:
            is_stream = match == STDIN or not (match.is_file() or match.is_dir())
            is_known = match.name.lower().endswith(suffixes)
            if not (is_known or is_stream or (any_suffix and match == path)):
                raise ValueError(
                    f"{match}: cannot read this kind of file, only {', '.join(suffixes)}"
                )
        files += matches
    return files


def _walk(top: Path, on_skip: Optional[Callable[[Path], object]]) -> list[Path]:
    """RETURNS (list): The files below a folder, sorted, without hidden ones and without folders
    that spacy-elmo has written. Links to folders are not followed: they may lead back.
    RAISES (OSError): If a folder cannot be listed."""

    def fail(error: OSError) -> NoReturn:
        raise error  # Else `os.walk` leaves out a folder that cannot be listed.

    files: list[Path] = []
    for name, folders, names in os.walk(top, onerror=fail):
        folder = Path(name)
        if folder != top and _is_written(folder):
            folders.clear()
            if on_skip is not None:
                on_skip(folder)
            continue
        folders[:] = [x for x in folders if not x.startswith(".")]
        files += (folder / x for x in names if not x.startswith("."))
    return sorted(path for path in files if path.is_file())


def _match(
    pattern: Path, named: Path, on_skip: Optional[Callable[[Path], object]]
) -> Iterator[Path]:
    """YIELDS (Path): What matches, sorted, without what is in folders that spacy-elmo has written,
    except for the folder that is named and those above it. As in a shell, hidden files match only
    a pattern with their dot, and `**` follows links to folders."""
    is_skipped: dict[Path, bool] = dict.fromkeys((named, *named.parents), False)
    for path in sorted(map(Path, glob(str(pattern), recursive=True))):
        for folder in reversed(path.parents):
            if folder not in is_skipped:
                is_skipped[folder] = _is_written(folder)
                if is_skipped[folder] and on_skip is not None:
                    on_skip(folder)
            if is_skipped[folder]:
                break
        else:
            yield path


def _is_written(folder: Path) -> bool:
    """RETURNS (bool): Whether spacy-elmo has written this folder."""
    return any(all(any(folder.glob(name)) for name in names) for names in _WRITTEN)


def total_size(files: Iterable[Path]) -> Optional[int]:
    """RETURNS (Optional[int]): The bytes of all files; None if one is a stream, without a size."""
    files = list(files)
    return sum(path.stat().st_size for path in files) if all(map(Path.is_file, files)) else None


def read_texts(
    files: Iterable[Path],
    encoding: str = "utf8",
    errors: str = "strict",
    progress: Progress = None,
) -> Iterator[str]:
    """Read strings, without empty ones. Docs and lists of tokens are joined by spaces.

    encoding, errors (str): As for `open`, errors one of "strict", "replace" and "ignore".
    progress (Optional[Callable]): Called with the number of bytes read since the last call.
    YIELDS (str): The texts.
    RAISES (ValueError): If something cannot be read. The message names file and line.
    """
    try:
        # Not codecs.lookup: it also accepts encodings that are not of text, such as rot13.
        "\n".encode(encoding)
    except (LookupError, UnicodeError) as error:
        raise ValueError(f"{error}: give another --encoding") from error
    if errors not in ERRORS:
        raise ValueError(f"--errors must be one of {', '.join(ERRORS)}, found {errors!r}")
    for path in files:
        if path.suffix.lower() == ".spacy":
            for doc in read_docbin(path, Vocab(), progress):
                if words := [token.text for token in doc if not token.is_space]:
                    yield " ".join(words)
            continue
        for _, text, tokens in _read_records(path, encoding, errors, progress):
            text = " ".join(tokens or ()) if text is None else text
            if text := text.replace("\n", " ").strip():
                yield text


def read_docs(
    nlp: Language,
    files: Iterable[Path],
    *,
    whitespace: bool = False,
    max_characters: Optional[int] = None,
    on_null: Optional[Callable[[str], object]] = None,
    progress: Progress = None,
) -> Iterator[Doc]:
    """Read one doc per line, record or doc, tokenised but not processed. Files are UTF-8.

    nlp (Language): The pipeline whose tokenizer and vocabulary are used.
    whitespace (bool): Texts are tokens separated by spaces.
    max_characters (Optional[int]): Cut longer texts at spaces before they are tokenised.
    on_null (Optional[Callable]): Called with file and line of each object whose text is null, which
        becomes an empty doc.
    progress (Optional[Callable]): Called with the number of bytes read since the last call.
    YIELDS (Doc): The docs. A list of tokens is one sentence, as in bilm-tf and AllenNLP.
    RAISES (ValueError): If something cannot be read. The message names file and line.
    """
    for path in files:
        if path.suffix.lower() == ".spacy":
            yield from read_docbin(path, nlp.vocab, progress)
            continue
        for where, fields in read_fields(path, progress=progress):
            if on_null is not None and _is_null(fields):
                on_null(where)
                fields = EMPTY_LINE
            text, tokens = _text_or_tokens(fields, where)
            if tokens is None and not whitespace:
                # Not `nlp.make_doc`: it refuses long texts, because of parsers.
                yield from map(nlp.tokenizer, _cut(text or "", max_characters))
                continue
            if tokens is None:
                tokens = (text or "").split()
            starts: list[Union[bool, int, None]] = [i == 0 for i in range(len(tokens))]
            try:
                yield Doc(nlp.vocab, words=tokens, sent_starts=starts)
            except ValueError as error:  # An empty token.
                raise ValueError(f"{where}: {error}") from error


def _cut(text: str, max_characters: Optional[int]) -> Iterator[str]:
    start = 0
    while max_characters is not None and len(text) - start > max_characters:
        end = start + max_characters
        end = text.rfind(" ", start, end) + 1 or end
        yield text[start:end]
        start = end
    yield text[start:]


def read_docbin(path: Union[Path, str], vocab: Vocab, progress: Progress) -> Iterator[Doc]:
    try:
        with _open(path) as file:
            docs = DocBin().from_bytes(file.read())
        yield from docs.get_docs(vocab)
    except Exception as error:  # A damaged file raises many kinds of errors.
        raise ValueError(f"{path}: not a complete .spacy file ({error})") from error
    if progress is not None and isinstance(path, Path):
        progress(path.stat().st_size)


def _read_records(path: Path, encoding: str, errors: str, progress: Progress) -> Iterator[_Record]:
    """YIELDS (tuple): File and line for messages, the text or None, the tokens or None."""
    for where, fields in read_fields(path, encoding, errors, progress):
        yield where, *_text_or_tokens(fields, where)


def read_fields(
    path: Union[Path, str],
    encoding: str = "utf8",
    errors: str = "strict",
    progress: Progress = None,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Read lines of text or of JSON.

    path (Union[Path, str]): A file, or the URL of one that `smart_open` reads.
    encoding, errors, progress: See `read_texts`.
    YIELDS (tuple): File and line for messages, and the object of the line. A line of text is its
        "text"; an empty line between objects is `EMPTY_LINE`. What is no object has no fields.
    RAISES (ValueError): If something cannot be read. The message names file and line.
    """
    file_name = os.path.basename(path_of(path)).lower()
    # Also parts, such as texts.jsonl.part1.
    is_json = ".jsonl" in file_name and not file_name.endswith(_LINE_SUFFIXES)
    name = "stdin" if path == STDIN else str(path)
    for number, line in enumerate(_read_lines(path, name, encoding, errors, progress), start=1):
        where = f"{name}, line {number}"
        if "\0" in line:
            raise ValueError(f"{where}: holds NUL characters: is it text?")
        line = line.removeprefix("\ufeff") if number == 1 else line
        if is_json:
            yield where, _parse_json(line, where) if line.strip() else EMPTY_LINE
        else:
            yield where, {"text": line.rstrip("\r\n")}


def path_of(source: Union[Path, str]) -> str:
    """RETURNS (str): A path, or a URL without its query, such as a signature."""
    return str(source) if isinstance(source, Path) else source.partition("?")[0]


def _read_lines(
    path: Union[Path, str], name: str, encoding: str, errors: str, progress: Progress
) -> Iterator[str]:
    number = position = 0
    has_size = isinstance(path, Path) and path.is_file()
    try:
        with _open(path) as file:
            stream = compression_wrapper(file, "rb", filename=path_of(path))
            # Decode each line by itself, so that an error names the right one; or the stream, if a
            # line feed in this encoding is not a single byte.
            if "\n".encode(encoding) != b"\n":
                stream = io.TextIOWrapper(stream, encoding, errors, newline="\n")
            for line in stream:
                number += 1
                if progress is not None and has_size and (end := file.tell()) > position:
                    progress(end - position)
                    position = end
                yield line if isinstance(line, str) else line.decode(encoding, errors)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{name}, line {number}: not {encoding} ({error.reason} at byte {error.start}): give "
            "the right --encoding or --errors replace, where the command has them, or convert it"
        ) from error
    except ImportError as error:
        raise ValueError(
            f"{name}: to read {os.path.splitext(name)[1]}, install what it needs: "
            f'pip install "spacy-elmo[zst]" ({error})'
        ) from error
    except Exception as error:  # Each kind of compression raises its own errors.
        raise ValueError(f"{name}, after line {number}: {error}") from error


def _open(path: Union[Path, str]) -> contextlib.AbstractContextManager[Any]:
    if path == STDIN:
        return contextlib.nullcontext(sys.stdin.buffer)
    if isinstance(path, Path):
        return path.open("rb")
    try:
        return smart_open.open(path, "rb", compression="disable")
    except ImportError as error:  # Not of the compression, but of the kind of URL.
        raise ValueError(error) from error


def _parse_json(line: str, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except RecursionError as error:
        raise ValueError(f"{where}: brackets are nested too deep to be read") from error
    except ValueError as error:
        raise ValueError(f"{where}: not JSON: {error}") from error
    return record if isinstance(record, dict) else {}


def _is_null(fields: dict[str, Any]) -> bool:
    """RETURNS (bool): Whether what there is of a text and of tokens is null."""
    values = [fields[name] for name in ("text", "tokens") if name in fields]
    return bool(values) and all(value is None for value in values)


def _text_or_tokens(
    fields: dict[str, Any], where: str
) -> tuple[Optional[str], Optional[list[str]]]:
    text, tokens = fields.get("text"), fields.get("tokens")
    text = replace_surrogates(text) if isinstance(text, str) else None
    if isinstance(tokens, list) and all(isinstance(token, str) for token in tokens):
        return text, [replace_surrogates(token) for token in tokens]
    if text is None:
        raise ValueError(
            f'{where}: must be an object with a string "text" or a list of strings "tokens"'
        )
    return text, None


def replace_surrogates(text: str) -> str:
    """Halves of surrogate pairs, valid in JSON but not in UTF-8, become question marks."""
    return text.encode("utf8", "replace").decode("utf8")
