"""What `spacy project run demo` has made: load the package, compare the classifiers, plot them.

python scripts/demo.py demo
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy
import plots
import results
import spacy
from spacy.tokens import DocBin
from wasabi import msg

from spacy_elmo.cli.util import exit_on_error

N_REVIEWS = 300
QUERIES = ("movie", "acting", "funny", "dull")
SYSTEMS = {"elmo": "with ELMo", "baseline": "without"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="the folder of the demo's earlier commands")
    folder: Path = parser.parse_args().folder
    with exit_on_error():
        [package] = folder.glob("en_elmo_demo-*/en_elmo_demo/en_elmo_demo-*")
        show_neighbours(package, folder / "corpus" / "test.spacy")
        curves = read_curves(folder / "metrics")
        msg.divider("Sentiment of one-sentence film reviews: accuracy on 1,000 of them")
        rows = [
            (f"{points[0][0]:,}", *(f"{value.mean:.1%}" for _, value in points))
            for points in zip(*curves.values())
        ]
        msg.table(
            rows,
            header=("training reviews", *SYSTEMS.values()),
            aligns=("r", "r", "r"),
            divider=True,
        )
        title = "Sentiment of film reviews"
        plots.draw_sizes(folder / "sentiment.png", title, "accuracy", curves, plots.looks(curves))
        msg.good(f"Plot: {folder / 'sentiment.png'}")
        msg.divider("What to try next")
        print(f"- spacy.load({str(package)!r}) and doc._.elmo in your own code")
        print("- a better biLM: more minutes (spacy project run demo . --vars.demo_minutes 30,")
        print("  with as many more --vars.demo_steps and another --vars.demo folder), or your text")
        print("- which layers the classifier uses:")
        print(
            f"  python -m spacy elmo mixes TRAINED_PIPELINE; the mixes of these runs are in"
            f" {folder / 'metrics'}"
        )
        print("- tagging, parsing and larger classification tasks: see project/README.md")


def show_neighbours(package: Path, reviews: Path) -> None:
    """Print the words whose vectors in their sentences are closest to those of a few words."""
    nlp = spacy.load(package)
    msg.divider(f"Nearest words, by {nlp.meta['lang']}_{nlp.meta['name']}")
    docs = list(DocBin().from_disk(reviews).get_docs(nlp.vocab))[:N_REVIEWS]
    words = [token for doc in nlp.pipe(doc.text for doc in docs) for token in doc if token.is_alpha]
    vectors = numpy.stack([token._.elmo for token in words])
    vectors -= vectors.mean(axis=0)
    vectors /= numpy.linalg.norm(vectors, axis=1, keepdims=True)
    for query in QUERIES:
        row = next((i for i, token in enumerate(words) if token.lower_ == query), None)
        if row is not None:
            print(f"{query}: {', '.join(nearest(words, vectors @ vectors[row], query))}")


def nearest(words: list, similarities: numpy.ndarray, query: str, count: int = 6) -> list[str]:
    frequent: dict[str, None] = {}
    for i in numpy.argsort(-similarities):
        if words[i].lower_ != query:
            frequent.setdefault(words[i].lower_)
        if len(frequent) == count:
            break
    return list(frequent)


def read_curves(folder: Path) -> dict[str, list[tuple[int, results.Spread]]]:
    """RETURNS (dict): For each system, pairs of training reviews and accuracy, of the same sizes.
    RAISES (ValueError): If a system has no results, or not of all sizes."""
    runs = results.read_runs(folder)
    curves = {}
    for system in SYSTEMS:
        curves[system] = []
        for size in results.sizes(runs):
            matching = [run for run in runs if (run.system, run.size) == (system, size)]
            accuracy = results.spread(run.scores.get("cats_acc") for run in matching)
            if accuracy is None:
                raise ValueError(
                    f"{folder}: no results of {system} with {size} reviews per class; "
                    "`spacy project run demo-train` makes them"
                )
            curves[system].append((matching[0].n_train, accuracy))
    if not runs:
        raise ValueError(f"no results in {folder}: `spacy project run demo-train` makes some")
    return curves


if __name__ == "__main__":
    main()
