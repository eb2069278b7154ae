"""Words with two senses: are vectors of one sense nearer to each other than to those of the other?

    python project/en_elmo_sm/senses.py en_elmo_sm CORPUS/en_elmo_sm [--words]

Prints a table with a column per model (names or paths) for the words of tests/test_polysemy.py, and
one for those of senses.jsonl, which were written by someone who had not seen a model. A line is

    {"word": "bank", "senses": [["She asked the [bank] for a loan.", ...], ["The left [bank] ..."]]}

Vectors and "mean" are those of the test: the mean cosine of pairs of one sense is above that of
pairs of two, for so many words; in brackets, the words gained and lost against the first model.
"all" are words of which every pair of one sense is above every pair of two. AUC is the share of
such comparisons that are right, mean and standard error of the words; without a model it is 50%.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy
import spacy
import srsly
import torch
from scores import auc, mean, pairs
from spacy.language import Language
from torch.nn.functional import normalize

from spacy_elmo.cli.util import exit_on_error

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.test_polysemy import SENSES, similarity_margin, vector

LIST = Path(__file__).parent / "senses.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--list", type=Path, default=LIST, help="The second list")
    parser.add_argument("--words", action="store_true", help="A row for each word, too")
    args = parser.parse_args()
    with exit_on_error():
        lists = {"test_polysemy.py": SENSES, args.list.name: read(args.list)}
        pipelines = [load(name) for name in args.models]
        print("| list | measure | " + " | ".join(args.models) + " |")
        print("|---|---|" + "---:|" * len(pipelines))
        for name, senses in lists.items():
            results = [{word: measure(nlp, x) for word, x in senses.items()} for nlp in pipelines]
            print_rows(name, results, args.words)


def load(name: str) -> Language:
    """RETURNS (Language): The same pipeline for all weights and pipelines."""
    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer")
    elmo = nlp.add_pipe("elmo", config={"model": {"weights": name}})
    elmo.bilm  # noqa: B018  Load now, so that errors appear here.
    return nlp


def read(path: Path) -> dict[str, tuple[list[str], list[str]]]:
    """RAISES (ValueError): If a line is not as above; names file and line."""
    if not path.is_file():
        raise ValueError(f"no such file: {path}")
    result = {}
    for number, line in enumerate(path.read_text(encoding="utf8").splitlines(), 1):
        try:
            record = srsly.json_loads(line)
            word, senses = record["word"], record["senses"]
            first, second = senses
            marked = {tuple(re.findall(r"\[(.*?)\]", text)) for text in (*first, *second)}
            if marked != {(word,)} or len(first) < 2 or len(second) < 2 or word in result:
                raise ValueError(f"the word must be new, and marked as [{word}] in each sentence")
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path}, line {number}: {error}; a line must look like "
                '{"word": "bank", "senses": [["... [bank] ...", ...], ["... [bank] ...", ...]]}'
            ) from error
        result[word] = (first, second)
    if not result:
        raise ValueError(f"{path} is empty: give words with two senses")
    return result


def measure(nlp: Language, senses: Sequence[list[str]]) -> tuple[float, float]:
    """RETURNS (tuple): The margin of the test, and the AUC."""
    first, second = (numpy.stack([vector(nlp, text) for text in texts]) for texts in senses)
    vectors = normalize(torch.from_numpy(numpy.concatenate((first, second))))
    labels = [0] * len(first) + [1] * len(second)
    return similarity_margin((first, second)), auc(*pairs(vectors, labels))


def counts(hits: list[set[str]]) -> list[str]:
    """RETURNS (list): How many words of each model are right."""
    cells = [f" (+{len(x - hits[0])} -{len(hits[0] - x)})" for x in hits[1:]]
    return [f"{len(x)}{cell}" for x, cell in zip(hits, ["", *cells])]


def describe(areas: list[float]) -> str:
    """RETURNS (str): Mean and standard error."""
    error = statistics.stdev(areas) / len(areas) ** 0.5 if len(areas) > 1 else 0.0
    return f"{100 * mean(areas):.1f} ± {100 * error:.1f}%"


def print_rows(name: str, results: list[dict[str, tuple[float, float]]], words: bool) -> None:
    n = len(results[0])
    summary = {
        f"mean, of {n}": counts(
            [{w for w, (margin, _) in x.items() if margin > 0} for x in results]
        ),
        f"all, of {n}": counts([{w for w, (_, area) in x.items() if area == 1} for x in results]),
        "AUC": [describe([area for _, area in x.values()]) for x in results],
    }
    if words:
        for word in results[0]:
            cells = [f"{x[word][0]:+.3f}, AUC {x[word][1]:.0%}" for x in results]
            print(f"| {name} | {word} | " + " | ".join(cells) + " |")
    for label, cells in summary.items():
        print(f"| {name} | {label} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
