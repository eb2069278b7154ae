"""The nearest neighbours of words with two senses, by several models, for the card.

    python project/en_elmo_sm/neighbors.py CORPUS en_elmo_sm NEW/model-last > NEIGHBORS.md

CORPUS is the output of corpus.py. The words are those of tests/test_polysemy.py, the queries the
first sentence of each sense; the neighbours are the same word in the texts that corpus.py holds
out, by the cosine of the component's mix. Prints Markdown.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from senses import SENSES, load

from spacy_elmo.cli.util import exit_on_error
from spacy_elmo.tools.neighbors import Neighbor, find_neighbors
from spacy_elmo.tools.texts import find_files, read_docs

HEADER = """# Neighbours of words with two senses

The nearest occurrences of the word in texts that were held out of the corpus, with the cosine of
the vectors and the name of the text. Made by `neighbors.py`."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("models", nargs="+")
    parser.add_argument("-n", type=int, default=3, help="Neighbours of each query")
    parser.add_argument("--layer", type=int, help="Instead of the component's mix; -1 is the top")
    parser.add_argument("--window", type=int, default=8, help="Tokens that are shown on each side")
    args = parser.parse_args()
    with exit_on_error():
        queries = [sentences[0] for senses in SENSES.values() for sentences in senses]
        files = find_files([str(args.corpus / "held_out")])
        results = []
        for name in args.models:
            nlp = load(name)
            # The other paragraphs have no neighbours.
            pattern = re.compile(rf"\b({'|'.join(SENSES)})\b", re.IGNORECASE)
            docs = (x for x in read_docs(nlp, files) if pattern.search(x[0].text))
            settings = {"n": args.n, "layer": args.layer, "window": args.window}
            elmo = nlp.get_pipe("elmo")
            results.append(find_neighbors(nlp, elmo, queries, docs, same_word=True, **settings))
        print(HEADER)
        for number, query in enumerate(queries):
            print(f"\n**{query}**\n\n| " + " | ".join(args.models) + " |")
            print("|---" * len(args.models) + "|")
            for row in zip(*(result[number] for result in results)):
                print("| " + " | ".join(map(quote, row)) + " |")


def quote(neighbor: Neighbor) -> str:
    text = f"{neighbor.before}**{neighbor.token}**{neighbor.after}".replace("|", r"\|")
    return f"{neighbor.similarity:.3f} {text} ({Path(neighbor.source).stem})"


if __name__ == "__main__":
    main()
