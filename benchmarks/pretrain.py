"""How fast does a biLM train?

Prints one Markdown table: words per second, the floating-point operations of its matrix products
(forward and backward) per second and as a fraction of the machine's matrix-multiply rate, and how
many words per second the data alone could give.

    python benchmarks/pretrain.py
    python benchmarks/pretrain.py --shapes small --device cuda --mixed-precision --batch-words 32768
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import texts
import torch
from embed import FILTERS, SHAPES, matmul_rate

from spacy_elmo.bilm import BiLMConfig, CharCNNConfig, LSTMConfig
from spacy_elmo.pretraining.batches import Batch, SentenceBatches, pack, plan_epoch
from spacy_elmo.pretraining.config import PretrainingConfig, RunConfig
from spacy_elmo.pretraining.corpus import Corpus, open_corpus, prepare
from spacy_elmo.pretraining.tokenize import Tokenization
from spacy_elmo.pretraining.trainer import Trainer
from spacy_elmo.pretraining.vocabulary import VocabularySettings

TINY = BiLMConfig(
    LSTMConfig(256, 64), CharCNNConfig(((1, 32), (2, 32), (3, 64), (4, 128), (5, 128)), n_highway=1)
)
VOCABULARY = 20_000
N_SAMPLES = 8192
COLUMNS = ("shape", "words/s", "GFLOP/s", "mm GFLOP/s", "fraction", "data words/s", "data/training")


def config_of(shape: str) -> BiLMConfig:
    if shape == "tiny":
        return TINY
    dim, projection_dim, n_highway = SHAPES[shape]
    return BiLMConfig(LSTMConfig(dim, projection_dim), CharCNNConfig(FILTERS, n_highway=n_highway))


def flop(config: BiLMConfig, batch: Batch, corpus: Corpus, n_words: int) -> float:
    """Of the matrix products of one step, backward counted twice."""
    p, dim = config.projection_dim, config.lstm.dim
    lstm = 2 * batch.n_targets * config.lstm.n_layers * 2 * (2 * p * 4 * dim + dim * p)
    softmax = 2 * batch.n_targets * 2 * p * n_words
    cnn = config.char_cnn
    assert cnn is not None
    n = cnn.n_filters
    lengths = corpus.lengths[batch.types] + cnn.max_width
    convolutions = sum(
        2 * width * cnn.embedding_dim * number * float((lengths - width + 1).sum())
        for width, number in cnn.filters
    )
    layers = 2 * len(batch.types) * (cnn.n_highway * 2 * n * n + n * p)
    return 3 * (lstm + softmax + convolutions + layers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    shapes = ("tiny", "small", "original")
    parser.add_argument("--shapes", nargs="+", choices=("tiny", *SHAPES), default=shapes)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--mixed-precision", action="store_true")
    parser.add_argument("--batch-words", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=6)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "corpus"
        source, sentences = texts.sentences(12_000)
        tokenization = Tokenization(whitespace=True, one_per_line=True)
        lines = (" ".join(sentence) for sentence in sentences)
        prepare(lines, path, tokenization, VocabularySettings(VOCABULARY))
        corpus = open_corpus(path)
        plan = plan_epoch(corpus.train.lengths, args.batch_words, 0, 0)
        start = time.perf_counter()
        epoch = SentenceBatches(corpus.train, plan, corpus.n_vocabulary)
        batches = [pack(corpus.train, part, corpus.n_vocabulary) for part in plan]
        data_rate = sum(batch.n_words for batch in batches) / (time.perf_counter() - start)
        print(
            f"{source}: vocabulary of {corpus.n_vocabulary:,}, {N_SAMPLES:,} samples, "
            f"{args.batch_words:,} words per batch, "
            f"{'bfloat16' if args.mixed_precision else 'float32'}, {torch.get_num_threads()} "
            f"threads, PyTorch {torch.__version__}, {args.device}.\n"
        )
        print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS))
        for shape in args.shapes:
            config = config_of(shape)
            settings = PretrainingConfig(
                batch_words=args.batch_words, mixed_precision=args.mixed_precision
            )
            run = RunConfig(path, None, 0, config, settings)
            trainer = Trainer(run, Path(folder) / shape, device=args.device)
            trainer._step(epoch, [0])
            float(trainer._step(epoch, [1]))
            start, words, operations = time.perf_counter(), 0, 0.0
            for number in range(2, 2 + args.steps):
                loss = trainer._step(epoch, [number % len(plan)])
                words += batches[number % len(plan)].n_words
                operations += flop(config, batches[number % len(plan)], corpus, N_SAMPLES)
            float(loss)
            seconds = time.perf_counter() - start
            dtype = torch.bfloat16 if args.mixed_precision else torch.float32
            limit, rate = matmul_rate(args.device, dtype), operations / seconds / 1e9
            cells = [shape, f"{words / seconds:,.0f}", f"{rate:,.0f}", f"{limit:,.0f}"]
            cells += [f"{rate / limit:.0%}", f"{data_rate:,.0f}"]
            cells += [f"{data_rate / (words / seconds):,.0f}"]
            print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
