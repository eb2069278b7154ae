"""How fast does a biLM train?

Prints one Markdown table: words per second, the floating-point operations of its matrix products
(forward and backward) per second and as a fraction of the machine's matrix-multiply rate, and how
many words per second the data alone could give. On a CPU a second table compares one process with
two.

    python benchmarks/pretrain.py
    python benchmarks/pretrain.py --shapes small --device cuda --mixed-precision --batch-words 32768

What a step costs with another vocabulary, in CPU time of one thread, of the smallest shape:

    python benchmarks/pretrain.py --vocabulary
"""

from __future__ import annotations

import argparse
import functools
import os
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import texts
import torch
from embed import FILTERS, SHAPES, matmul_rate
from torch import nn

from spacy_elmo.bilm import BiLMConfig, CharCNNConfig, LSTMConfig
from spacy_elmo.bilm.characters import character_ids
from spacy_elmo.pretraining.batches import Batch, SentenceBatches, pack, plan_epoch
from spacy_elmo.pretraining.config import PathsConfig, PretrainingConfig, RunConfig, SystemConfig
from spacy_elmo.pretraining.corpus import open_corpus, prepare
from spacy_elmo.pretraining.distributed import process_group
from spacy_elmo.pretraining.init_model import build_model
from spacy_elmo.pretraining.language_model import LanguageModel
from spacy_elmo.pretraining.tokenize import TokenizationConfig
from spacy_elmo.pretraining.updater import Updater

TINY = BiLMConfig(
    LSTMConfig(256, 64), CharCNNConfig(((1, 32), (2, 32), (3, 64), (4, 128), (5, 128)), n_highway=1)
)
VOCABULARY = 20_000
N_SAMPLES = 8192
# Words of the two output layers that --vocabulary compares.
FEW_WORDS, MANY_WORDS = 50_003, 793_471
# Methods whose CPU time is shown by itself.
PARTS = {
    "forward": (LanguageModel, "forward"),
    "backward": (torch.Tensor, "backward"),
    "clip": (nn.utils, "clip_grad_norm_"),
}
COLUMNS = ("shape", "words/s", "GFLOP/s", "mm GFLOP/s", "fraction", "data words/s", "data/training")


def config_of(shape: str) -> BiLMConfig:
    if shape == "tiny":
        return TINY
    dim, projection_dim, n_highway = SHAPES[shape]
    return BiLMConfig(LSTMConfig(dim, projection_dim), CharCNNConfig(FILTERS, n_highway=n_highway))


def flop(config: BiLMConfig, batch: Batch, n_words: int) -> float:
    """Of the matrix products of one step, backward counted twice."""
    p, dim = config.projection_dim, config.lstm.dim
    lstm = 2 * batch.n_targets * config.lstm.n_layers * 2 * (2 * p * 4 * dim + dim * p)
    softmax = 2 * batch.n_targets * 2 * p * n_words
    cnn = config.char_cnn
    assert cnn is not None
    n = cnn.n_filters
    lengths = character_ids(batch.types, cnn.max_characters_per_token)[1] + cnn.max_width
    convolutions = sum(
        2 * width * cnn.embedding_dim * number * float((lengths - width + 1).sum())
        for width, number in cnn.filters
    )
    layers = 2 * len(batch.types) * (cnn.n_highway * 2 * n * n + n * p)
    return 3 * (lstm + softmax + convolutions + layers)


def new_updater(run: RunConfig, device: str = "cpu") -> tuple[Updater, SentenceBatches]:
    """RETURNS (tuple): What makes the steps of a run, and the batches of its first epoch."""
    assert run.paths.corpus is not None
    corpus = open_corpus(run.paths.corpus)
    model, _ = build_model(run, corpus)
    model.bilm.lstm.kernel = model.output.kernel = run.system.kernel
    updater = Updater(model.to(device), run.pretraining, run.system.seed)
    plan = plan_epoch(corpus.train.lengths, run.pretraining.batch_words, 0, 0)
    return updater, SentenceBatches(corpus.train, plan)


def time_steps(updater: Updater, epoch: SentenceBatches, n_steps: int) -> tuple[float, range]:
    """RETURNS (tuple): Seconds, and which batches they were spent on."""
    for number in range(2):
        float(updater.update(epoch, [number], number)[0])
    start = time.perf_counter()
    timed = range(2, 2 + n_steps)
    for number in timed:
        loss, _ = updater.update(epoch, [number % len(epoch)], number)
    float(loss)
    return time.perf_counter() - start, timed


def scale(
    number: int, n_processes: int, port: int, runs: list[RunConfig], n_steps: int, folder: Path
) -> None:
    """One of several processes, each on one core, that train each of the runs for some steps."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": str(n_processes)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with process_group(gpu=False) as device:
        for i, run in enumerate(runs):
            updater, epoch = new_updater(run, device)
            seconds, timed = time_steps(updater, epoch, n_steps)
            if number == 0:
                words = sum(epoch.size(number)[0] for number in timed)
                (folder / f"{n_processes}-{i}.txt").write_text(str(words / seconds))


def print_scaling(shapes: list[str], runs: list[RunConfig], n_steps: int, folder: Path) -> None:
    for n_processes in (1, 2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        arguments = (n_processes, port, runs, n_steps, folder)
        torch.multiprocessing.spawn(scale, arguments, nprocs=n_processes)
    print("\nProcesses with one thread each, gloo:\n")
    print("| shape | 1 process, words/s | 2 processes | gain |\n|---|---|---|---|")
    for i, shape in enumerate(shapes):
        one, two = (float((folder / f"{n}-{i}.txt").read_text()) for n in (1, 2))
        print(f"| {shape} | {one:,.0f} | {two:,.0f} | {two / one:.2f} |")


@contextmanager
def cpu_seconds() -> Iterator[Counter]:
    """YIELDS (Counter): CPU seconds spent in each of the parts."""
    found: Counter = Counter()
    originals = {part: getattr(*place) for part, place in PARTS.items()}

    def measured(part: str):
        @functools.wraps(originals[part])
        def call(*args, **kwargs):
            start = time.process_time()
            result = originals[part](*args, **kwargs)
            found[part] += time.process_time() - start
            return result

        return call

    for part, place in PARTS.items():
        setattr(*place, measured(part))
    try:
        yield found
    finally:
        for part, place in PARTS.items():
            setattr(*place, originals[part])


def print_vocabulary(batch_words: int, n_steps: int, mixed_precision: bool, folder: Path) -> None:
    """The same steps with output layers of two sizes, in turn, so that other work on the machine
    slows down both."""
    torch.set_num_threads(1)
    source, sentences = texts.sentences(12_000)
    words = ["<S>", "</S>", "<UNK>"]
    words += [word for word, _ in Counter(w for words in sentences for w in words).most_common()]
    words += [f"unseen-{number}" for number in range(MANY_WORDS - len(words))]
    updaters = {}
    for n_words in (FEW_WORDS, MANY_WORDS):
        path = folder / str(n_words)
        lines = (" ".join(sentence) for sentence in sentences)
        tokenization = TokenizationConfig(whitespace=True, one_per_line=True)
        prepare(lines, path, tokenization, vocabulary=words[:n_words])
        settings = PretrainingConfig(batch_words=batch_words, mixed_precision=mixed_precision)
        run = RunConfig(PathsConfig(path), bilm=TINY, pretraining=settings)
        updater, epoch = new_updater(run)
        for number in range(3):
            updater.update(epoch, [number], number)
        updaters[n_words] = updater, epoch
    totals, parts = Counter(), {}
    for number in range(3, 3 + n_steps):
        for n_words in sorted(updaters, reverse=bool(number % 2)):
            updater, epoch = updaters[n_words]
            with cpu_seconds() as found:
                start = time.process_time()
                updater.update(epoch, [number % len(epoch)], number)
                totals[n_words] += time.process_time() - start
            parts.setdefault(n_words, Counter()).update(found)
    print(
        f"{source}: {N_SAMPLES:,} samples, {batch_words:,} words per step, shape tiny, Adagrad, "
        f"CPU seconds per step, mean of {n_steps}.\n"
    )
    columns = ("vocabulary", *PARTS, "the rest", "all")
    print("| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
    for n_words in updaters:
        total = totals[n_words]
        rest = total - sum(parts[n_words].values())
        seconds = [*(parts[n_words][part] for part in PARTS), rest, total]
        cells = [f"{n_words:,}", *(f"{value / n_steps:.3f}" for value in seconds)]
        print("| " + " | ".join(cells) + " |")
    print(f"\nratio: {totals[MANY_WORDS] / totals[FEW_WORDS]:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    shapes = ("tiny", "small", "original")
    parser.add_argument("--shapes", nargs="+", choices=("tiny", *SHAPES), default=shapes)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--mixed-precision", action="store_true")
    parser.add_argument("--batch-words", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--kernel", default="auto", choices=("auto", "torch", "triton"))
    parser.add_argument("--vocabulary", action="store_true")
    args = parser.parse_args()
    if args.vocabulary and (args.device != "cpu" or args.shapes not in (shapes, ["tiny"])):
        parser.error("--vocabulary is measured on the CPU, with the tiny shape alone")
    with tempfile.TemporaryDirectory() as folder:
        if args.vocabulary:
            print_vocabulary(args.batch_words, args.steps, args.mixed_precision, Path(folder))
            return
        path = Path(folder) / "corpus"
        source, sentences = texts.sentences(12_000)
        tokenization = TokenizationConfig(whitespace=True, one_per_line=True)
        lines = (" ".join(sentence) for sentence in sentences)
        prepare(lines, path, tokenization, vocab_size=VOCABULARY)
        corpus = open_corpus(path)
        plan = plan_epoch(corpus.train.lengths, args.batch_words, 0, 0)
        start = time.perf_counter()
        batches = [pack(corpus.train, part) for part in plan]
        data_rate = sum(batch.n_words for batch in batches) / (time.perf_counter() - start)
        print(
            f"{source}: vocabulary of {len(corpus.words):,}, {N_SAMPLES:,} samples, "
            f"{args.batch_words:,} words per batch, "
            f"{'bfloat16' if args.mixed_precision else 'float32'}, {torch.get_num_threads()} "
            f"threads, PyTorch {torch.__version__}, {args.device}.\n"
        )
        print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS))
        runs: list[RunConfig] = []
        for shape in args.shapes:
            config = config_of(shape)
            settings = PretrainingConfig(
                batch_words=args.batch_words, mixed_precision=args.mixed_precision
            )
            system = SystemConfig(kernel=args.kernel)
            run = RunConfig(PathsConfig(path), system, config, settings)
            runs.append(run)
            updater, epoch = new_updater(run, args.device)
            seconds, timed = time_steps(updater, epoch, args.steps)
            read = [batches[number % len(plan)] for number in timed]
            words = sum(batch.n_words for batch in read)
            operations = sum(flop(config, batch, N_SAMPLES) for batch in read)
            dtype = torch.bfloat16 if args.mixed_precision else torch.float32
            limit, rate = matmul_rate(args.device, dtype), operations / seconds / 1e9
            cells = [shape, f"{words / seconds:,.0f}", f"{rate:,.0f}", f"{limit:,.0f}"]
            cells += [f"{rate / limit:.0%}", f"{data_rate:,.0f}"]
            cells += [f"{data_rate / (words / seconds):,.0f}"]
            print("| " + " | ".join(cells) + " |", flush=True)
        if args.device == "cpu":
            print_scaling(args.shapes, runs, args.steps, Path(folder))


if __name__ == "__main__":
    main()
