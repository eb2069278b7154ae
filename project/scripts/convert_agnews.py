"""AG News to .spacy files, and its training texts to text for pretraining.

Reads the official files, whose columns are class, title and description, and files where title and
description are both in the third column.

    python scripts/convert_agnews.py FOLDER OUT
"""

from __future__ import annotations

import argparse
import csv
import html
import re
from collections.abc import Iterator
from pathlib import Path

from checksums import check_assets
from labelled import BROKEN, BrokenRows, Text, clean, draw, lines, write_docs, write_lines

from spacy_elmo.cli.util import exit_on_error

LABELS = ("World", "Sports", "Business", "Sci/Tech")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where train.csv and test.csv are")
    parser.add_argument("out", type=Path, help="for {train,dev,test}.spacy and train.txt")
    parser.add_argument("--n-dev", type=int, default=500, help="taken from the training texts")
    parser.add_argument("--broken", choices=BROKEN, default="stop", help="rows that are broken")
    args = parser.parse_args()
    with exit_on_error():
        check_assets(args.folder)
        broken = BrokenRows(args.broken == "skip")
        train, test = (list(read(args.folder / name, broken)) for name in ("train.csv", "test.csv"))
        broken.report()
        dev, train = draw(train, args.n_dev)
        for name, texts in (("train", train), ("dev", dev), ("test", test)):
            write_docs(args.out / f"{name}.spacy", texts, LABELS)
        write_lines(args.out / "train.txt", (text.text for text in train))


def read(path: Path, broken: BrokenRows) -> Iterator[Text]:
    """YIELDS (Text): The rows that can be used. The file has a row per line."""
    with path.open("rb") as file:
        for where, line in lines(path, file, broken):
            try:
                row = next(csv.reader([line], strict=True), [])
            except csv.Error as error:
                broken.add(where, f"not CSV ({error})")
                continue
            if len(row) != 3:
                broken.add(where, f"{len(row)} columns instead of 3: class, title, description")
                continue
            label, text = row[0].strip(), _clean(f"{row[1]} {row[2]}")
            if label not in ("1", "2", "3", "4"):
                broken.add(where, f"unknown class {label!r}, only 1, 2, 3 and 4")
            elif not text:
                broken.add(where, "no text")
            else:
                yield Text(text, LABELS[int(label) - 1])


def _clean(text: str) -> str:
    """Undo what the data set's authors did to line breaks and to the & of character codes."""
    return clean(html.unescape(re.sub(r" ?#(\d+);", r"&#\1;", text.replace("\\", " "))))


if __name__ == "__main__":
    main()
