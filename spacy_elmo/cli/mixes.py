"""spacy elmo mixes: show which layers each task uses."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

import typer
from wasabi import msg

from ..files import atomic_file
from ..mix_logger import find_mixes
from ..weights import load_pipeline
from .util import exit_on_error


def mixes_cli(
    pipeline: str = typer.Argument(..., help="A trained pipeline"),
    plot: Optional[Path] = typer.Option(None, "--plot", help="Also plot them: .png, .svg or .pdf"),
) -> None:
    """
    Print and plot the mixes: which layers each task uses.

    Layer 0 is the token encoder. The weights of a learned_mix are the layers' shares of the norm of
    its weight matrix.
    """
    with exit_on_error():
        mixes = list(find_mixes(load_pipeline(pipeline)))
        if not mixes:
            raise ValueError(f"the pipeline {pipeline} has no component that listens to ELMo")
        n_layers = max(len(mix.weights or ()) for _, mix in mixes)
        rows, plotted = [], []
        for task, mix in mixes:
            padding = n_layers - len(mix.weights or ())
            cells = [f"{weight:.3f}" for weight in mix.weights or ()] + [""] * padding
            rows.append((task, mix.kind, *cells, "" if mix.gamma is None else f"{mix.gamma:.3f}"))
            if mix.weights is not None:
                label = task if mix.gamma is None else f"{task} (γ {mix.gamma:.2f})"
                plotted.append((label, [*mix.weights, *[float("nan")] * padding]))
        header = ("Task", "Mix", *(f"Layer {i}" for i in range(n_layers)), "Gamma")
        msg.table(rows, header=header, aligns=("l", "l", *"r" * (n_layers + 1)), divider=True)
        if plot is not None:
            _plot(plotted, plot)
            msg.good(f"Plot: {plot}")


def _plot(rows: list[tuple[str, list[float]]], path: Path) -> None:
    """Plot a heat map with a row per task (as figure 2 of Peters et al. 2018)."""
    if not rows:
        raise ValueError("no task has layer weights yet: train the pipeline, then plot them")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError('to plot, install matplotlib: pip install "spacy-elmo[viz]"') from error
    labels, weights = zip(*rows)  # Labels may be equal.
    n_layers = len(weights[0])
    figure = Figure(figsize=(2 + n_layers, 1.2 + 0.45 * len(rows)), layout="constrained")
    axes = figure.subplots()
    figure.colorbar(axes.imshow(weights, cmap="Blues", vmin=0, vmax=1, aspect="auto"))
    axes.set_xticks(range(n_layers), [f"layer {number}" for number in range(n_layers)])
    axes.set_yticks(range(len(rows)), labels)
    for y, row in enumerate(weights):
        for x, weight in enumerate(row):
            colour = "white" if weight > 0.6 else "black"
            axes.text(x, y, f"{weight:.2f}", ha="center", va="center", color=colour)
    axes.set_title("Layer weights")
    with atomic_file(path) as temporary:  # matplotlib names the formats if there is no such one.
        figure.savefig(temporary, format=path.suffix[1:].lower(), dpi=150)
