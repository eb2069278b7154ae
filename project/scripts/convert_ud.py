"""A UD treebank to .spacy files, ten sentences per doc.

    python scripts/convert_ud.py FOLDER OUT

Reads FOLDER/*-ud-{train,dev,test}.conllu (https://universaldependencies.org/format.html).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from checksums import check_assets
from labelled import BROKEN, BrokenRows, lines
from spacy.parts_of_speech import IDS
from spacy.tokens import DocBin
from spacy.training.converters import conllu_to_docs
from wasabi import msg

from spacy_elmo.cli.util import exit_on_error
from spacy_elmo.files import atomic_file

_N_SENTENCES = 10
_ID, _UPOS, _HEAD, _DEPREL = 0, 3, 6, 7
_N_COLUMNS = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the .conllu files are")
    parser.add_argument("out", type=Path, help="for {train,dev,test}.spacy")
    parser.add_argument("--broken", choices=BROKEN, default="stop", help="rows that are broken")
    args = parser.parse_args()
    with exit_on_error():
        check_assets(args.folder)
        broken = BrokenRows(args.broken == "skip")
        parts = {name: find(args.folder, name) for name in ("train", "dev", "test")}
        texts = {name: "\n".join(read(path, broken)) for name, path in parts.items()}
        broken.report()
        for name, text in texts.items():
            docs = list(conllu_to_docs(text, n_sents=_N_SENTENCES, no_print=True))
            with atomic_file(args.out / f"{name}.spacy") as temporary:
                DocBin(docs=docs, store_user_data=True).to_disk(temporary)
            n_sentences = sum(len(list(doc.sents)) for doc in docs)
            msg.good(f"{args.out / name}.spacy: {n_sentences:,} sentences")


def find(folder: Path, split: str) -> Path:
    """RAISES (ValueError): If there is not one file of a part of the treebank."""
    paths = sorted(folder.glob(f"*-ud-{split}.conllu"))
    if len(paths) != 1:
        raise ValueError(
            f"{folder} has {len(paths)} files *-ud-{split}.conllu instead of one. Fetch the "
            "treebank with `spacy project assets`, or name a folder that has it in vars.mirror"
        )
    return paths[0]


def read(path: Path, broken: BrokenRows) -> Iterator[str]:
    """YIELDS (str): The sentences that can be used, each with a newline at its end."""
    sentence: list[tuple[str, str]] = []
    n_problems = len(broken.problems)
    with path.open("rb") as file:
        for where, line in chain(lines(path, file, broken), [("", "")]):
            if line.strip():
                sentence.append((where, line.rstrip("\r\n")))
                continue
            # A line that is not UTF-8 is a problem already, and leaves a gap.
            if len(broken.problems) == n_problems:
                check(sentence, broken)
            if sentence and len(broken.problems) == n_problems:
                yield "".join(f"{line}\n" for _, line in sentence)
            sentence, n_problems = [], len(broken.problems)


def check(sentence: Sequence[tuple[str, str]], broken: BrokenRows) -> None:
    """Note the first thing that is wrong with each row; comments are none."""
    rows = [(where, line.split("\t")) for where, line in sentence if not line.startswith("#")]
    # Ranges (1-2) are contractions, decimal numbers (1.1) are words that are not in the text.
    words = [row for row in rows if not set("-.") & set(row[1][_ID])]
    for number, (where, columns) in enumerate(words, start=1):
        if len(columns) != _N_COLUMNS:
            broken.add(where, f"{len(columns)} columns instead of {_N_COLUMNS}")
        elif columns[_ID] != str(number):
            broken.add(where, f"ID {columns[_ID]!r} instead of {number}")
        elif columns[_UPOS] != "_" and columns[_UPOS] not in IDS:
            broken.add(where, f"unknown UPOS {columns[_UPOS]!r}")
        elif not columns[_HEAD].isdecimal() or not 0 <= int(columns[_HEAD]) <= len(words):
            broken.add(where, f"HEAD {columns[_HEAD]!r} is not from 0 to {len(words)}")
        elif columns[_HEAD] == columns[_ID]:
            broken.add(where, f"HEAD {columns[_HEAD]!r} is the word itself")
        elif columns[_DEPREL] in ("", "_"):
            broken.add(where, "no DEPREL")


if __name__ == "__main__":
    main()
