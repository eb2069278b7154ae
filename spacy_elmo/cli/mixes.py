"""spacy elmo mixes: show which layers each task uses."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

import typer
from wasabi import msg

from ..files import atomic_file
from ..layers.mixes import MixState
from ..mix_logger import find_mixes
from ..weights import load_pipeline
from .util import exit_on_error

_FORMATS = (".png", ".svg", ".pdf")


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
        if plot is not None and plot.suffix.lower() not in _FORMATS:
            raise ValueError(f"--plot {plot}: give a file that ends in {', '.join(_FORMATS)}")
        mixes = list(find_mixes(load_pipeline(pipeline)))
        if not mixes:
            raise ValueError(f"the pipeline {pipeline} has no component that listens to ELMo")
        n_layers = max(len(mix.weights or ()) for _, mix in mixes)
        msg.table(
            [_row(task, mix, n_layers) for task, mix in mixes],
            header=("Task", "Mix", *(f"Layer {i}" for i in range(n_layers)), "Gamma"),
            aligns=("l", "l", *"r" * (n_layers + 1)),
            divider=True,
        )
        if plot is not None:
            _plot(mixes, n_layers, plot)
            msg.good(f"Plot: {plot}")


def _row(task: str, mix: MixState, n_layers: int) -> tuple[str, ...]:
    weights = [f"{weight:.3f}" for weight in mix.weights or ()]
    gamma = "" if mix.gamma is None else f"{mix.gamma:.3f}"
    return task, mix.kind, *weights, *[""] * (n_layers - len(weights)), gamma


def _plot(mixes: list[tuple[str, MixState]], n_layers: int, path: Path) -> None:
    """Plot a heat map with a row per task (as figure 2 of Peters et al. 2018).

    RAISES (ValueError): If matplotlib is missing, or no mix has weights.
    """
    # A task may have several mixes of the same label.
    rows = [(_label(*one), list(one[1].weights)) for one in mixes if one[1].weights is not None]
    if not rows:
        raise ValueError("no task has layer weights yet: train the pipeline, then plot them")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError('to plot, install matplotlib: pip install "spacy-elmo[viz]"') from error
    figure = Figure(figsize=(2 + n_layers, 1.2 + 0.45 * len(rows)), layout="constrained")
    axes = figure.subplots()
    padded = [row + [float("nan")] * (n_layers - len(row)) for _, row in rows]
    image = axes.imshow(padded, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    notes = {0: "\ntoken encoder", n_layers - 1: "\ntop"}
    axes.set_xticks(range(n_layers), [f"layer {i}{notes.get(i, '')}" for i in range(n_layers)])
    axes.set_yticks(range(len(rows)), [label for label, _ in rows])
    for y, (_, row) in enumerate(rows):
        for x, weight in enumerate(row):
            colour = "white" if weight > 0.6 else "black"
            axes.text(x, y, f"{weight:.2f}", ha="center", va="center", color=colour)
    axes.set_title("Layer weights")
    figure.colorbar(image)
    with atomic_file(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:].lower(), dpi=150)


def _label(task: str, mix: MixState) -> str:
    return task if mix.gamma is None else f"{task} (γ {mix.gamma:.2f})"
