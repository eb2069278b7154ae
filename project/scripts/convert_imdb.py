"""IMDB film reviews to .spacy files, and the unlabelled ones to text for pretraining.

Reads the official aclImdb_v1.tar.gz, the folder aclImdb that it unpacks to, or {train,test,unsup}
.jsonl or .jsonl.gz with "text" and "label".

    python scripts/convert_imdb.py FOLDER OUT
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from checksums import check_assets
from labelled import BROKEN, BrokenRows, Text, clean, draw, lines, write_docs, write_lines

from spacy_elmo.cli.util import exit_on_error

LABELS = ("neg", "pos")
ARCHIVE, UNPACKED = "aclImdb_v1.tar.gz", "aclImdb"
_REVIEW = re.compile(r"(?:^|/)(train|test)/(neg|pos|unsup)/[^/]+\.txt$")


class Review(NamedTuple):
    """A review and its split of the data set: train, test or unsup."""

    split: str
    text: Text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the files are")
    parser.add_argument("out", type=Path, help="for {train,dev,test}.spacy and unlabelled.txt")
    parser.add_argument("--n-dev", type=int, default=500, help="taken from the training reviews")
    parser.add_argument("--n-test", type=int, default=0, help="of the test reviews; 0 for all")
    parser.add_argument("--broken", choices=BROKEN, default="stop", help="rows that are broken")
    args = parser.parse_args()
    with exit_on_error():
        check_assets(args.folder)
        broken = BrokenRows(args.broken == "skip")
        splits: dict[str, list[Text]] = {"train": [], "test": [], "unsup": []}
        for split, text in read(args.folder, broken):
            splits[split].append(text)
        broken.report()
        for split, texts in splits.items():
            if not texts:
                raise ValueError(f"{args.folder}: no reviews of the part {split!r}")
        dev, train = draw(splits["train"], args.n_dev)
        test = splits["test"]
        if 0 < args.n_test < len(test):
            test = draw(test, args.n_test)[0]
        for name, texts in (("train", train), ("dev", dev), ("test", test)):
            write_docs(args.out / f"{name}.spacy", texts, LABELS)
        known = {text.text for text in splits["test"]}
        unlabelled = (text.text for text in splits["unsup"] if text.text not in known)
        write_lines(args.out / "unlabelled.txt", unlabelled)


def read(folder: Path, broken: BrokenRows) -> Iterator[Review]:
    """YIELDS (Review): Those that can be used.
    RAISES (ValueError): If the data set is not there in any of its forms."""
    if (folder / ARCHIVE).is_file():
        yield from _read_archive(folder / ARCHIVE, broken)
    elif (folder / UNPACKED).is_dir():
        for path in sorted((folder / UNPACKED).rglob("*.txt")):
            if match := _REVIEW.search(path.as_posix()):
                yield from _review(str(path), *match.groups(), path.read_bytes(), broken)
    else:
        for split in ("train", "test", "unsup"):
            yield from _read_json(_json_file(folder, split), split, broken)


def _read_archive(path: Path, broken: BrokenRows) -> Iterator[Review]:
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                file = archive.extractfile(member)
                if file is not None and (match := _REVIEW.search(member.name)):
                    yield from _review(
                        f"{path}, {member.name}", *match.groups(), file.read(), broken
                    )
        with gzip.open(path) as file:
            # Damage can look like the end of the archive. The checksum at the real end shows it.
            while file.read(1 << 20):
                pass
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise ValueError(f"{path} is damaged ({error}): fetch it again") from error


def _review(where: str, split: str, label: str, raw: bytes, broken: BrokenRows) -> Iterator[Review]:
    try:
        text = clean(raw.decode("utf8"))
    except UnicodeDecodeError as error:
        broken.add(where, f"not UTF-8 ({error.reason} at byte {error.start})")
        return
    if not text:
        broken.add(where, "no text")
    elif label == "unsup":
        yield Review("unsup", Text(text, None))
    else:
        yield Review(split, Text(text, label))


def _json_file(folder: Path, split: str) -> Path:
    for path in (folder / f"{split}.jsonl.gz", folder / f"{split}.jsonl"):
        if path.is_file():
            return path
    raise ValueError(
        f"no film reviews in {folder}: neither {ARCHIVE} nor {UNPACKED}/ nor {split}.jsonl(.gz). "
        "Fetch them with `spacy project assets`, or name a folder that has them in vars.mirror"
    )


def _read_json(path: Path, split: str, broken: BrokenRows) -> Iterator[Review]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for where, line in lines(path, file, broken):
                yield from _read_record(where, line, split, broken)
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise ValueError(f"{path} is damaged ({error}): fetch it again") from error


def _read_record(where: str, line: str, split: str, broken: BrokenRows) -> Iterator[Review]:
    try:
        record = json.loads(line)
    except ValueError as error:
        broken.add(where, f"not JSON ({error})")
        return
    text = record.get("text") if isinstance(record, dict) else None
    label = record.get("label") if isinstance(record, dict) else None
    if not isinstance(text, str) or not clean(text):
        broken.add(where, 'no "text"')
    elif split == "unsup":
        yield Review(split, Text(clean(text), None))
    elif label not in LABELS:
        broken.add(where, f"unknown label {label!r}, only {' and '.join(LABELS)}")
    else:
        yield Review(split, Text(clean(text), label))


if __name__ == "__main__":
    main()
