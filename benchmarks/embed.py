"""How fast does the biLM embed, and in how much memory?

Prints one Markdown table: a row per shape, precision, kernel and size of a batch, with random
weights on real sentences. Every row is measured in its own process, so that its peak memory is its
own. BERT and DistilBERT follow, with random weights and on as many word pieces, if `transformers`
is installed. benchmarks/RESULTS.md explains the columns.

    python benchmarks/embed.py
    python benchmarks/embed.py --shapes small --precision float32 --max-tokens 2048 4096 8192
    python benchmarks/embed.py --device cuda --kernel torch triton
    python benchmarks/embed.py --shapes en_elmo_sm PATH --precision float32 --ratio
    python benchmarks/embed.py --busy

A shape can be the name or path of weights or of a pipeline. With --ratio, lines below the table
compare the shapes with the first one.

With --busy, the table compares one thread with several, alone and beside a process that takes one
core, through `nlp.pipe` and with eight threads that call one pipeline. The machine must be idle
otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.util import find_spec
from itertools import chain, cycle, product
from statistics import median
from typing import Any

import numpy
import peers
import plain
import spacy
import texts
import torch
from common import (
    BUNDLED,
    MANY_LANGS,
    PUBLISHED,
    SHAPES,
    build,
    counted_kernel,
    describe,
    exit_status,
    in_own_process,
    matmul_rate,
    peak_mb,
    print_header,
    print_row,
    run_measure,
    seconds,
)
from count import count_embedding
from spacy.tokens import Doc
from torch.nn import functional as F

from spacy_elmo.bilm import BiLM, LSTMConfig
from spacy_elmo.bilm.mixed_precision import bfloat16_is_faster
from spacy_elmo.inference import Session, Settings, current_session
from spacy_elmo.inference.settings import CPU_PRECISIONS, GPU_PRECISIONS
from spacy_elmo.layers.encoder import set_bilm
from spacy_elmo.weights import find_source

N_PLAIN_SENTENCES = 192
LATENCY_TOKENS = 20

# With --busy: sentences per run, so that it takes some seconds, and threads that call one pipeline.
N_BUSY_SENTENCES = {"medium": 400, "original": 150}
N_CALLERS = 8

COLUMNS = {
    "shape": "{}",
    "precision": "{}",
    "kernel": "{}",
    "max tokens": "{:,}",
    "cold": "{:,.0f}",
    "warm": "{:,.0f}",
    "warm/cold": "{:.2f}",
    "nlp.pipe": "{:,.0f}",
    "plain": "{:,.0f}",
    "cold/plain": "{:.1f}",
    "GFLOP/s": "{:,.0f}",
    "mm GFLOP/s": "{:,.0f}",
    "fraction": "{:.0%}",
    "kernels": "{:.1f}",
    "MB/token": "{:.2f}",
    "latency ms": "{:.1f}",
    "min cosine": "{:.5f}",
    "weights MB": "{:,.0f}",
    "peak MB": "{:,.0f}",
}
RATIOS = "cold", "warm", "nlp.pipe", "latency ms", "weights MB"
BUSY_COLUMNS = {
    "shape": "{}",
    "precision": "{}",
    "through": "{}",
    "1 thread": "{:,.0f}",
    "n threads": "{:,.0f}",
    "n/1": "{:.2f}",
    "busy": "{:,.0f}",
    "busy/idle": "{:.2f}",
    "CPU s per 1,000 tokens": "{}",
}


def lstm_rate(session: Session, config: LSTMConfig, sentences: list[list[str]]) -> float:
    """GFLOP/s of everything but the encoding of types, counting the LSTMs' products alone."""
    p, dim = config.projection_dim, config.dim
    per_row = 2 * config.n_layers * 2 * ((p + p) * 4 * dim + dim * p)
    n_rows = sum(len(tokens) + 2 for tokens in sentences)
    types = {token: i for i, token in enumerate(dict.fromkeys(chain.from_iterable(sentences)))}
    index = numpy.array([types[token] for tokens in sentences for token in tokens])
    lengths = [len(tokens) for tokens in sentences]

    def run() -> None:
        for _ in session.batches(list(types), index, lengths):
            pass

    run()
    return n_rows * per_row / seconds(run, session.device.type) / 1e9


def min_cosine(session: Session, bilm: BiLM, sentences: list[list[str]]) -> float:
    """The worst token and layer against float32."""
    pairs = zip(session.embed(sentences), current_session(bilm).embed(sentences))
    return min(float(F.cosine_similarity(a, b, dim=-1).min()) for a, b in pairs)


def measure_speed(args: argparse.Namespace) -> dict:
    """Rates of a session, whose results stay on the device, and its accuracy."""
    device = args.device
    bilm = build(args.shape, device)
    settings = Settings(args.precision, args.max_tokens, kernel=args.kernel)
    session = Session(bilm, settings)
    _, sentences = texts.sentences(args.sentences)
    n_tokens = sum(map(len, sentences))

    def cold(these: list[list[str]]) -> None:
        session.type_cache.clear()
        session.embed(these)

    session.embed(sentences[:32])
    row: dict = {"max tokens": settings.max_tokens(bilm.device)}
    row["cold"] = n_tokens / seconds(lambda: cold(sentences), device)
    row["warm"] = n_tokens / seconds(lambda: session.embed(sentences), device)
    row["warm/cold"] = row["warm"] / row["cold"]
    row["weights MB"] = sum(4 * p.numel() for p in bilm.parameters()) / 1e6
    if device == "cuda":
        row["peak MB"] = peak_mb(device)
    row["GFLOP/s"] = lstm_rate(session, bilm.config.lstm, sentences)
    row["mm GFLOP/s"] = matmul_rate(device, session.settings.precision)
    row["fraction"] = row["GFLOP/s"] / row["mm GFLOP/s"]
    sentence = min(sentences, key=lambda tokens: abs(len(tokens) - LATENCY_TOKENS))
    row["latency ms"] = 1000 * seconds(lambda: session.embed([sentence]), device, repeats=15)
    few = sentences[:: max(1, len(sentences) // N_PLAIN_SENTENCES)]
    if args.precision != "float32":
        row["min cosine"] = min_cosine(session, bilm, sentences)
    elif device == "cpu":
        pairs = zip(plain.embed(bilm, few[:32]), session.embed(few))
        difference = max(float((a - b).abs().max()) for a, b in pairs)
        assert difference < 1e-4, f"the plain biLM differs by {difference}"
        time_plain = seconds(lambda: plain.embed(bilm, few), device, repeats=3)
        row["plain"] = sum(map(len, few)) / time_plain
        # Of the same texts: the more there are, the fewer words are new.
        row["cold/plain"] = time_plain / seconds(lambda: cold(few), device)
    if session.settings.precision in GPU_PRECISIONS:
        kernel = counted_kernel(args.kernel)
        counted = replace(session.settings, max_tokens_per_batch=row["max tokens"], kernel=kernel)
        row["kernels"], n_bytes = count_embedding(bilm, counted, sentences)
        row["MB/token"] = n_bytes / 1e6
    return row


def pipeline(args: argparse.Namespace) -> tuple[Any, Any]:
    """RETURNS (tuple): A pipeline that keeps no layers, and its elmo component."""
    settings = {"precision": args.precision, "max_tokens_per_batch": args.max_tokens}
    settings["kernel"] = args.kernel
    nlp = spacy.blank("en")
    return nlp, nlp.add_pipe("elmo", config={"keep_layers": False, "model": settings})


def measure_pipe(args: argparse.Namespace) -> dict:
    """Rate and peak memory of a pipeline with keep_layers = false. On a CPU, the peak is that over
    the process before it has a model."""
    if args.device == "cuda":
        spacy.require_gpu()
    _, sentences = texts.sentences(args.sentences)
    nlp, elmo = pipeline(args)
    before = 0.0 if args.device == "cuda" else peak_mb(args.device)
    set_bilm(elmo.model, build(args.shape, args.device))

    def docs(n_tokens: int) -> Iterator[Doc]:
        for words in cycle(sentences):
            if n_tokens <= 0:
                return
            n_tokens -= len(words)
            yield Doc(nlp.vocab, words=words)

    def run(n_tokens: int) -> None:
        for _ in nlp.pipe(docs(n_tokens)):
            pass

    run(min(args.pipe_tokens, sum(map(len, sentences))))
    repeats = 1 if args.device == "cpu" else 5
    seconds_all = seconds(lambda: run(args.pipe_tokens), args.device, repeats)
    return {"nlp.pipe": args.pipe_tokens / seconds_all, "peak MB": peak_mb(args.device) - before}


@contextlib.contextmanager
def busy_process() -> Iterator[None]:
    """A process that takes one core."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def measure_busy(args: argparse.Namespace) -> list[dict]:
    """Rates with a warm type cache: one thread, several, and several beside a busy process."""
    _, sentences = texts.sentences(N_BUSY_SENTENCES.get(args.shape, args.sentences // 2))
    n_tokens = sum(map(len, sentences))
    nlp, elmo = pipeline(args)
    set_bilm(elmo.model, build(args.shape, args.device))

    def through_pipe() -> None:
        for _ in nlp.pipe(Doc(nlp.vocab, words=words) for words in sentences):
            pass

    def through_callers() -> None:
        with ThreadPoolExecutor(N_CALLERS) as callers:
            list(callers.map(lambda words: nlp(Doc(nlp.vocab, words=words)), sentences))

    n_threads = torch.get_num_threads()
    ways = {"nlp.pipe": through_pipe, f"{N_CALLERS} threads call nlp": through_callers}
    rows = []
    for way, run in ways.items():
        rates, cpu_seconds = [], []
        for number, beside in ((1, False), (n_threads, False), (n_threads, True)):
            torch.set_num_threads(number)
            run()
            with busy_process() if beside else contextlib.nullcontext():
                before = time.process_time()
                times = [seconds(run, args.device, repeats=1) for _ in range(3)]
            rates.append(n_tokens / median(times))
            cpu_seconds.append((time.process_time() - before) / len(times) / n_tokens * 1000)
        rows.append(
            {
                "through": way,
                "1 thread": rates[0],
                "n threads": rates[1],
                "n/1": rates[1] / rates[0],
                "busy": rates[2],
                "busy/idle": rates[2] / rates[1],
                "CPU s per 1,000 tokens": " / ".join(f"{x:.3f}" for x in cpu_seconds),
            }
        )
    return rows


def shape(name: str) -> str:
    """RETURNS (str): The name of a shape, or the name or path of weights."""
    if name not in (*SHAPES, MANY_LANGS):
        try:
            find_source(name)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
    return name


def main() -> int:
    if run_measure(MEASURES):
        return 0
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    known = ", ".join((*SHAPES, MANY_LANGS))
    parser.add_argument("--shapes", nargs="*", type=shape, help=f"{known}, or weights")
    choices = (*dict.fromkeys((*CPU_PRECISIONS, *GPU_PRECISIONS)), "auto")
    parser.add_argument(
        "--precision", nargs="+", choices=choices, help="default: all of the device"
    )
    parser.add_argument(
        "--max-tokens", nargs="+", type=int, default=[None], help="default: that of the device"
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument(
        "--kernel", nargs="+", default=["auto"], choices=("auto", "torch", "triton")
    )
    parser.add_argument("--sentences", type=int, help="default: 2,000 on a CPU, 12,000 on a GPU")
    parser.add_argument(
        "--pipe-tokens",
        type=int,
        default=100_000,
        help="through nlp.pipe (default: 100,000; 0 for none)",
    )
    parser.add_argument("--peers", nargs="*", choices=peers.PEERS, default=list(peers.PEERS))
    parser.add_argument("--busy", action="store_true", help="several threads, a busy machine")
    parser.add_argument("--ratio", action="store_true", help="compare with the first shape")
    args = parser.parse_args()
    args.sentences = args.sentences or (2000 if args.device == "cpu" else 12_000)
    source, sentences = texts.sentences(args.sentences)
    n_tokens, n_types = sum(map(len, sentences)), len(set().union(*sentences))
    print(
        f"{len(sentences):,} sentences of {source}: {n_tokens:,} tokens, {n_types:,} types. "
        f"{describe(args.device)}. Rates in tokens/s.\n"
    )
    (print_busy if args.busy else print_rates)(args)
    return exit_status()


def print_rates(args: argparse.Namespace) -> None:
    print_header(COLUMNS)
    # On a GPU, spaCy needs CuPy.
    has_pipe = args.pipe_tokens and (args.device == "cpu" or find_spec("cupy") is not None)
    shapes = PUBLISHED if args.shapes is None else args.shapes  # None of them: the peers alone.
    precisions = args.precision or device_precisions(args.device)
    rows = []
    for one in product(shapes, precisions, args.kernel, args.max_tokens):
        settings = dict(zip(("shape", "precision", "kernel", "max_tokens"), one))
        row = {**settings, **in_own_process(__file__, "speed", args, **settings)}
        if has_pipe:
            row.update(in_own_process(__file__, "pipe", args, **settings))
        print_row(COLUMNS, row)
        rows.append(row)
    if args.ratio:
        print_ratios(rows)
    if args.peers and find_spec("transformers") is None:
        print("\nNo BERT and DistilBERT: pip install transformers")
        return
    for shape, precision in product(args.peers, ("float32", "bfloat16")):
        if precision in device_precisions(args.device):
            settings = {"shape": shape, "precision": precision}
            print_row(COLUMNS, {**settings, **in_own_process(__file__, "peer", args, **settings)})


def print_ratios(rows: list[dict]) -> None:
    """Compare each row with that of the first shape that has the same settings."""
    first: dict[tuple, dict] = {}
    for row in rows:
        base = first.setdefault((row["precision"], row["kernel"], row["max_tokens"]), row)
        if base is not row:
            names = [name for name in RATIOS if name in row and name in base]
            ratios = ", ".join(f"{name} {row[name] / base[name]:.2f}" for name in names)
            print(f"\n{row['shape']} / {base['shape']} ({row['precision']}): {ratios}")


def print_busy(args: argparse.Namespace) -> None:
    print_header(BUSY_COLUMNS)
    shapes = args.shapes or (BUNDLED, "small", "original")
    for one in product(shapes, args.precision or ("float32", "bfloat16"), args.kernel):
        settings = dict(zip(("shape", "precision", "kernel"), one), max_tokens=args.max_tokens[0])
        for row in in_own_process(__file__, "busy", args, **settings):
            print_row(BUSY_COLUMNS, {**settings, **row})


def device_precisions(device: str) -> list[str]:
    """RETURNS (list): Those that the device has."""
    if device != "cpu":
        return list(GPU_PRECISIONS)
    return [name for name in CPU_PRECISIONS if name != "bfloat16" or bfloat16_is_faster()]


MEASURES = {
    "speed": measure_speed,
    "pipe": measure_pipe,
    "busy": measure_busy,
    "peer": peers.measure_peer,
}

if __name__ == "__main__":
    sys.exit(main())
