"""What the benchmarks share: shapes, clocks, yardsticks, tables."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import texts
import torch

from spacy_elmo.bilm import BiLM, BiLMConfig, CharCNNConfig, LSTMConfig
from spacy_elmo.bilm.config import DICTIONARY_SPECIALS
from spacy_elmo.bilm.token_encoder import UNKNOWN
from spacy_elmo.inference.session import inference
from spacy_elmo.weights import load_bilm

FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
# Cells, projection, highway layers of the published models.
PUBLISHED = {"small": (1024, 128, 1), "medium": (2048, 256, 1), "original": (4096, 512, 2)}
SHAPES = {
    "tiny": BiLMConfig(
        LSTMConfig(256, 64),
        CharCNNConfig(((1, 32), (2, 32), (3, 64), (4, 128), (5, 128)), n_highway=1),
    )
}
for _name, (_dim, _projection_dim, _n_highway) in PUBLISHED.items():
    SHAPES[_name] = BiLMConfig(
        LSTMConfig(_dim, _projection_dim), CharCNNConfig(FILTERS, n_highway=_n_highway)
    )
BUNDLED = "en_elmo_sm"
# The cells of "original", wider character embeddings, and words beside them.
MANY_LANGS = "manylangs"
N_CHARACTERS, N_WORDS = 5_000, 150_000
# What `in_own_process` ran in vain.
_FAILED: list[str] = []


def build(shape: str, device: str) -> BiLM:
    """RETURNS (BiLM): With random weights, or that of a name or path."""
    torch.manual_seed(0)
    if shape in SHAPES:
        return BiLM(SHAPES[shape]).to(device)
    if shape != MANY_LANGS:
        return load_bilm(shape).to(device)
    config = SHAPES["original"]
    assert config.char_cnn is not None
    characters = *DICTIONARY_SPECIALS, *map(chr, range(N_CHARACTERS))
    char_cnn = replace(config.char_cnn, embedding_dim=50, characters=characters, word_dim=100)
    types = set().union(*texts.sentences(1000)[1])
    words = [UNKNOWN, *sorted(types), *map(str, range(N_WORDS - len(types) - 1))]
    return BiLM(BiLMConfig(config.lstm, char_cnn, n_tokens_vocab=len(words)), words).to(device)


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def seconds(run: Callable[[], object], device: str, repeats: int = 5) -> float:
    """RETURNS (float): The median time of a few runs, or of as many as fit into a quarter of a
    minute. Only between runs does the host wait for the device."""
    times: list[float] = []
    while not times or (len(times) < repeats and sum(times) < 15):
        synchronize(device)
        start = time.perf_counter()
        run()
        synchronize(device)
        times.append(time.perf_counter() - start)
    return median(times)


def matmul_rate(device: str, precision: Any) -> float:
    """RETURNS (float): GFLOP/s of `torch.mm` on square matrices that fill the machine, in this
    precision. float16 on a CPU: in float32, in which it computes, too."""
    n = 2048 if device == "cpu" else 8192
    product: Callable[..., torch.Tensor] = torch.mm
    if precision == "int8":
        a, b = (torch.randint(-99, 99, (n, n), dtype=torch.int8, device=device) for _ in range(2))
        product = torch._int_mm
    else:
        dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    with inference(precision, a.device):  # Which turns on TF32 for "tf32" alone.
        product(a, b)
        return 2 * n**3 / seconds(lambda: product(a, b), device, repeats=9) / 1e9


def peak_mb(device: str) -> float:
    """RETURNS (float): Peak memory of this process, in MB: on a CPU its resident memory, on a GPU
    that of tensors. NaN where the system does not tell."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 1e6
    status = Path("/proc/self/status")
    # Not `ru_maxrss`: a process starts with that of its parent.
    for line in status.read_text().splitlines() if status.exists() else []:
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    return math.nan


def counted_kernel(kernel: str) -> str:
    """RETURNS (str): What to count on meta tensors for a setting `kernel`."""
    return "torch" if kernel == "auto" else kernel


def in_own_process(script: str, measure: str, args: Namespace, **settings: object) -> Any:
    """Run a function of a benchmark in a process of its own, so that its peak memory is its own.

    script (str): The file of the benchmark.
    measure (str): Which one of the functions that it gives to `run_measure`.
    args, settings: What the function gets, as one Namespace.
    RETURNS: What it returns; {} if it fails, so that the other rows are measured. stderr says why.
        `exit_status` tells.
    """
    namespace = json.dumps({**vars(args), **settings}, default=str)
    command = [sys.executable, script, "--measure", measure, namespace]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        _FAILED.append(measure)
        print(f"failed: {measure} {settings}", file=sys.stderr)
        return {}
    return json.loads(done.stdout.splitlines()[-1])


def exit_status() -> int:
    """RETURNS (int): Of a benchmark, at its end."""
    return min(len(_FAILED), 1)


def run_measure(measures: dict[str, Callable[[Namespace], Any]]) -> bool:
    """RETURNS (bool): Whether this process was started by `in_own_process`, and is done."""
    if sys.argv[1:2] != ["--measure"]:
        return False
    print(json.dumps(measures[sys.argv[2]](Namespace(**json.loads(sys.argv[3])))))
    return True


def print_header(columns: dict[str, str]) -> None:
    print("| " + " | ".join(columns) + " |")
    print("|" + "---|" * len(columns), flush=True)


def print_row(columns: dict[str, str], row: dict) -> None:
    """Print the values that the row has, in the formats of the columns."""
    cells = (form.format(row[name]) if name in row else "" for name, form in columns.items())
    print("| " + " | ".join(cells) + " |", flush=True)


def describe(device: str) -> str:
    """RETURNS (str): The machine, in words. RAISES (SystemExit): If it has no such device."""
    if device == "cuda" and not torch.cuda.is_available():
        raise SystemExit(f"PyTorch {torch.__version__} sees no GPU here")
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    return f"{torch.get_num_threads()} threads, PyTorch {torch.__version__}, {name}"
