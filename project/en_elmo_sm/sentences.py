"""How well do vectors of docs tell what texts mean? By the default pooling, and by the mean.

    python project/en_elmo_sm/sentences.py sample CORPUS SAMPLE.txt
    python project/en_elmo_sm/sentences.py scores CORPUS STSB en_elmo_sm CORPUS/en_elmo_sm

`sample` writes every 50th paragraph of CORPUS, the output of corpus.py, for `spacy elmo
fit-pooling`. `scores` prints Spearman's correlation with the training and development parts of the
STS benchmark (the folder STSB of train.csv and dev.csv), and the mean reciprocal rank of search:
which paragraph, without its first sentence, does the first sentence belong to? In per cent.
"""

from __future__ import annotations

import argparse
import csv
import random
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy
from scores import reciprocal_rank
from sources import SOURCES
from spacy.language import Language
from spacy.tokens import Doc
from spacy.util import registry
from tasks import MAX_SENTENCES, N_PARAGRAPHS, Sentence, read_paragraphs
from torch import from_numpy

from spacy_elmo.cli.util import exit_on_error
from spacy_elmo.tools.texts import make_doc
from spacy_elmo.weights import load_pipeline

EVERY = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("sample")
    command.add_argument("corpus", type=Path)
    command.add_argument("out", type=Path)
    command = commands.add_parser("scores")
    command.add_argument("corpus", type=Path)
    command.add_argument("stsb", type=Path)
    command.add_argument("models", nargs="+")
    args = parser.parse_args()
    with exit_on_error():
        if args.command == "sample":
            sample(args.corpus, args.out)
        else:
            print(
                "| weights | pooling | STS-B train | STS-B dev | search |\n|---|---|---:|---:|---:|"
            )
            for model in args.models:
                print_scores(args.corpus, args.stsb, model)


def sample(corpus: Path, out: Path) -> None:
    with out.open("w", encoding="utf8") as file:
        for path in sorted((corpus / "text").glob("*.txt")):
            with path.open(encoding="utf8") as lines:
                file.writelines(line for number, line in enumerate(lines) if number % EVERY == 0)


def print_scores(corpus: Path, stsb: Path, model: str) -> None:
    paragraphs = choose_paragraphs(corpus / "held_out")
    for pooling in ("spacy-elmo.MeanPooling.v1", None):
        nlp = load_pipeline(model)
        nlp.get_pipe("elmo").pooling = pooling and registry.misc.get(pooling)()
        scores = [spearman(nlp, stsb / f"{part}.csv") for part in ("train", "dev")]
        first = vectors(nlp, [[paragraph[0]] for paragraph in paragraphs])
        rest = vectors(nlp, [paragraph[1:] for paragraph in paragraphs])
        scores.append(reciprocal_rank(from_numpy(first @ rest.T)))
        cells = " | ".join(f"{100 * score:.1f}" for score in scores)
        print(f"| {model} | {'mean' if pooling else 'default'} | {cells} |", flush=True)


def choose_paragraphs(held_out: Path) -> list[list[Sentence]]:
    """RETURNS (list): Those of the task `search` of tasks.py."""
    chance, chosen = random.Random(0), []
    for source in SOURCES:
        paragraphs = read_paragraphs(held_out / f"{source.name}.txt")
        long = [x[:MAX_SENTENCES] for x in paragraphs if len(x) >= 3]
        chance.shuffle(long)
        chosen += long[: min(N_PARAGRAPHS, len(long) * 2 // 3)]
    return chosen


def vectors(nlp: Language, texts: Iterable[list[Sentence]]) -> numpy.ndarray:
    """RETURNS (ndarray): Of each text, normalised; shape (texts, width)."""
    docs = (Doc.from_docs([make_doc(nlp, x) for x in sentences]) for sentences in texts)
    rows = numpy.stack([doc._.elmo for doc in nlp.pipe(docs)])
    return rows / numpy.maximum(numpy.linalg.norm(rows, axis=1, keepdims=True), 1e-9)


def spearman(nlp: Language, path: Path) -> float:
    """RETURNS (float): The correlation of the cosines of pairs with what people say."""
    with path.open(encoding="utf8", newline="") as file:
        rows = list(csv.reader(file))
    left, right = (numpy.stack([doc._.elmo for doc in nlp.pipe(x)]) for x in list(zip(*rows))[:2])
    norms = numpy.linalg.norm(left, axis=1) * numpy.linalg.norm(right, axis=1)
    cosines = (left * right).sum(axis=1) / numpy.maximum(norms, 1e-9)
    return float(numpy.corrcoef(ranks(cosines), ranks([float(row[2]) for row in rows]))[0, 1])


def ranks(values: Sequence[float]) -> numpy.ndarray:
    """RETURNS (ndarray): From 1 on, equal values the mean of theirs."""
    _, index, counts = numpy.unique(values, return_inverse=True, return_counts=True)
    return (numpy.cumsum(counts) - (counts - 1) / 2)[index]


if __name__ == "__main__":
    main()
