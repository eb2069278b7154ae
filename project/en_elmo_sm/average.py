"""Average the weights of a training's checkpoints, biLM and output layer.

    python average.py CORPUS/prepared CORPUS/run CORPUS/average --steps 28000 43750

Each checkpoint from the first to the last step has the same share. OUT is a pipeline like the run's
model-last, with its perplexity on the development part.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from compare import CONFIG, EVAL_WORDS
from wasabi import msg

from spacy_elmo.cli.util import exit_on_error
from spacy_elmo.pretraining import checkpoint as checkpoints
from spacy_elmo.pretraining.config import read_config
from spacy_elmo.pretraining.corpus import open_corpus
from spacy_elmo.pretraining.export import write_model
from spacy_elmo.pretraining.init_model import build_model
from spacy_elmo.pretraining.perplexity import perplexity


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, nargs=2, required=True, metavar=("FIRST", "LAST"))
    args = parser.parse_args()
    first, last = args.steps
    with exit_on_error():
        kept = checkpoints.all_checkpoints(args.run)
        paths = [path for path in kept if first <= checkpoints.get_step(path) <= last]
        ends = [checkpoints.get_step(path) for path in (paths[0], paths[-1])] if paths else []
        if ends != args.steps:
            raise ValueError(f"{args.run} has no checkpoints of both steps, {first} and {last}")
        corpus = open_corpus(args.corpus)
        config = read_config(CONFIG, {"paths.corpus": str(args.corpus)})
        model, _ = build_model(config, corpus)
        mean = {name: 0.0 for name in model.state_dict()}
        for path in paths:
            weights = checkpoints.load(path)["model"]
            mean = {name: x + weights[name].double() / len(paths) for name, x in mean.items()}
        model.load_state_dict(mean)
        unigram = corpus.unigram_log_probabilities()
        score = perplexity(model, corpus.dev, max_words=EVAL_WORDS, unigram=unigram)
        write_model(args.out, model, config.pretraining.loss, corpus, score)
    msg.good(f"{args.out}: {len(paths)} checkpoints, perplexity {score['average']:.2f}")


if __name__ == "__main__":
    main()
