"""The texts that en_elmo_sm is pretrained on: where they are, what kind of text each is, and how
many times a pass over the corpus reads it.

All are in one folder, `$SPACY_ELMO_SHARED/data`. SOURCES.md has licences and attribution.
"""

from __future__ import annotations

import gzip
import hashlib
import html
import json
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import smart_open

# Words per source that are held out for perplexity, but at most one block of paragraphs of twenty.
HELD_OUT_WORDS = 30_000
BLOCK, MIN_STRIDE = 25, 20
# The weights before these were trained on all book paragraphs and speeches, except for some that
# depend on number and contents. The same ones are held out here: nothing else would be new to both.
_TYPEWRITTEN = str.maketrans({"“": '"', "”": '"', "‘": "'", "’": "'", "—": "--", "…": "..."})
_OLD_FRACTION = 0.005
# Penn Treebank's tokens, joined by spaces, to text.
_DETOKENIZE = (
    (re.compile(r'" ([^"]*) "'), r'"\1"'),
    (re.compile(r"-LRB-|-LSB-"), "("),
    (re.compile(r"-RRB-|-RSB-"), ")"),
    (re.compile(r"`` "), '"'),
    (re.compile(r" ''"), '"'),
    (re.compile(r" (n't\b|'(?:s|re|ve|ll|d|m)\b|[.,;:!?%)\]}])", re.IGNORECASE), r"\1"),
    (re.compile(r"([(\[{$]) "), r"\1"),
    (re.compile(r"\b(can|gon|got|wan) (not|na|ta)\b", re.IGNORECASE), r"\1\2"),
)
# Paragraphs, and whether each is held out.
Paragraphs = Iterator[tuple[str, bool]]


@dataclass(frozen=True)
class Source:
    """A text.

    name (str): Of its files.
    kind (str): What no more than a third of the words may be.
    times (int): How often a pass over the corpus reads it.
    path (str): Its file or folder below the data folder.
    read (Callable): From this path to paragraphs.
    """

    name: str
    kind: str
    times: int
    path: str
    read: Callable[[Path], Paragraphs]


def books(folder: Path, nonfiction: bool) -> Paragraphs:
    """YIELDS (tuple): Paragraphs of Standard Ebooks; `group` 3 of its index is non-fiction."""
    with (folder / "index.jsonl").open(encoding="utf8") as file:
        groups = {book["slug"]: book["group"] for book in map(json.loads, file)}
    number = 0
    for path in sorted(folder.glob("*.txt.gz")):
        is_wanted = (groups[path.name.removesuffix(".txt.gz")] == 3) == nonfiction
        with gzip.open(path, "rt", encoding="utf8") as file:
            for line in _lines(file):
                if is_wanted:
                    yield line, _was_held_out(number, line)
                number += 1


def speeches(archive: Path) -> Paragraphs:
    """YIELDS (tuple): Paragraphs of inaugural and State of the Union addresses."""
    texts = (
        text for prefix in ("inaugural/", "state_union/") for text in _members(archive, prefix)
    )
    for number, line in enumerate(line for text in texts for line in _lines(text.splitlines())):
        yield line, _was_held_out(number, line)


def masc(archive: Path) -> Paragraphs:
    """YIELDS (tuple): Sentences of MASC, of `word_TAG` with Penn Treebank's spacing. Every
    twentieth document is held out."""
    for number, text in enumerate(_members(archive, "masc_tagged/")):
        for line in _lines(text.splitlines()):
            words = [word.rpartition("_")[0] or word for word in line.split()]
            yield detokenize(words), number % MIN_STRIDE == MIN_STRIDE // 2


def modern(path: Path) -> Paragraphs:
    """YIELDS (tuple): Lines of a file of modern_text. Blocks of neighbours are held out, so that
    little of a document is on both sides."""
    with (path.parent / "index.jsonl").open(encoding="utf8") as file:
        n_words = next(x["words"] for x in map(json.loads, file) if x["file"] == path.name)
    stride = max(MIN_STRIDE, n_words // HELD_OUT_WORDS)
    with smart_open.open(path, encoding="utf8") as file:
        for number, line in enumerate(_lines(file)):
            yield line, number // BLOCK % stride == stride // 2


def detokenize(words: list[str]) -> str:
    """RETURNS (str): Text of Penn Treebank's tokens."""
    text = " ".join(words)
    for pattern, replacement in _DETOKENIZE:
        text = pattern.sub(replacement, text)
    return text


def _was_held_out(number: int, text: str) -> bool:
    """RETURNS (bool): Whether the older weights have not seen this paragraph: they read three of
    four with plain quotes and one of twelve in lower case, and held out by `corpus._is_held_out`
    of spacy_elmo.pretraining."""
    text = text.translate(_TYPEWRITTEN) if number % 4 else text
    text = text.lower() if number % 12 == 1 else text
    digest = hashlib.blake2b(text.encode("utf8"), digest_size=8).digest()
    return int.from_bytes(digest, "little") < _OLD_FRACTION * 2**64


def _members(archive: Path, prefix: str) -> Iterator[str]:
    with tarfile.open(archive) as tar:
        for member in sorted(tar.getmembers(), key=lambda member: member.name):
            name = member.name.removeprefix("./")
            is_text = name.endswith(".txt") and not name.endswith("categories.txt")
            if member.isfile() and name.startswith(prefix) and is_text:
                file = tar.extractfile(member)
                assert file is not None
                yield file.read().decode("utf8", errors="replace")


def _lines(texts: Iterable[str]) -> Iterator[str]:
    for line in texts:
        if line := re.sub(r"\s+", " ", line).strip():
            yield line


# The texts that the weights are measured on.


def ewt(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("*.conllu")):
        with path.open(encoding="utf8") as file:
            yield from (line[len("# text = ") :] for line in file if line.startswith("# text = "))


def ag_news(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("*.csv")):
        with path.open(encoding="utf8") as file:
            for line in file:
                line = re.sub(r" ?#(\d+);", r"&#\1;", line)
                yield html.unescape(line.replace("\\", " ").replace('","', " "))


def imdb(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf8") as file:
            for line in file:
                yield json.loads(line)["text"].replace("<br />", " ")


BENCHMARKS: dict[str, tuple[str, Callable[[Path], Iterator[str]]]] = {
    "UD EWT": ("ud_en_ewt", ewt),
    "AG News": ("ag_news", ag_news),
    "IMDB": ("imdb", imdb),
}

_BOOKS, _MASC = "standardebooks", "masc_and_speeches.tar.gz"
_MODERN = (
    ("wikipedia_core", "encyclopaedia", 1),
    ("wikipedia_en", "encyclopaedia", 2),
    ("factbook", "encyclopaedia", 2),
    ("openstax", "textbook", 1),
    ("current_events", "news", 4),
    ("wikinews", "news", 5),
    ("stackexchange", "web", 4),
    ("blogs", "web", 3),
    ("usgov_web", "web", 2),
    ("common_voice", "web", 3),
    ("changelog", "conversation", 1),
    ("meetings", "conversation", 1),
    ("dialogue", "conversation", 2),
    ("apollo", "conversation", 1),
    ("un_debates", "speeches", 1),
    ("fed", "speeches", 1),
    ("congress", "speeches", 1),
    ("scp", "fiction", 2),
    ("stories", "fiction", 3),
    ("tech", "technical", 1),
    ("oanc_technical", "science", 1),
    ("science", "science", 1),
    ("medquad", "science", 1),
)
# In the order in which they are read: of a sentence that several have, the first one keeps it.
SOURCES = (
    Source("masc", "mixed (MASC)", 4, _MASC, masc),
    Source("speeches", "speeches", 2, _MASC, speeches),
    Source("fiction", "fiction", 1, _BOOKS, lambda path: books(path, nonfiction=False)),
    Source("nonfiction", "old non-fiction", 1, _BOOKS, lambda path: books(path, nonfiction=True)),
    *(Source(name, kind, n, f"modern_text/{name}.txt.zst", modern) for name, kind, n in _MODERN),
)
