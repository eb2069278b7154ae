"""Train the output layer that comes with the bundled weights, and round it to 8 bits.

    python output_layer.py CORPUS MODEL OUT

CORPUS is the output of corpus.py, MODEL a name or a path of weights, which stay as they are. The
layer has the most frequent words of the corpus. It starts from that of the model, if MODEL.head is
there, and reads --words words. OUT is a folder MODEL.head. Prints the perplexity on the development
part before and after rounding.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import torch
from compare import EVAL_WORDS, output_layer_config, train_output_layer
from wasabi import msg

from spacy_elmo.bilm.int8 import Int8Weight
from spacy_elmo.cli.util import exit_on_error, torch_device
from spacy_elmo.files import atomic_folder
from spacy_elmo.pretraining.corpus import open_corpus
from spacy_elmo.pretraining.head import Head, write_head
from spacy_elmo.pretraining.init_model import build_model
from spacy_elmo.pretraining.perplexity import perplexity
from spacy_elmo.pretraining.updater import Updater

# With the special ones: the first two clusters of pretrain.cfg.
N_WORDS = 20_000
# The layer alone learns more from many small steps.
BATCH_WORDS = 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    parser.add_argument("--words", type=int, default=1_500_000)
    parser.add_argument("--gpu-id", type=int, default=-1)
    args = parser.parse_args()
    with exit_on_error():
        device = torch_device(args.gpu_id)
        corpus = open_corpus(args.corpus / "prepared")
        train, dev = (replace(x, n_vocabulary=N_WORDS) for x in (corpus.train, corpus.dev))
        corpus = replace(corpus, train=train, dev=dev)
        given = {"paths.init_from": args.model, "pretraining.batch_words": BATCH_WORDS}
        config = output_layer_config(args.words, given)
        torch.manual_seed(config.system.seed)
        model, origin = build_model(config, corpus)
        msg.info(origin)
        train_output_layer(Updater(model.to(device), config.pretraining, 0), corpus)
        scores = [perplexity(model, corpus.dev, max_words=EVAL_WORDS)]
        round_weights(model.output)
        scores.append(perplexity(model, corpus.dev, max_words=EVAL_WORDS))
        with atomic_folder(args.out) as new:
            layer = model.output.state_dict()
            write_head(new, Head(corpus.words, config.pretraining.loss, layer, corpus.tokenization))
        size = sum(path.stat().st_size for path in args.out.iterdir())
    before, after = (f"{score['average']:.2f}" for score in scores if score is not None)
    msg.good(f"{args.out}: {size / 1e6:.1f} MB, perplexity {before}, {after} in 8 bits")


@torch.no_grad()
def round_weights(layer: torch.nn.Module) -> None:
    """Round matrices to 8 bits and a scale for each row, in place."""
    for parameter in layer.parameters():
        if parameter.dim() == 2:
            parameter.copy_(Int8Weight.quantize(parameter).dequantize())


if __name__ == "__main__":
    main()
