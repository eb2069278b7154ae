"""How many words of other texts a vocabulary of each size lacks.

    python project/en_elmo_sm/unknown_words.py DATA CORPUS [--sizes 30000 50000 100000 150000]

DATA is `$SPACY_ELMO_SHARED/data`, CORPUS the output of corpus.py. Prints the share of words outside
the most frequent words of the corpus: all words, and those that begin with a capital inside a
sentence (mostly names).
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Iterable, Iterator
from pathlib import Path

from sources import BENCHMARKS

from spacy_elmo.cli.util import exit_on_error
from spacy_elmo.pretraining.corpus import open_corpus
from spacy_elmo.pretraining.tokenize import TokenizationConfig, tokenize
from spacy_elmo.tools.texts import read_texts

MAX_TEXTS = 5000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", default=[30_000, 50_000, 100_000, 150_000])
    args = parser.parse_args()
    with exit_on_error():
        corpus = open_corpus(args.corpus / "prepared")
        ranks = {word: rank for rank, word in enumerate(corpus.train.types)}
        header = [f"{size:,} (names)" for size in args.sizes]
        print("| text | words | " + " | ".join(header) + " |\n|" + "---|" * (2 + len(header)))
        counts = [f"{corpus.counts[min(n, len(corpus.counts) - 1)]:,}" for n in args.sizes]
        print("| count of the last word | | " + " | ".join(counts) + " |")
        for name, text in texts(args.data, args.corpus):
            n, shares = unknown(text, ranks, args.sizes)
            cells = [f"{of_all:.2%} ({of_names:.1%})" for of_all, of_names in shares]
            print(f"| {name} | {n:,} | " + " | ".join(cells) + " |")


def texts(data: Path, corpus: Path) -> Iterator[tuple[str, Iterable[str]]]:
    """YIELDS (tuple): The names of texts, and some of their paragraphs."""
    readers = {name: read(data / folder) for name, (folder, read) in BENCHMARKS.items()}
    for name, reader in readers.items():
        yield name, itertools.islice((text.strip() for text in reader), MAX_TEXTS)
    for name in ("fiction", "nonfiction", "wikipedia_en", "changelog"):
        yield f"held out, {name}", read_texts([corpus / "held_out" / f"{name}.txt"])


def unknown(
    text: Iterable[str], ranks: dict[str, int], sizes: list[int]
) -> tuple[int, list[tuple[float, float]]]:
    """RETURNS (tuple): The number of words, and for each size the share of all words and of names
    that are unknown."""
    all_ranks: list[float] = []
    name_ranks: list[float] = []
    for _, sentences in tokenize(text, TokenizationConfig()):
        for sentence in sentences:
            for position, word in enumerate(sentence):
                rank = ranks.get(word, math.inf)
                all_ranks.append(rank)
                if position and word[0].isupper():
                    name_ranks.append(rank)
    shares = [
        tuple(sum(r >= size for r in x) / max(1, len(x)) for x in (all_ranks, name_ranks))
        for size in sizes
    ]
    return len(all_ranks), shares


if __name__ == "__main__":
    main()
