"""spacy elmo mixes: show which layers each task uses."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

import typer
from wasabi import msg

from ..mix_logger import find_mixes
from ..plots import draw_mixes
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
                plotted.append((label, mix.weights))
        header = ("Task", "Mix", *(f"Layer {i}" for i in range(n_layers)), "Gamma")
        msg.table(rows, header=header, aligns=("l", "l", *"r" * (n_layers + 1)), divider=True)
        if plot is not None:
            if not plotted:
                raise ValueError("no task has layer weights yet: train the pipeline, then plot")
            draw_mixes(plotted, plot, "Layers that each task uses")
            msg.good(f"Plot: {plot}")
