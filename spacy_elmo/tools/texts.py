"""Find files of texts, and read them as strings or as docs. What a suffix means is in `records`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from glob import glob, has_magic
from pathlib import Path
from typing import NoReturn, Optional, Union

from spacy.language import Language
from spacy.tokens import Doc

from .records import KINDS, STDIN, SUFFIXES, Progress, Reader, Text, check_kind

# Names and patterns of files that identify the folders that spacy-elmo writes: not texts.
_WRITTEN = (
    ("manifest.json", "types.txt"),  # A corpus.
    ("config.cfg", "meta.json"),  # A pipeline.
    ("head.json", "vocab.txt"),  # An output layer.
    ("options.json", "vocab.txt"),  # Weights.
    ("log.jsonl", "step-*"),  # A run of pretraining.
    ("_settings.json", "part-*"),  # Vectors in Parquet.
)
_MAX_CHARACTERS = 10_000  # Of a doc: its layers are in memory at once.


def find_files(
    inputs: Sequence[Union[str, Path]],
    on_skip: Optional[Callable[[Path], object]] = None,
    *,
    columns: bool = False,
) -> list[Path]:
    """Expand files, folders (recursively, without hidden files) and glob patterns. Corpora, models
    and runs below a folder or a pattern are left out: they are not texts. A file that is named
    itself may have any suffix that does not mean something else: it has lines of text.

    on_skip (Optional[Callable]): Called with each folder that is left out.
    columns (bool): Whether a column is chosen: then files without columns are refused.
    RETURNS (list): The files, in the order of the arguments, those of a folder or a pattern sorted.
    """

    @cache
    def is_written(folder: Path) -> bool:
        written = any(all(any(folder.glob(name)) for name in names) for names in _WRITTEN)
        if written and on_skip is not None:
            on_skip(folder)
        return written

    files: list[Path] = []
    for path in map(Path, inputs):
        # Folders up to the first wildcard are named.
        top = next(x for x in (path, *path.parents) if not has_magic(str(x)))
        found = [
            match
            for match in _match(path)
            if not any(is_written(x) for x in reversed(match.parents) if top in x.parents)
        ]
        for match in found:
            check_kind(match, columns=columns)
        unknown = [x for x in found if x != path and not x.name.lower().endswith(SUFFIXES)]
        if not found and not has_magic(str(path)) and not path.exists():
            raise ValueError(f"there is no file or folder {path}")
        if unknown or not found:
            raise ValueError(f"no text in {[*unknown, path][0]}: give files of {', '.join(KINDS)}")
        files += found
    return files


def _match(path: Path) -> list[Path]:
    """RETURNS (list): The file, or the files of a folder or a pattern, sorted."""
    if path.is_dir():

        def fail(error: OSError) -> NoReturn:
            raise error  # Else `os.walk` leaves out a folder that cannot be listed.

        # Links to folders are not followed: they may lead back.
        found = (Path(folder, x) for folder, _, names in os.walk(path, onerror=fail) for x in names)
        texts = (x for x in found if x.name.lower().endswith(SUFFIXES))
        return sorted(x for x in texts if not any(y[0] == "." for y in x.relative_to(path).parts))
    is_file = path == STDIN or path.exists()
    return [path] if is_file else sorted(map(Path, glob(str(path), recursive=True)))


def total_size(files: Iterable[Path]) -> Optional[int]:
    """RETURNS (Optional[int]): The bytes of all files; None if one is a stream, without a size."""
    sizes = [path.stat().st_size if path.is_file() else None for path in files]
    return None if None in sizes else sum(size or 0 for size in sizes)


def read_texts(
    files: Iterable[Path], reader: Optional[Reader] = None, progress: Progress = None
) -> Iterator[str]:
    """YIELDS (str): Texts that are not empty, tokens joined by spaces. See `Reader.read`."""
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
    progress: Progress = None,
) -> Iterator[tuple[Doc, str]]:
    """Read files of texts.

    reader (Optional[Reader]): How, if not by default.
    progress (Progress): Called with how many bytes were read since the last call.
    YIELDS (tuple): Docs, tokenised but not processed, and the names of their files. Empty lines are
        empty docs, long texts are cut at spaces.
    """
    reader = reader or Reader()
    for path in files:
        for _, text, _ in reader.read(path, progress=progress):
            for part in _cut(text) if isinstance(text, str) else [text]:
                yield make_doc(nlp, part), str(path)


def make_doc(nlp: Language, text: Text) -> Doc:
    """RETURNS (Doc): A text, tokenised; a list of tokens as one sentence, as in bilm-tf and
    AllenNLP; or a copy of a doc with the vocabulary of the pipeline."""
    if isinstance(text, Doc):
        return Doc(nlp.vocab).from_bytes(text.to_bytes())
    if isinstance(text, str):
        # Not `nlp.make_doc`: it refuses long texts, because of parsers.
        return nlp.tokenizer(text)
    starts: list[Union[bool, int, None]] = [i == 0 for i in range(len(text or ()))]
    return Doc(nlp.vocab, words=text or [], sent_starts=starts)


def _cut(text: str) -> Iterator[str]:
    start = 0
    while len(text) - start > _MAX_CHARACTERS:
        end = start + _MAX_CHARACTERS
        end = text.rfind(" ", start, end) + 1 or end
        yield text[start:end]
        start = end
    yield text[start:]
