"""Labelled texts from files of several kinds to .spacy files: what the converters share."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import spacy
from spacy.tokens import DocBin
from wasabi import msg

from spacy_elmo.files import atomic_file

# What to do with broken rows.
BROKEN = ("stop", "skip")
_SHOWN = 10


class Text(NamedTuple):
    """A text and its class; None where there is none."""

    text: str
    label: str | None


@dataclass
class BrokenRows:
    """What cannot be used, with file and line.

    skip (bool): Leave broken rows out instead of giving up.
    """

    skip: bool
    problems: list[str] = field(default_factory=list)

    def add(self, where: str, problem: str) -> None:
        self.problems.append(f"{where}: {problem}")

    def report(self) -> None:
        """Name and count them. RAISES (ValueError): If there are any, and they must not be."""
        count = len(self.problems)
        for problem in self.problems[:_SHOWN]:
            msg.warn(problem)
        if count > _SHOWN:
            msg.warn(f"... and {count - _SHOWN} more")
        if count and not self.skip:
            raise ValueError(
                f"{count} broken row(s): correct them, or leave them out with --broken skip (of "
                "the project: --vars.broken skip)"
            )
        if count:
            msg.warn(f"{count} broken row(s) left out")


def lines(path: Path, raw: Iterable[bytes], broken: BrokenRows) -> Iterator[tuple[str, str]]:
    """YIELDS (tuple): Where a line is, for messages, and the line; what is not UTF-8 is broken."""
    for number, line in enumerate(raw, start=1):
        where = f"{path}, line {number}"
        try:
            yield where, line.decode("utf8")
        except UnicodeDecodeError as error:
            broken.add(where, f"not UTF-8 ({error.reason} at byte {error.start})")


def clean(text: str) -> str:
    """RETURNS (str): The text in one line, without HTML line breaks."""
    return " ".join(re.sub(r"<br\s*/?>", " ", text).split())


def draw(texts: Sequence[Text], count: int) -> tuple[list[Text], list[Text]]:
    """Take texts, of each class about its part of them all.

    The choice depends on the texts, not on their order. Equal texts stay together.

    texts (Sequence[Text]): The texts.
    count (int): How many to take, about.
    RETURNS (tuple): Those taken and the others, each in the order they came in.
    RAISES (ValueError): If there are not more texts than that.
    """
    if count >= len(texts):
        raise ValueError(f"cannot take {count} of {len(texts)} texts: ask for fewer")
    taken: set[str] = set()
    for label in sorted({str(text.label) for text in texts}):
        of_class = sorted({t.text for t in texts if str(t.label) == label}, key=_digest)
        taken.update(of_class[: round(count * len(of_class) / len(texts))])
    return [t for t in texts if t.text in taken], [t for t in texts if t.text not in taken]


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf8")).digest()


def write_docs(path: Path, texts: Sequence[Text], labels: Sequence[str]) -> None:
    """Write docs of which exactly one of the classes is true."""
    nlp = spacy.blank("en")
    docs = DocBin()
    for text in texts:
        doc = nlp.make_doc(text.text)
        doc.cats = {label: float(label == text.label) for label in labels}
        docs.add(doc)
    with atomic_file(path) as temporary:
        docs.to_disk(temporary)
    msg.good(f"{path}: {len(texts):,} texts")


def write_lines(path: Path, texts: Iterable[str]) -> None:
    """Write a text per line, for pretraining."""
    with atomic_file(path) as temporary, temporary.open("w", encoding="utf8") as file:
        for text in texts:
            file.write(f"{text}\n")
    msg.good(f"{path}: {path.stat().st_size / 1e6:,.1f} MB")
