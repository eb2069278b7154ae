"""How fast does the biLM embed, and in how much memory?

Prints one Markdown table: a row per published shape and precision, with random weights on real
sentences. Every row is measured in its own process, so that its peak memory is its own. BERT and
DistilBERT follow if `transformers` is installed.

    python benchmarks/embed.py
    python benchmarks/embed.py --shapes small --precision float32 --max-tokens 2048 4096 8192
    python benchmarks/embed.py --device cuda
    python benchmarks/embed.py --busy

With --busy, the table compares one thread with several, alone and beside a process that takes one
core, through `nlp.pipe` and with eight threads that call one pipeline. The machine must be idle
otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.util import find_spec
from itertools import chain
from statistics import median
from typing import Any

import numpy
import plain
import texts
import torch
from torch.nn import functional as F

from spacy_elmo.bilm import BiLM, BiLMConfig, CharCNNConfig, LSTMConfig
from spacy_elmo.bilm.characters import DICTIONARY_SPECIALS, UNKNOWN
from spacy_elmo.inference import Session, Settings, current_session
from spacy_elmo.inference.settings import CPU_PRECISIONS, GPU_PRECISIONS, cpu_has_bfloat16
from spacy_elmo.weights import load_bilm

FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
# Cells, projection, highway layers of the published models. That of ELMoForManyLangs also has wider
# character embeddings, and words beside them.
SHAPES = {
    "small": (1024, 128, 1),
    "medium": (2048, 256, 1),
    "original": (4096, 512, 2),
    "manylangs": (4096, 512, 2),
}
N_CHARACTERS, N_WORDS = 5_000, 150_000
N_PLAIN_SENTENCES = 192
N_MEMORY_TOKENS = 100_000
LATENCY_TOKENS = 20
BUNDLED = "en_elmo_sm"

# With --busy: sentences per run, so that it takes some seconds, and threads that call one pipeline.
N_BUSY_SENTENCES = {"medium": 400, "original": 150}
N_CALLERS = 8

# Names of models and of their configurations in `transformers`.
PEERS = {"BERT-base": "Bert", "DistilBERT": "DistilBert"}
PIECES_PER_TOKEN = 1.3
PEER_BATCH = 32

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


def build(shape: str, device: str) -> BiLM:
    if shape == BUNDLED:
        return load_bilm(shape).to(device)
    dim, projection_dim, n_highway = SHAPES[shape]
    torch.manual_seed(0)
    lstm, char_cnn = LSTMConfig(dim, projection_dim), CharCNNConfig(FILTERS, n_highway=n_highway)
    if shape != "manylangs":
        return BiLM(BiLMConfig(lstm, char_cnn)).to(device)
    characters = *DICTIONARY_SPECIALS, *map(chr, range(N_CHARACTERS))
    char_cnn = replace(char_cnn, embedding_dim=50, characters=characters, word_dim=100)
    types = set().union(*texts.sentences(1000)[1])
    words = [UNKNOWN, *sorted(types), *map(str, range(N_WORDS - len(types) - 1))]
    return BiLM(BiLMConfig(lstm, char_cnn, n_tokens_vocab=len(words)), words).to(device)


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
    few = sentences[:: max(1, len(sentences) // N_PLAIN_SENTENCES)]
    if args.precision == "float32" and args.device == "cpu":
        pairs = zip(plain.embed(bilm, few[:32]), session.embed(few))
        difference = max(float((a - b).abs().max()) for a, b in pairs)
        assert difference < 1e-4, f"the plain biLM differs by {difference}"
        row["plain"] = sum(map(len, few)) / seconds(lambda: plain.embed(bilm, few), repeats=3)
        row["cold/plain"] = row["cold"] / row["plain"]
    else:
        row["min cosine"] = min_cosine(session, bilm, few)
    return row


def pipeline(args: argparse.Namespace) -> tuple[Any, Any]:
    """RETURNS (tuple): A pipeline that keeps no layers, and its elmo component."""
    import spacy

    nlp = spacy.blank("en")
    settings = {"precision": args.precision, "max_tokens_per_batch": args.max_tokens}
    settings["kernel"] = args.kernel
    return nlp, nlp.add_pipe("elmo", config={"keep_layers": False, "model": settings})


def measure_memory(args: argparse.Namespace) -> dict:
    """Peak memory of a pipeline that embeds docs with keep_layers = false, over that of the process
    before it has a model."""
    from spacy.tokens import Doc

    _, sentences = texts.sentences(args.sentences)
    nlp, elmo = pipeline(args)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    from spacy_elmo.layers.encoder import set_bilm

    set_bilm(elmo.model, build(args.shape, args.device))

    def docs() -> Iterator[Doc]:
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
    from spacy.tokens import Doc

    from spacy_elmo.layers.encoder import set_bilm

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
                times = [seconds(run, repeats=1) for _ in range(3)]
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


def measure_peer(args: argparse.Namespace) -> dict:
    """A transformer with random weights on as many word pieces as the sentences would have."""
    import transformers

    name, dtype = PEERS[args.shape], getattr(torch, args.precision)
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")()
    model = getattr(transformers, f"{name}Model")(config).eval().to(args.device, dtype)
    _, sentences = texts.sentences(args.sentences)
    most = config.max_position_embeddings
    lengths = [min(math.ceil(PIECES_PER_TOKEN * len(tokens)) + 2, most) for tokens in sentences]
    lengths.sort(reverse=True)

    def run() -> None:
        with torch.inference_mode():
            for start in range(0, len(lengths), PEER_BATCH):
                batch = torch.tensor(lengths[start : start + PEER_BATCH], device=args.device)
                mask = torch.arange(int(batch[0]), device=args.device) < batch.unsqueeze(1)
                ids = torch.randint(1000, config.vocab_size, mask.shape, device=args.device)
                model(input_ids=ids, attention_mask=mask.long())

    rate = sum(map(len, sentences)) / seconds(run, repeats=3)
    n_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
    return {"cold": rate, "weights MB": n_bytes / 1e6}


def in_own_process(args: argparse.Namespace, measure: str, **settings: object) -> Any:
    command = [sys.executable, __file__, "--measure", measure]
    command += ["--device", args.device, "--kernel", args.kernel]
    command += ["--sentences", str(args.sentences)]
    for name, value in settings.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", nargs="+", choices=[*SHAPES, BUNDLED])
    parser.add_argument("--precision", nargs="+", help="default: all of the device")
    parser.add_argument("--max-tokens", nargs="+", type=int, default=[2048])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--kernel", default="auto", choices=("auto", "torch", "triton"))
    parser.add_argument("--sentences", type=int, default=2000)
    parser.add_argument("--no-memory", action="store_true", help="skip the memory measurement")
    parser.add_argument("--no-peers", action="store_true", help="skip BERT and DistilBERT")
    parser.add_argument("--busy", action="store_true", help="several threads, a busy machine")
    parser.add_argument("--measure", choices=MEASURES, help=argparse.SUPPRESS)
    parser.add_argument("--shape", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        warnings.simplefilter("ignore")
        args.precision, args.max_tokens = args.precision[0], args.max_tokens[0]
        print(json.dumps(MEASURES[args.measure](args)))
        return
    source, sentences = texts.sentences(args.sentences)
    n_tokens, n_types = sum(map(len, sentences)), len(set().union(*sentences))
    print(
        f"{len(sentences):,} sentences of {source}: {n_tokens:,} tokens, {n_types:,} types. "
        f"{torch.get_num_threads()} threads, PyTorch {torch.__version__}, "
        f"{torch.cuda.get_device_name() if args.device == 'cuda' else 'CPU'}. Rates in tokens/s; "
        "cold: with an empty type cache; peak MB: over an empty process, keep_layers = false.\n"
    )
    if args.busy:
        print_busy(args)
        return
    print_header(COLUMNS)
    for shape in args.shapes or SHAPES:
        for precision in args.precision or precisions(args.device):
            for max_tokens in args.max_tokens:
                settings = {"shape": shape, "precision": precision, "max_tokens": max_tokens}
                row = {**settings, **in_own_process(args, "speed", **settings)}
                if not args.no_memory and args.device == "cpu":
                    row.update(in_own_process(args, "memory", **settings))
                print_row(COLUMNS, row)
    if args.no_peers or find_spec("transformers") is None:
        print("\nNo BERT and DistilBERT: pip install transformers")
        return
    for peer in PEERS:
        for precision in ("float32", "bfloat16"):
            settings = {"shape": peer, "precision": precision}
            print_row(COLUMNS, {**settings, **in_own_process(args, "peer", **settings)})


def print_busy(args: argparse.Namespace) -> None:
    print_header(BUSY_COLUMNS)
    for shape in args.shapes or (BUNDLED, "small", "original"):
        for precision in args.precision or ("float32", "bfloat16"):
            settings = {"shape": shape, "precision": precision}
            for row in in_own_process(args, "busy", **settings):
                print_row(BUSY_COLUMNS, {**settings, **row})


def precisions(device: str) -> list[str]:
    """RETURNS (list): Those that the device has."""
    if device != "cpu":
        return list(GPU_PRECISIONS)
    return [name for name in CPU_PRECISIONS if name != "bfloat16" or cpu_has_bfloat16()]


def print_header(columns: dict[str, str]) -> None:
    print("| " + " | ".join(columns) + " |")
    print("|" + "---|" * len(columns))


def print_row(columns: dict[str, str], row: dict) -> None:
    cells = (form.format(row[name]) if name in row else "" for name, form in columns.items())
    print("| " + " | ".join(cells) + " |", flush=True)


MEASURES = {
    "speed": measure_speed,
    "memory": measure_memory,
    "busy": measure_busy,
    "peer": measure_peer,
}

if __name__ == "__main__":
    main()
