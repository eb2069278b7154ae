"""Search sentences by meaning: index a corpus once, then ask for the sentences most like yours.

    python examples/semantic_search.py index texts/ books.index --pipeline en_elmo_sm
    python examples/semantic_search.py search books.index "The river flooded the town." -n 5

A sentence's vector is `Span._.elmo`, pooled for this (docs/vectors.md), with a length of 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy
import srsly
from spacy.language import Language
from spacy.tokens import Doc, Span
from thinc.api import to_numpy
from tqdm import tqdm

from spacy_elmo.files import atomic_folder
from spacy_elmo.tools.texts import find_files, read_docs
from spacy_elmo.weights import absolute_source, load_pipeline

BUNDLED = "en_elmo_sm"
BLOCK = 10_000
FILES = ("sentences.txt", "vectors.npy", "manifest.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("index", help="write the vectors of all sentences")
    command.add_argument("corpus", help="a .txt, .jsonl or .spacy file, a folder or a pattern")
    command.add_argument("index", type=Path, help="the folder to write")
    command.add_argument("--pipeline", default=BUNDLED, help=f"a path or a name ({BUNDLED})")
    command = commands.add_parser("search", help="print the sentences most like a query")
    command.add_argument("index", type=Path, help="the folder that `index` wrote")
    command.add_argument("query", help="a sentence")
    command.add_argument("-n", type=int, default=10, help="how many (10)")
    args = parser.parse_args()
    try:
        if args.command == "index":
            n_sentences = build(args.corpus, args.index, args.pipeline)
            print(f"{args.index}: {n_sentences} sentences")
        else:
            for similarity, sentence in search(args.index, args.query, args.n):
                print(f"{similarity:6.3f}  {sentence}")
    except (OSError, ValueError) as error:
        sys.exit(str(error))


def load(pipeline: str) -> Language:
    """RAISES (OSError, ValueError): If there is no such pipeline, or none with ELMo."""
    nlp = load_pipeline(pipeline)
    if "elmo" not in nlp.pipe_names:
        raise ValueError(f"the pipeline {pipeline} has no component 'elmo', only {nlp.pipe_names}")
    if not {"parser", "senter", "sentencizer"} & set(nlp.pipe_names):
        nlp.add_pipe("sentencizer", first=True)
    return nlp


def build(corpus: str, index: Path, pipeline: str) -> int:
    """Write an index: sentences, one per line; their vectors; how they were made.

    RETURNS (int): The number of sentences.
    RAISES (OSError, ValueError): If something cannot be read or has no sentences, or if there is
        something else than an index at its path.
    """
    if index.exists() and not all((index / name).is_file() for name in FILES):
        raise ValueError(f"{index} exists, and is not an index: choose another path")
    nlp = load(pipeline)
    sentences, vectors = [], []
    for sentence in tqdm(_sentences(nlp, corpus), unit=" sentences", disable=None):
        sentences.append(" ".join(sentence.text.split()))
        vectors.append(vector_of(sentence).astype(numpy.float16))
    if not sentences:
        raise ValueError(f"there are no sentences in {corpus}")
    # A path that is valid in any working directory.
    manifest = {
        "pipeline": str(absolute_source(pipeline)),
        "n_sentences": len(sentences),
        "corpus": corpus,
    }
    with atomic_folder(index) as new:
        (new / "sentences.txt").write_text("\n".join(sentences) + "\n", encoding="utf8")
        numpy.save(new / "vectors.npy", numpy.stack(vectors))
        srsly.write_json(new / "manifest.json", manifest)
    return len(sentences)


def _sentences(nlp: Language, corpus: str) -> Iterator[Span]:
    docs = (doc for doc, _ in read_docs(nlp, find_files([corpus])))
    for doc in nlp.pipe(docs):
        yield from (sentence for sentence in doc.sents if sentence.text.strip())


def vector_of(text: Doc | Span) -> numpy.ndarray:
    """RETURNS (ndarray): Its vector, of the length 1, or zeros.
    RAISES (ValueError): If the pipeline has removed the vectors again."""
    if text._.elmo is None:
        raise ValueError("the pipeline leaves no ELMo vectors on its docs: has it a doc_cleaner?")
    vector = to_numpy(text._.elmo)
    return vector / (numpy.linalg.norm(vector) or 1)


def search(index: Path, query: str, n: int) -> list[tuple[float, str]]:
    """RETURNS (list): The best sentences, each with its cosine similarity.
    RAISES (OSError, ValueError): If there is no index, or its pipeline is gone."""
    if n < 1:
        raise ValueError(f"-n must be 1 or more, found {n}")
    manifest = srsly.read_json(index / "manifest.json")
    vectors = numpy.load(index / "vectors.npy", mmap_mode="r")
    sentences = (index / "sentences.txt").read_text(encoding="utf8").split("\n")
    vector = vector_of(load(manifest["pipeline"])(query))
    # In blocks: the file is mapped, and should not be in memory twice as wide.
    blocks = (vectors[i : i + BLOCK] @ vector for i in range(0, len(vectors), BLOCK))
    similarities = numpy.concatenate(list(blocks))
    return [(float(similarities[i]), sentences[i]) for i in numpy.argsort(-similarities)[:n]]


if __name__ == "__main__":
    main()
