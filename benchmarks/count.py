"""What would a GPU have to do? Counted without one, on PyTorch's meta device.

For a training step of the original shape, in bfloat16, with carried states and a sampled softmax,
prints one Markdown table: kernels per time step and layer, kernels of a whole step, what they read
and write per token, what they read and write whatever the batch (in a step of one token), and
floating-point operations. Each kernel is taken to read every tensor that it is given once, and to
write its results once. A place where the host would wait for the device raises an error. The other
benchmarks count with the same functions.

    python benchmarks/count.py
    python benchmarks/count.py --kernel torch --rows 512 --details
"""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any, Optional

import numpy
import torch
from common import SHAPES
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from spacy_elmo.bilm import BiLM, LSTMConfig
from spacy_elmo.bilm.lstm_layer import LayerState
from spacy_elmo.bilm.mixed_precision import autocast, product_dtype
from spacy_elmo.bilm.model import BiLSTM
from spacy_elmo.inference import Session, Settings
from spacy_elmo.pretraining.batches import Batch
from spacy_elmo.pretraining.config import LossConfig, PretrainingConfig
from spacy_elmo.pretraining.language_model import LanguageModel
from spacy_elmo.pretraining.updater import Updater

EXPONENT = 1.16
META = torch.device("meta")
ORIGINAL = SHAPES["original"]
# They read or write only the rows that an index names.
GATHERS = {"index", "index_select", "embedding", "gather"}
SCATTERS = {"index_put_", "index_copy_", "index_add_", "scatter_"}
NO_KERNELS = "empty", "new_empty", "_unsafe_view"
# They overwrite their first argument.
FILLS = {"copy_", "fill_", "zero_", "bernoulli_", "_index_put_impl_"}
COLUMNS = "kernel", "forward", "backward", "kernels", "MB/token", "GB fixed", "TFLOP"


class Counts(TorchDispatchMode):
    """Counts the kernels that run on the meta device, in all and by name, and their bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.flop = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Optional[dict] = None
    ) -> Any:
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        name = function._schema.name.split("::")[1]
        tensors = [x for x in tree_leaves((args, kwargs, result)) if isinstance(x, torch.Tensor)]
        runs = not function.is_view and not name.startswith(NO_KERNELS)
        if runs and any(x.device == META for x in tensors):
            self.kernels[name] += 1
            self.bytes[name] += self._count_bytes(function._schema, name, args, kwargs, result)
            self.flop += self._count_flop(name, args)
        return result

    def _count_bytes(self, schema: Any, name: str, args: Any, kwargs: Any, result: Any) -> int:
        reads, writes = [], []
        for i, argument in enumerate(schema.arguments):
            value = args[i] if i < len(args) else kwargs.get(argument.name)
            tensors = [x for x in tree_leaves(value) if isinstance(x, torch.Tensor)]
            if argument.is_write:
                writes += tensors
            if not argument.is_out and not (i == 0 and name in FILLS):
                reads += tensors
        returned = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        written = {id(x) for x in writes}
        writes += [x for x in returned if id(x) not in written]
        if name in GATHERS:
            return 2 * n_bytes(writes)
        if name in SCATTERS:
            return 2 * n_bytes(reads[1:])
        return n_bytes(reads) + n_bytes(writes)

    def _count_flop(self, name: str, args: Any) -> int:
        if name not in ("mm", "bmm", "addmm", "baddbmm_", "baddbmm"):
            return 0
        left, right = args[:2] if name in ("mm", "bmm") else args[1:3]
        return 2 * left.numel() * right.shape[-1]


def n_bytes(tensors: list[torch.Tensor]) -> int:
    """RETURNS (int): Of what is in memory: an expanded row counts once."""
    total = 0
    for x in tensors:
        sizes = [size for size, stride in zip(x.shape, x.stride()) if stride]
        total += int(numpy.prod(sizes, dtype=numpy.int64)) * x.element_size()
    return total


class AsOnGPU(TorchFunctionMode):
    """What the meta device lacks: `torch.autocast` for linear layers, and dropout in one kernel."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Optional[dict] = None
    ) -> Any:
        if function is F.linear:
            names = dict(zip(("input", "weight", "bias"), args)) | (kwargs or {})
            dtype = product_dtype(names["input"])
            return F.linear(**{k: x if x is None else x.to(dtype) for k, x in names.items()})
        if function is F.dropout:
            return torch.native_dropout(args[0], (kwargs or {})["p"], True)[0]
        return function(*args, **(kwargs or {}))


class Step:
    """An epoch of one batch: rows of running text, of Zipf's distribution of words.

    n_rows, n_steps (int): Its shape.
    n_words (int): The vocabulary.
    """

    def __init__(self, n_rows: int, n_steps: int, n_words: int) -> None:
        n = n_rows * n_steps
        # Of an exponent that gives five tokens per type for 2,048 rows of 20 words, as text does.
        draws = numpy.random.default_rng(0).zipf(EXPONENT, 2 * n)
        words = draws[draws <= n_words][:n] - 1
        types, inputs = numpy.unique(words, return_inverse=True)
        # A frequent word is short.
        texts = ["x" * int(2 + numpy.log(number + 1)) for number in types]
        both = numpy.stack([inputs, inputs])
        self.batch = Batch([n_rows] * n_steps, texts, both, numpy.stack([words, words]), n)

    def read(self, *args: int) -> Batch:
        return self.batch

    def size(self, number: int) -> tuple[int, int]:
        return self.batch.n_words, self.batch.n_targets


def count_update(updater: Updater, epoch: Any, states: Optional[list[LayerState]]) -> Counts:
    """RETURNS (Counts): Of a training step on the meta device, which reads an epoch's first
    batch."""
    with Counts() as counts, AsOnGPU():
        updater.update(epoch, [0], 0, states)
    return counts


def count_step(kernel: Any, n_rows: int, n_steps: int, n_words: int) -> Counts:
    """RETURNS (Counts): Of a training step of the original shape in bfloat16."""
    settings = PretrainingConfig(carry_state=True, mixed_precision=True)
    with META:
        model = LanguageModel(BiLM(ORIGINAL), n_words, LossConfig())
    model.bilm.lstm.kernel = model.output.kernel = kernel
    step = Step(n_rows, n_steps, n_words)
    return count_update(Updater(model, settings, 0), step, model.new_states(n_rows))


def count_layer(
    kernel: Any, n_rows: int = 2048, config: LSTMConfig = ORIGINAL.lstm, mixed: bool = True
) -> tuple[float, float]:
    """RETURNS (tuple): Kernels per time step and layer, forward and backward."""
    totals = []
    for n_steps in (10, 20):
        with META:
            lstm = BiLSTM(config)
            x = torch.empty(2, n_rows * n_steps, config.projection_dim).requires_grad_()
        lstm.kernel = kernel
        with autocast(META, mixed):
            with Counts() as forward:
                top = lstm(x, [n_rows] * n_steps)[-1]
            with Counts() as backward:
                top.backward(torch.empty_like(top))
        totals.append((forward.kernels.total(), backward.kernels.total()))
    (few, few_back), (many, many_back) = totals
    n = 10 * config.n_layers
    return (many - few) / n, (many_back - few_back) / n


def count_embedding(
    bilm: BiLM, settings: Settings, sentences: list[list[str]]
) -> tuple[float, float]:
    """Count for the shape of a biLM.

    RETURNS (tuple): Kernels per time step and layer, and bytes per token with an empty type cache,
        of inference.
    """
    with META:
        session = Session(BiLM(bilm.config, bilm.vocabulary), settings)
    session.embed([["x"]])  # Its type is in the cache then.
    kernels = []
    for n_tokens in (10, 20):
        with Counts() as counts:
            session.embed([["x"] * n_tokens] * 64)
        kernels.append(counts.kernels.total())
    session.type_cache.clear()
    with Counts() as counts:
        session.embed(sentences)
    n_bytes = counts.bytes.total() / sum(map(len, sentences))
    return (kernels[1] - kernels[0]) / (10 * bilm.config.lstm.n_layers), n_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernel", nargs="+", default=["torch", "triton"])
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--vocabulary", type=int, default=793_471)
    parser.add_argument("--details", action="store_true", help="by kernel")
    args = parser.parse_args()
    print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS))
    for kernel in args.kernel:
        forward, backward = count_layer(kernel, args.rows)
        counts = count_step(kernel, args.rows, args.steps, args.vocabulary)
        fixed = count_step(kernel, 1, 1, args.vocabulary)
        n_tokens = args.rows * args.steps
        cells = [kernel, f"{forward:.2f}", f"{backward:.2f}", f"{counts.kernels.total():,}"]
        cells += [f"{counts.bytes.total() / 1e6 / n_tokens:.2f}"]
        cells += [f"{fixed.bytes.total() / 1e9:.2f}", f"{counts.flop / 1e12:.1f}"]
        print("| " + " | ".join(cells) + " |", flush=True)
        if args.details:
            for name, value in counts.bytes.most_common(25):
                print(
                    f"    {name}: {counts.kernels[name]:,} kernels, "
                    f"{value / 1e3 / n_tokens:,.0f} kB/token; of one token "
                    f"{fixed.bytes[name] / 1e6:,.0f} MB"
                )


if __name__ == "__main__":
    main()
