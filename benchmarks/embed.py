"""How fast does the biLM embed, and in how much memory?

Prints one Markdown table: a row per published shape and precision, with random weights on real
sentences. Every row is measured in its own process, so that its peak memory is its own.

    python benchmarks/embed.py
    python benchmarks/embed.py --shapes small --precision float32 --max-tokens 2048 4096 8192
    python benchmarks/embed.py --device cuda
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from itertools import chain
from statistics import median

import numpy
import plain
import texts
import torch
from torch.nn import functional as F

from spacy_elmo.bilm import BiLM, BiLMConfig, CharCNNConfig, LSTMConfig
from spacy_elmo.inference import Session, Settings, current_session
from spacy_elmo.inference.settings import CPU_PRECISIONS, GPU_PRECISIONS

FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
# Cells, projection, highway layers of the published models.
SHAPES = {"small": (1024, 128, 1), "medium": (2048, 256, 1), "original": (4096, 512, 2)}
N_PLAIN_SENTENCES = 192
N_MEMORY_TOKENS = 100_000
LATENCY_TOKENS = 20

COLUMNS = {
    "shape": "{}",
    "precision": "{}",
    "max_tokens": "{}",
    "cold": "{:,.0f}",
    "warm": "{:,.0f}",
    "warm/cold": "{:.2f}",
    "plain": "{:,.0f}",
    "cold/plain": "{:.1f}",
    "LSTM GFLOP/s": "{:.0f}",
    "mm GFLOP/s": "{:.0f}",
    "LSTM/mm": "{:.0%}",
    "latency ms": "{:.1f}",
    "min cosine": "{:.5f}",
    "weights MB": "{:.0f}",
    "peak MB": "{:.0f}",
}


def build(shape: str, device: str) -> BiLM:
    dim, projection_dim, n_highway = SHAPES[shape]
    torch.manual_seed(0)
    char_cnn = CharCNNConfig(FILTERS, n_highway=n_highway)
    return BiLM(BiLMConfig(LSTMConfig(dim, projection_dim), char_cnn)).to(device)


def seconds(run: Callable[[], object], repeats: int = 5) -> float:
    """The median time of a few runs, or of as many as fit into a quarter of a minute."""
    times: list[float] = []
    while not times or (len(times) < repeats and sum(times) < 15):
        _synchronize()
        start = time.perf_counter()
        run()
        _synchronize()
        times.append(time.perf_counter() - start)
    return median(times)


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def matmul_rate(device: str, dtype: torch.dtype) -> float:
    """GFLOP/s of `torch.mm` on square matrices that fill the machine."""
    n = 2048 if device == "cpu" else 8192
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    torch.mm(a, b)
    return 2 * n**3 / seconds(lambda: torch.mm(a, b), repeats=9) / 1e9


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
    return n_rows * per_row / seconds(run) / 1e9


def min_cosine(session: Session, bilm: BiLM, sentences: list[list[str]]) -> float:
    """The worst token and layer against float32."""
    pairs = zip(session.embed(sentences), current_session(bilm).embed(sentences))
    return min(float(F.cosine_similarity(a, b, dim=-1).min()) for a, b in pairs)


def measure_speed(args: argparse.Namespace) -> dict:
    bilm = build(args.shape, args.device)
    session = Session(bilm, Settings(args.precision, args.max_tokens, kernel=args.kernel))
    _, sentences = texts.sentences(args.sentences)
    n_tokens = sum(map(len, sentences))

    def cold() -> None:
        session.type_cache.clear()
        session.embed(sentences)

    session.embed(sentences[:32])
    row: dict = {"cold": n_tokens / seconds(cold), "warm": None}
    row["warm"] = n_tokens / seconds(lambda: session.embed(sentences))
    row["warm/cold"] = row["warm"] / row["cold"]
    row["LSTM GFLOP/s"] = lstm_rate(session, bilm.config.lstm, sentences)
    dtype = torch.bfloat16 if args.precision == "bfloat16" else torch.float32
    row["mm GFLOP/s"] = matmul_rate(args.device, dtype)
    row["LSTM/mm"] = row["LSTM GFLOP/s"] / row["mm GFLOP/s"]
    sentence = min(sentences, key=lambda tokens: abs(len(tokens) - LATENCY_TOKENS))
    row["latency ms"] = 1000 * seconds(lambda: session.embed([sentence]), repeats=15)
    few = sentences[:: len(sentences) // N_PLAIN_SENTENCES]
    if args.precision == "float32" and args.device == "cpu":
        pairs = zip(plain.embed(bilm, few[:32]), session.embed(few))
        difference = max(float((a - b).abs().max()) for a, b in pairs)
        assert difference < 1e-4, f"the plain biLM differs by {difference}"
        row["plain"] = sum(map(len, few)) / seconds(lambda: plain.embed(bilm, few), repeats=3)
        row["cold/plain"] = row["cold"] / row["plain"]
    else:
        row["min cosine"] = min_cosine(session, bilm, few)
    return row


def measure_memory(args: argparse.Namespace) -> dict:
    """Peak memory of a pipeline that embeds docs with keep_layers = false, over that of the process
    before it has a model."""
    import spacy
    from spacy.tokens import Doc

    _, sentences = texts.sentences(args.sentences)
    nlp = spacy.blank("en")
    settings = {"precision": args.precision, "max_tokens_per_batch": args.max_tokens}
    settings["kernel"] = args.kernel
    elmo = nlp.add_pipe("elmo", config={"keep_layers": False, "model": settings})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    from spacy_elmo.layers.encoder import set_bilm

    set_bilm(elmo.model, build(args.shape, args.device))

    def docs():
        n_tokens = 0
        while n_tokens < N_MEMORY_TOKENS:
            for words in sentences:
                n_tokens += len(words)
                yield Doc(nlp.vocab, words=words)

    for _ in nlp.pipe(docs()):
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    n_bytes = sum(4 * parameter.numel() for parameter in elmo.bilm.parameters())
    return {"weights MB": n_bytes / 1e6, "peak MB": peak * 1024 / 1e6}


def in_own_process(args: argparse.Namespace, measure: str, **settings: object) -> dict:
    command = [sys.executable, __file__, "--measure", measure]
    command += ["--device", args.device, "--kernel", args.kernel]
    command += ["--sentences", str(args.sentences)]
    for name, value in settings.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--precision", nargs="+", help="default: all of the device")
    parser.add_argument("--max-tokens", nargs="+", type=int, default=[2048])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--kernel", default="auto", choices=("auto", "torch", "triton"))
    parser.add_argument("--sentences", type=int, default=2000)
    parser.add_argument("--no-memory", action="store_true", help="skip the memory measurement")
    parser.add_argument("--measure", choices=("speed", "memory"), help=argparse.SUPPRESS)
    parser.add_argument("--shape", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        warnings.simplefilter("ignore")
        args.precision, args.max_tokens = args.precision[0], args.max_tokens[0]
        measure = measure_speed if args.measure == "speed" else measure_memory
        print(json.dumps(measure(args)))
        return
    source, sentences = texts.sentences(args.sentences)
    n_tokens, n_types = sum(map(len, sentences)), len(set().union(*sentences))
    print(
        f"{len(sentences):,} sentences of {source}: {n_tokens:,} tokens, {n_types:,} types. "
        f"{torch.get_num_threads()} threads, PyTorch {torch.__version__}, "
        f"{torch.cuda.get_device_name() if args.device == 'cuda' else 'CPU'}. Rates in tokens/s; "
        "cold: with an empty type cache; peak MB: over an empty process, keep_layers = false.\n"
    )
    print("| " + " | ".join(COLUMNS) + " |")
    print("|" + "---|" * len(COLUMNS))
    precisions = args.precision or (CPU_PRECISIONS if args.device == "cpu" else GPU_PRECISIONS)
    for shape in args.shapes:
        for precision in precisions:
            for max_tokens in args.max_tokens:
                settings = {"shape": shape, "precision": precision, "max_tokens": max_tokens}
                row = {**settings, **in_own_process(args, "speed", **settings)}
                if not args.no_memory and args.device == "cpu":
                    row.update(in_own_process(args, "memory", **settings))
                cells = (
                    form.format(row[name]) if name in row else "" for name, form in COLUMNS.items()
                )
                print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
