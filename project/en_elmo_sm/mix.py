"""Which mix of the layers serves similarity, search and senses best?

    python project/en_elmo_sm/mix.py CORPUS TREEBANK en_elmo_sm CORPUS/en_elmo_sm

CORPUS is the output of corpus.py, TREEBANK that of ../scripts/convert_ud.py. For each of the models
(names or paths), prints a table: a row per mix, a column per task of tasks.py, in per cent. A mix
is a sum of the layers, from the token encoder up, with weights:

- of the layers as they are, or each normalised per token ("layer_norm"),
- as it is, or with the mean vector of the tokens of other texts removed ("centred"); with each
  dimension divided by its standard deviation there, too ("standardised"); or with each principal
  component divided by the square root of its standard deviation ("half whitened").

For each of these kinds, the last row is the best of all weights in steps of a quarter, by the mean
of the columns: chosen and reported on the same items, it is an upper bound. Three minutes of one
core per model.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from pathlib import Path

import tasks
import torch
from scores import mean
from torch import Tensor

from spacy_elmo.cli.util import exit_on_error, torch_device
from spacy_elmo.weights import load_bilm

Weights = tuple[float, ...]
STEPS = 4
# Whether layers are normalised, and what is done to the sum.
KINDS = (
    (False, ""),
    (True, ""),
    (False, "centred"),
    (True, "centred"),
    (False, "standardised"),
    (False, "half whitened"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("treebank", type=Path)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--gpu-id", type=int, default=-1)
    args = parser.parse_args()
    with exit_on_error():
        device = torch_device(args.gpu_id)
        bilms = [load_bilm(name) for name in args.models]
        texts = tasks.read(args.corpus / "held_out", args.treebank)
        print(
            f"{len(texts.first):,} paragraphs, {len(texts.senses)} made-up words, "
            f"{len(texts.homographs)} homographs, {len(texts.dev.labels):,} tags"
        )
        for name, bilm in zip(args.models, bilms):
            print(f"\n## {name}\n")
            print_table(texts, tasks.embed(bilm.to(device), texts))


def print_table(texts: tasks.Texts, rows: tasks.Rows) -> None:
    """Print the named weights of each kind, and the best ones."""
    named = named_weights(rows.first.shape[2])
    every = dict.fromkeys((*named.values(), *grid(rows.first.shape[2])))
    for normed, scaling in KINDS:
        scores = {}
        for weights in every:
            values = tasks.score(texts, rows, make_mix(weights, normed, scaling, rows))
            scores[weights] = {**values, "mean": mean([*values.values()])}
        best = max(scores, key=lambda weights: scores[weights]["mean"])
        if not normed and not scaling:
            print("| mix | weights | " + " | ".join(scores[best]) + " |")
            print("|---|---|" + "---:|" * len(scores[best]))
        for name, weights in (*named.items(), ("best", best)):
            label = ", ".join(filter(None, (name, "layer_norm" * normed, scaling)))
            numbers = " ".join(f"{weight:.2g}" for weight in weights)
            cells = [f"{100 * value:.1f}" for value in scores[weights].values()]
            print(f"| {label} | {numbers} | " + " | ".join(cells) + " |", flush=True)


def named_weights(n_layers: int) -> dict[str, Weights]:
    """RETURNS (dict): The mean of all layers, each layer, and the mean of the LSTM layers."""
    result: dict[str, Weights] = {"mean": (1 / n_layers,) * n_layers}
    for layer in range(n_layers):
        name = "top" if layer == n_layers - 1 else f"layer {layer}"
        result[name] = tuple(float(i == layer) for i in range(n_layers))
    result["LSTM layers"] = (0.0, *(1 / (n_layers - 1) for _ in range(n_layers - 1)))
    return result


def grid(n_layers: int) -> list[Weights]:
    """RETURNS (list): All weights that are multiples of 1 / STEPS and sum to one."""
    choices = itertools.product(range(STEPS + 1), repeat=n_layers)
    return [tuple(n / STEPS for n in choice) for choice in choices if sum(choice) == STEPS]


def make_mix(
    weights: Weights, normed: bool, scaling: str, rows: tasks.Rows
) -> Callable[[Tensor], Tensor]:
    """RETURNS (Callable): A mix, see `tasks.score`."""

    def mixed(rows: Tensor) -> Tensor:
        return torch.tensordot(rows[:, int(normed)], rows.new_tensor(weights), ([1], [0]))

    if not scaling:
        return mixed
    sample = mixed(rows.background)
    center = sample.mean(0)
    if scaling == "centred":
        return lambda rows: mixed(rows) - center
    variances, axes = torch.linalg.eigh(torch.cov(sample.T))
    matrix = axes * variances.clamp_min(1e-6) ** -0.25 @ axes.T
    if scaling == "standardised":
        matrix = torch.diag(sample.std(0).clamp_min(1e-6) ** -1)
    return lambda rows: (mixed(rows) - center) @ matrix


if __name__ == "__main__":
    main()
