"""Learning curves as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..files import atomic_file


def draw_curves(history: list[dict[str, Any]], path: Path) -> bool:
    """Draw perplexity against words read.

    history (list[dict]): Records of evaluations (see `Trainer.evaluate`).
    path (Path): The PNG.
    RETURNS (bool): Whether there is matplotlib to draw them.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    if not history:
        return True
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    words = [record["words"] / 1e6 for record in history]
    for name in ("forward", "backward", "average"):
        axes.plot(words, [record[name] for record in history], marker=".", label=name)
    axes.axhline(history[-1]["unigram"], color="gray", linestyle="--", label="unigram")
    axes.set_yscale("log")
    axes.set_xlabel("million words read")
    axes.set_ylabel("perplexity on held-out text")
    axes.legend()
    axes.grid(True, which="both", alpha=0.3)
    with atomic_file(path) as temporary:
        figure.savefig(temporary, format="png", dpi=150)
    return True
