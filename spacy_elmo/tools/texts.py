"""Find files of texts, and read them as strings or as docs. What each suffix means is in `records`.

Empty lines: `read_docs` yields an empty doc for each, `read_texts` skips them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from glob import glob, has_magic
from pathlib import Path
from typing import NoReturn, Optional, Union

from spacy.language import Language
from spacy.tokens import Doc

from .records import KINDS, STDIN, SUFFIXES, Progress, Reader, Text, check_kind, replace_surrogates

# Names and patterns of files that identify the folders that spacy-elmo writes: not texts.
_WRITTEN = (
    ("manifest.json", "types.txt"),  # A corpus.
    ("config.cfg", "meta.json"),  # A pipeline.
    ("head.json", "vocab.txt"),  # An output layer.
    ("options.json", "vocab.txt"),  # Weights.
    ("log.jsonl", "step-*"),  # A run of pretraining.
    ("_settings.json", "part-*"),  # Vectors in Parquet.
)


def find_files(
    inputs: Sequence[Union[str, Path]],
    on_skip: Optional[Callable[[Path], object]] = None,
    *,
    columns: bool = False,
    parquet: bool = False,
) -> list[Path]:
    """Expand files, folders (recursively, without hidden files) and glob patterns. Corpora, models
    and runs below a folder or a pattern are skipped: they are not texts. A file that is named
    itself may have any suffix that does not mean something else: it has lines of text.

    on_skip (Optional[Callable]): Called with each folder that is skipped.
    columns, parquet (bool): See `check_kind`.
    RETURNS (list): The files, in the order of the arguments, those of a folder or a pattern sorted.
    RAISES (ValueError): If an argument matches nothing, or a file is of an unknown kind.
    """
    suffixes = (*SUFFIXES, ".parquet") if parquet else SUFFIXES
    readable = ", ".join(x for x in KINDS if x in suffixes)
    files: list[Path] = []
    for name in inputs:
        path = Path(name)
        if path.is_dir():
            matches = [x for x in _walk(path, on_skip) if x.name.lower().endswith(suffixes)]
        elif path == STDIN or path.exists():
            matches = [path]
        elif not has_magic(str(path)):
            raise ValueError(f"no such file: {name}")
        else:
            # Folders up to the first wildcard are named.
            named = next(parent for parent in path.parents if not has_magic(str(parent)))
            matches = list(_match(path, named, on_skip))
        if not matches:
            raise ValueError(
                f"no text in {str(name)!r}: give files, folders or patterns of {readable}"
            )
        for match in matches:
            check_kind(match, columns=columns, parquet=parquet)
            if match != path and not match.name.lower().endswith(suffixes):
                raise ValueError(f"{match}: cannot read this kind of file, only {readable}")
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
    written: dict[Path, bool] = dict.fromkeys((named, *named.parents), False)
    for path in sorted(map(Path, glob(str(pattern), recursive=True))):
        for folder in reversed(path.parents):
            if folder not in written and not any(written.get(x) for x in folder.parents):
                written[folder] = _is_written(folder)
                if written[folder] and on_skip is not None:
                    on_skip(folder)
        if not any(written.get(folder) for folder in path.parents):
            yield path


def _is_written(folder: Path) -> bool:
    """RETURNS (bool): Whether spacy-elmo has written this folder."""
    return any(all(any(folder.glob(name)) for name in names) for names in _WRITTEN)


def total_size(files: Iterable[Path]) -> Optional[int]:
    """RETURNS (Optional[int]): The bytes of all files; None if one is a stream, without a size."""
    files = list(files)
    return sum(path.stat().st_size for path in files) if all(map(Path.is_file, files)) else None


def read_texts(
    files: Iterable[Path], reader: Optional[Reader] = None, progress: Progress = None
) -> Iterator[str]:
    """Read strings, without empty ones. Docs and lists of tokens are joined by spaces.

    reader (Optional[Reader]): How; by default the column "text", in UTF-8.
    progress (Optional[Callable]): Called with the number of bytes read since the last call.
    RAISES (ValueError): If something cannot be read. The message names file and line.
    """
    reader = reader or Reader()
    for path in files:
        for _, text, _ in reader.read(path, progress=progress):
            if isinstance(text, Doc):
                text = [token.text for token in text if not token.is_space]
            text = text if isinstance(text, str) else " ".join(text or ())
            if text := text.replace("\n", " ").strip():
                yield text


def read_docs(
    nlp: Language,
    files: Iterable[Path],
    reader: Optional[Reader] = None,
    *,
    max_characters: Optional[int] = None,
) -> Iterator[Doc]:
    """Read one doc per record, tokenised but not processed. Texts of more than `max_characters`
    are cut at spaces. See `read_texts`."""
    reader = reader or Reader()
    for path in files:
        for _, text, _ in reader.read(path):
            parts = _cut(text, max_characters) if isinstance(text, str) else [text or ""]
            yield from (make_doc(nlp, part) for part in parts)


def make_doc(nlp: Language, text: Text) -> Doc:
    """RETURNS (Doc): A text, tokenised; a list of tokens as one sentence, as in bilm-tf and
    AllenNLP; or a copy of a doc with the vocabulary of the pipeline."""
    if isinstance(text, Doc):
        return Doc(nlp.vocab).from_bytes(text.to_bytes())
    if isinstance(text, str):
        # Not `nlp.make_doc`: it refuses long texts, because of parsers.
        return nlp.tokenizer(replace_surrogates(text))
    words = list(map(replace_surrogates, text or ()))
    starts: list[Union[bool, int, None]] = [i == 0 for i in range(len(words))]
    return Doc(nlp.vocab, words=words, sent_starts=starts)


def _cut(text: str, max_characters: Optional[int]) -> Iterator[str]:
    start = 0
    while max_characters is not None and len(text) - start > max_characters:
        end = start + max_characters
        end = text.rfind(" ", start, end) + 1 or end
        yield text[start:end]
        start = end
    yield text[start:]
