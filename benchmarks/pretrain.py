"""How fast does a biLM train, and in how much memory?

Prints one Markdown table: a row per shape, vocabulary, precision and kernel, each measured in its
own process. benchmarks/RESULTS.md explains the columns.

    python benchmarks/pretrain.py
    python benchmarks/pretrain.py --shapes original --precision bfloat16 --device cuda \\
        --kernel torch triton --carry-state --rows 2048 --vocabulary 793471

One process with one thread against two such processes:

    python benchmarks/pretrain.py --shapes tiny small --scaling

The CPU time of the parts of a step in one thread, with each vocabulary in turn, so that other work
on the machine slows down all:

    python benchmarks/pretrain.py --shapes tiny --vocabulary 50003 793471 --parts
"""

from __future__ import annotations

import argparse
import functools
import os
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import texts
import torch
from common import (
    SHAPES,
    counted_kernel,
    describe,
    exit_status,
    in_own_process,
    matmul_rate,
    peak_mb,
    print_header,
    print_row,
    run_measure,
)
from count import count_layer, count_update

from spacy_elmo.bilm import BiLMConfig
from spacy_elmo.bilm.mixed_precision import bfloat16_is_faster
from spacy_elmo.bilm.token_encoder import character_ids
from spacy_elmo.pretraining import updater
from spacy_elmo.pretraining.batches import Batch, make_epoch
from spacy_elmo.pretraining.config import (
    LossConfig,
    PathsConfig,
    PretrainingConfig,
    RunConfig,
)
from spacy_elmo.pretraining.corpus import open_corpus, prepare
from spacy_elmo.pretraining.distributed import process_group, world_size
from spacy_elmo.pretraining.init_model import build_model
from spacy_elmo.pretraining.language_model import LanguageModel
from spacy_elmo.pretraining.tokenize import TokenizationConfig
from spacy_elmo.pretraining.updater import Updater

N_SAMPLES = 8192
UNROLL_STEPS = 20
# Steps before the measured ones. On a GPU, kernels are compiled and memory is reserved in them.
N_WARM_UP = {"cpu": 2, "cuda": 5}
# Methods whose CPU time is shown by itself.
PARTS = {
    "forward": (LanguageModel, "forward"),
    "backward": (torch.Tensor, "backward"),
    "clip": (updater, "clip_gradients"),
}
RUN_COLUMNS = {"shape": "{}", "vocabulary": "{:,}", "precision": "{}", "kernel": "{}"}
# By measure.
COLUMNS = {
    "training": {
        **RUN_COLUMNS,
        "words/s": "{:,.0f}",
        "GFLOP/s": "{:,.0f}",
        "mm GFLOP/s": "{:,.0f}",
        "fraction": "{:.0%}",
        "kernels": "{}",
        "MB/token": "{:.2f}",
        "data words/s": "{:,.0f}",
        "data/training": "{:,.0f}",
        "peak MB": "{:,.0f}",
    },
    "scaling": {
        **RUN_COLUMNS,
        "1 process, words/s": "{:,.0f}",
        "2 processes": "{:,.0f}",
        "gain": "{:.2f}",
    },
    "parts": {**RUN_COLUMNS, **dict.fromkeys((*PARTS, "the rest", "all"), "{:.3f}")},
}


def flop(config: BiLMConfig, batch: Batch, n_words: int) -> float:
    """Of the matrix products of one step, backward counted twice."""
    p, dim = config.lstm.projection_dim, config.lstm.dim
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


class Training:
    """Trains a biLM on the batches of the first epoch, one after the other.

    args (Namespace): The options of the command line, with one shape, vocabulary, precision and
        kernel, and the folder of the corpora.
    device (str): "cpu", "cuda" or "meta".
    kernel (str): What runs the LSTMs on a GPU.
    """

    def __init__(self, args: argparse.Namespace, device: str, kernel: Any) -> None:
        settings = PretrainingConfig(
            batch_words=args.rows * UNROLL_STEPS if args.carry_state else args.batch_words,
            carry_state=args.carry_state,
            unroll_steps=UNROLL_STEPS,
            mixed_precision=args.precision == "bfloat16",
            loss=LossConfig(n_samples=min(N_SAMPLES, args.vocabulary // 2)),
        )
        folder = Path(args.folder, str(args.vocabulary))
        run = RunConfig(PathsConfig(folder), bilm=SHAPES[args.shape], pretraining=settings)
        self.corpus = open_corpus(folder)
        self.epoch = make_epoch(self.corpus.train, settings, 0, 0)
        # Of carried rows, the last batch has fewer steps.
        self.n_batches = max(len(self.epoch) - args.carry_state, 1)
        torch.manual_seed(0)
        with torch.device(device):
            model, _ = build_model(run, self.corpus)
        model.bilm.lstm.kernel = model.output.kernel = kernel
        self.updater = Updater(model, settings, 0)
        self.states = model.new_states(args.rows // world_size()) if args.carry_state else None
        self.n_steps = 0

    def step(self) -> tuple[torch.Tensor, int]:
        """RETURNS (tuple): The loss, which need not be computed yet, and which batch was read."""
        number, step = self.n_steps % self.n_batches, self.n_steps
        self.n_steps += 1
        return self.updater.update(self.epoch, [number], step, self.states)[0], number

    def time_steps(self, args: argparse.Namespace) -> tuple[float, list[int]]:
        """RETURNS (tuple): Seconds of some steps, and which batches they read. The host waits for
        the device before the first and after the last one only."""
        for _ in range(N_WARM_UP[args.device]):
            loss, _ = self.step()
        float(loss)
        start = time.perf_counter()
        steps = [self.step() for _ in range(args.steps)]
        float(steps[-1][0])
        return time.perf_counter() - start, [number for _, number in steps]


def measure_training(args: argparse.Namespace) -> dict:
    """A row of the table."""
    training = Training(args, args.device, args.kernel)
    if args.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    seconds, numbers = training.time_steps(args)
    row: dict = {"peak MB": peak_mb(args.device)}
    start = time.perf_counter()
    batches = [training.epoch.read(number) for number in range(len(training.epoch))]
    row["data words/s"] = sum(b.n_words for b in batches) / (time.perf_counter() - start)
    read = [batches[number] for number in numbers]
    row["words/s"] = sum(batch.n_words for batch in read) / seconds
    row["data/training"] = row["data words/s"] / row["words/s"]
    config = SHAPES[args.shape]
    n_samples = training.updater.settings.loss.n_samples
    row["GFLOP/s"] = sum(flop(config, batch, n_samples) for batch in read) / seconds / 1e9
    row["mm GFLOP/s"] = matmul_rate(args.device, args.precision)
    row["fraction"] = row["GFLOP/s"] / row["mm GFLOP/s"]
    kernel, mixed = counted_kernel(args.kernel), args.precision == "bfloat16"
    counts = count_layer(kernel, config=config.lstm, mixed=mixed)
    row["kernels"] = "{:.1f} + {:.1f}".format(*counts)
    counted = Training(args, "meta", kernel)
    counts = count_update(counted.updater, counted.epoch, counted.states)
    row["MB/token"] = counts.bytes.total() / 1e6 / batches[0].n_targets
    return row


def scale(number: int, n_processes: int, port: int, args: argparse.Namespace) -> None:
    """One of several processes, each on one core, that train together."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": str(n_processes)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with process_group(gpu=False):
        training = Training(args, "cpu", args.kernel)
        seconds, numbers = training.time_steps(args)
        if number == 0:
            words = sum(training.epoch.size(number)[0] for number in numbers)
            Path(args.folder, "rate.txt").write_text(str(words / seconds))


def measure_scaling(args: argparse.Namespace) -> dict:
    """Processes with one thread each, by gloo."""
    rates = []
    for n_processes in (1, 2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        torch.multiprocessing.spawn(scale, (n_processes, port, args), nprocs=n_processes)
        rates.append(float(Path(args.folder, "rate.txt").read_text()))
    one, two = rates
    return {"1 process, words/s": one, "2 processes": two, "gain": two / one}


@contextmanager
def cpu_seconds() -> Iterator[Counter]:
    """YIELDS (Counter): CPU seconds spent in each of the parts."""
    spent: Counter = Counter()
    originals = {name: getattr(*place) for name, place in PARTS.items()}

    def measured(name: str):
        @functools.wraps(originals[name])
        def call(*args, **kwargs):
            start = time.process_time()
            result = originals[name](*args, **kwargs)
            spent[name] += time.process_time() - start
            return result

        return call

    for name, place in PARTS.items():
        setattr(*place, measured(name))
    try:
        yield spent
    finally:
        for name, place in PARTS.items():
            setattr(*place, originals[name])


def measure_parts(args: argparse.Namespace) -> list[dict]:
    """A row for each vocabulary, in CPU seconds per step of one thread."""
    torch.set_num_threads(1)
    trainings, totals = {}, {}
    for n_words in args.vocabularies:
        args.vocabulary, totals[n_words] = n_words, Counter()
        trainings[n_words] = training = Training(args, "cpu", args.kernel)
        for _ in range(N_WARM_UP["cpu"]):
            training.step()
    for number in range(args.steps):
        for n_words in sorted(trainings, reverse=bool(number % 2)):
            with cpu_seconds() as spent:
                start = time.process_time()
                trainings[n_words].step()
                totals[n_words]["all"] += time.process_time() - start
            totals[n_words].update(spent)
    rows = []
    for n_words, total in totals.items():
        total["the rest"] = total["all"] - sum(total[name] for name in PARTS)
        mean = {name: value / args.steps for name, value in total.items()}
        rows.append({"vocabulary": n_words, **mean})
    return rows


def write_corpora(folder: Path, sentences: list[list[str]], vocabularies: list[int]) -> None:
    """Write a corpus for each size of the vocabulary, filled up with words that do not occur."""
    counts = Counter(word for words in sentences for word in words)
    words = ["<S>", "</S>", "<UNK>", *(word for word, _ in counts.most_common())]
    words += [f"unseen-{number}" for number in range(max(vocabularies) - len(words))]
    for n_words in vocabularies:
        lines = (" ".join(sentence) for sentence in sentences)
        tokenization = TokenizationConfig(whitespace=True, one_per_line=True)
        prepare(lines, folder / str(n_words), tokenization, vocabulary=words[:n_words])


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--shapes", nargs="+", choices=SHAPES, default=["tiny", "small", "original"])
    add(
        "--precision",
        nargs="+",
        choices=("float32", "bfloat16"),
        help="default: those that are fast here",
    )
    add("--device", default="cpu", choices=("cpu", "cuda"))
    add("--kernel", nargs="+", default=["auto"], choices=("auto", "torch", "triton"))
    add("--vocabulary", nargs="+", type=int, default=[20_000], help="words of the output layer")
    add("--carry-state", action="store_true", help=f"rows of {UNROLL_STEPS} words per step")
    add("--rows", type=int, help="with --carry-state (default: 128)")
    add("--batch-words", type=int, help="without --carry-state (default: 4,096)")
    add("--sentences", type=int, default=12_000, help="of the corpus")
    add("--steps", type=int, help="measured ones (default: 6, on a GPU 50)")
    add("--scaling", action="store_true", help="two processes against one")
    add("--parts", action="store_true", help="CPU seconds of the parts of a step")
    args = parser.parse_args()
    if (args.rows and not args.carry_state) or (args.batch_words and args.carry_state):
        parser.error("--rows needs --carry-state, which has no --batch-words")
    if (args.scaling or args.parts) and (args.device != "cpu" or (args.scaling and args.parts)):
        parser.error("--scaling and --parts are measured on a CPU, one of them at a time")
    args.rows, args.batch_words = args.rows or 128, args.batch_words or 4096
    args.steps = args.steps or (6 if args.device == "cpu" else 50)
    if args.precision is None:
        has_bfloat16 = args.device == "cuda" or bfloat16_is_faster()
        args.precision = ["float32", "bfloat16"] if has_bfloat16 else ["float32"]
    return args


def main() -> int:
    if run_measure(MEASURES):
        return 0
    args = parse_args()
    source, sentences = texts.sentences(args.sentences)
    by_rows = f"{args.rows:,} rows of {UNROLL_STEPS} words with carried states"
    print(
        f"{source}: up to {N_SAMPLES:,} samples, "
        f"{by_rows if args.carry_state else f'{args.batch_words:,} words'} per step, {args.steps} "
        f"steps. {describe(args.device)}.\n"
    )
    measure = "scaling" if args.scaling else "parts" if args.parts else "training"
    columns = COLUMNS[measure]
    vocabularies = args.vocabulary
    with tempfile.TemporaryDirectory() as args.folder:
        write_corpora(Path(args.folder), sentences, vocabularies)
        print_header(columns)
        # The parts of all vocabularies are measured together.
        each = vocabularies[:1] if args.parts else vocabularies
        for one in product(args.shapes, each, args.precision, args.kernel):
            settings = dict(zip(RUN_COLUMNS, one), vocabularies=vocabularies)
            rows = in_own_process(__file__, measure, args, **settings)
            for row in rows if isinstance(rows, list) else [rows]:
                print_row(columns, {**settings, **row})
    return exit_status()


MEASURES = {"training": measure_training, "scaling": measure_scaling, "parts": measure_parts}

if __name__ == "__main__":
    sys.exit(main())
