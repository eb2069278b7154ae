"""Plots, in one style, which those of the project share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .files import atomic_file

# Lines and text, and what is behind them. Nothing else has these colours, so that a page can give
# an SVG its own.
INK, PAPER = "#24292f", "#fefefe"
# Okabe and Ito's colours, which the colour-blind can distinguish. Yellow is too light for lines.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
GRAY = "#808080"
# Sizes are for a phone's width, where 11 points come out as about as many pixels.
WIDTH = 5.6
_INKED = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
STYLE: Any = {
    **dict.fromkeys(_INKED, INK),
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), PAPER),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    **{"axes.grid": True, "grid.alpha": 0.4, "grid.color": GRAY, "font.size": 11},
    **{"lines.linewidth": 1.8, "lines.markersize": 6, "svg.hashsalt": "spacy-elmo"},
}


def save(path: Path, title: str, draw: Callable[[Any], None], height: float = 3.8) -> None:
    """Write a plot, .png, .svg or .pdf, of what `draw` puts on its axes.
    RAISES (ImportError): Without matplotlib. RAISES (ValueError): If there is no such format."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(f'{path} needs matplotlib: pip install "spacy-elmo[viz]"') from error
    kind = path.suffix[1:].lower()
    with rc_context(STYLE), atomic_file(path) as temporary:
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        axes = figure.subplots()
        draw(axes)
        if title:
            axes.set_title(title)
        settings: dict[str, Any] = {"format": kind, "dpi": 200}
        if kind == "svg":
            settings["metadata"] = {"Date": None}  # Equal plots have equal bytes.
        figure.savefig(temporary, **settings)  # It names the formats if there is no such one.


def draw_curves(
    history: Sequence[dict[str, Any]], path: Path, title: str = "Perplexity on held-out text"
) -> None:
    """Draw the evaluations of a pretraining against the words read."""
    lines = {"forward": "--", "backward": ":", "average": "-"}
    values = [record[name] for record in history for name in (*lines, "unigram")]
    known = [value for value in values if value is not None] or [1]

    def draw(axes: Any) -> None:
        from matplotlib.ticker import LogLocator, NullLocator

        words = [record["words"] / 1e6 for record in history]
        for (name, style), colour in zip(lines.items(), COLOURS):
            perplexities = [record[name] for record in history]
            marker = "o" if len(history) == 1 else ""  # One evaluation is a point, not a line.
            axes.plot(words, perplexities, style, label=name, color=colour, marker=marker)
        if (unigram := history[-1]["unigram"]) is not None:
            axes.axhline(unigram, color=GRAY, linestyle="-.", label="word frequencies alone")
        axes.set_xlim(left=0)
        axes.set(xlabel="million words read", ylabel="perplexity (less is better)")
        if max(known) > 3 * min(known):
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.legend()

    save(path, title, draw)


def draw_mixes(rows: Sequence[tuple[str, Sequence[float]]], path: Path, title: str = "") -> None:
    """Draw a heat map with a row per task (as figure 2 of Peters et al. 2018).

    rows (Sequence): Labels, which may be equal, and the weights of the layers.
    """
    labels, weights = zip(*rows)
    n_layers = max(map(len, weights))
    values = [[*row, *[float("nan")] * (n_layers - len(row))] for row in weights]
    low, high = (choose(x for row in weights for x in row) for choose in (min, max))
    margin = max(0.1 - (high - low) / 2, 0)  # Rounding must not look like a choice.

    def draw(axes: Any) -> None:
        bounds = {"vmin": low - margin, "vmax": high + margin}
        cells = axes.pcolormesh(values, cmap="Blues", edgecolors=PAPER, linewidth=2, **bounds)
        for y, row in enumerate(weights):
            for x, weight in enumerate(row):
                colour = "white" if cells.norm(weight) > 0.6 else "black"
                text = f"{weight:.2f}"
                axes.text(x + 0.5, y + 0.5, text, ha="center", va="center", color=colour)
        axes.figure.colorbar(cells, label="weight")
        axes.set_xticks([x + 0.5 for x in range(n_layers)], [f"layer {x}" for x in range(n_layers)])
        axes.set_yticks([y + 0.5 for y in range(len(rows))], labels)
        axes.invert_yaxis()
        axes.tick_params(length=0)
        axes.grid(False)
        axes.spines[:].set_visible(False)

    save(path, title, draw, height=1.1 + 0.55 * len(rows))
