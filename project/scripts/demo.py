"""What `spacy project run demo` has made: load the package, compare the classifiers, plot them.

python scripts/demo.py demo
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy
import spacy
import srsly
from matplotlib.figure import Figure
from spacy.tokens import DocBin
from wasabi import msg

from spacy_elmo.cli._util import clear_errors
from spacy_elmo.files import atomic_file

N_REVIEWS = 300
QUERIES = ("movie", "acting", "funny", "dull")
SYSTEMS = {"elmo": "with ELMo", "baseline": "without"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="what the commands before have written to")
    folder: Path = parser.parse_args().folder
    with clear_errors():
        [package] = folder.glob("en_elmo_demo-*/en_elmo_demo/en_elmo_demo-*")
        show_neighbours(package, folder / "corpus" / "test.spacy")
        results = read_results(folder / "metrics" / "sentiment")
        msg.divider("Sentiment of one-sentence film reviews: accuracy on 1,000 of them")
        rows = [
            (f"{2 * size:,}", *(f"{found[name]:.1%}" for name in SYSTEMS))
            for size, found in results.items()
        ]
        msg.table(
            rows,
            header=("training reviews", *SYSTEMS.values()),
            aligns=("r", "r", "r"),
            divider=True,
        )
        draw(results, folder / "sentiment.png")
        msg.good(f"Plot: {folder / 'sentiment.png'}")
        msg.divider("What to try next")
        print(f"- spacy.load({str(package)!r}) and doc._.elmo in your own code")
        print("- a better biLM: more minutes (spacy project run demo . --vars.demo_minutes 30,")
        print("  with as many more --vars.demo_steps and another --vars.demo folder), or your text")
        print("- which layers the classifier uses:")
        print(
            f"  python -m spacy elmo weights TRAINED_PIPELINE; the mixes of these runs are in"
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
    found: dict[str, None] = {}
    for i in numpy.argsort(-similarities):
        if words[i].lower_ != query:
            found.setdefault(words[i].lower_)
        if len(found) == count:
            break
    return list(found)


def read_results(folder: Path) -> dict[int, dict[str, float]]:
    """RETURNS (dict): The mean accuracy over seeds, by size per class and system.
    RAISES (ValueError): If a system has no results."""
    values: dict[int, dict[str, list[float]]] = {}
    for path in sorted(folder.glob("*/*/seed-*.json")):
        record = srsly.read_json(path)
        by_system = values.setdefault(record["per_class"], {})
        by_system.setdefault(record["system"], []).append(record["scores"]["cats_acc"])
    if not values or any(set(found) != set(SYSTEMS) for found in values.values()):
        raise ValueError(f"{folder} lacks results: run `spacy project run demo-train` first")
    return {
        size: {name: float(numpy.mean(found)) for name, found in values[size].items()}
        for size in sorted(values)
    }


def draw(results: dict[int, dict[str, float]], path: Path) -> None:
    figure = Figure(figsize=(5, 3.5), layout="constrained")
    axes = figure.subplots()
    sizes = [2 * size for size in results]
    for name, label in SYSTEMS.items():
        axes.plot(sizes, [100 * found[name] for found in results.values()], "o-", label=label)
    axes.set_xscale("log")
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.minorticks_off()
    axes.set_xlabel("training reviews")
    axes.set_ylabel("accuracy (%)")
    axes.set_title("Sentiment of film reviews")
    axes.legend()
    with atomic_file(path) as temporary:
        figure.savefig(temporary, format="png", dpi=150)


if __name__ == "__main__":
    main()
