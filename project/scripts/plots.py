"""The pictures of the report, in one style."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib import rc_context
from matplotlib.figure import Figure
from results import BASELINE, MixRow, Spread

from spacy_elmo.files import atomic_file

# Okabe and Ito's colours, which the colour-blind can distinguish. Yellow is too light for lines.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
GRAY = "#555555"
MARKERS = "osD^vPX<"  # Fewer than colours, so that pairs repeat late.
# Sizes are for a phone's width, where 11 points come out as about as many pixels.
STYLE = {
    "font.size": 11,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 6,
}
WIDTH = 5.6
# Of a legend below the plot, where the lines would leave it no room.
N_COLUMNS = 3


class Look(NamedTuple):
    colour: str
    marker: str
    style: str


def looks(systems: Iterable[str]) -> dict[str, Look]:
    """RETURNS (dict): A look for each system, the same in all plots; the baseline is gray."""
    looks = {BASELINE: Look(GRAY, "s", "--")}
    for i, name in enumerate(name for name in systems if name != BASELINE):
        style = ("-", ":", "-.")[i // len(COLOURS) % 3]
        looks[name] = Look(COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)], style)
    return looks


def draw_sizes(
    path: Path, title: str, score: str, curves: dict[str, list[tuple[int, Spread]]], by_name: Any
) -> None:
    """Draw a score against the amount of training data (figure 1 of the paper).

    curves (dict): For each system, pairs of training examples and score.
    by_name (dict): The systems' looks.
    """

    def draw(axes: Any) -> None:
        for i, (name, points) in enumerate(curves.items()):
            look = by_name[name]
            # Side by side, or the bars of one size would hide each other.
            shift = 1.025 ** (i - (len(curves) - 1) / 2)
            axes.errorbar(
                [n * shift for n, _ in points],
                [100 * value.mean for _, value in points],
                yerr=[100 * (value.sd or 0) for _, value in points],
                label=name,
                color=look.colour,
                marker=look.marker,
                linestyle=look.style,
                capsize=3,
            )
        axes.set_xscale("log")
        ticks = _spaced({n for points in curves.values() for n, _ in points})
        axes.set_xticks(ticks, [f"{n:,}" for n in ticks])
        axes.set_xticks([], minor=True)
        axes.set_xlabel("training examples")
        axes.set_ylabel(f"{score} (%)")
        axes.figure.legend(loc="outside lower center", ncols=N_COLUMNS, frameon=False)

    _save(path, title, draw, height=3.8 + 0.25 * math.ceil(len(curves) / N_COLUMNS))


def _spaced(values: Iterable[int]) -> list[int]:
    """RETURNS (list): Values whose labels do not overlap on a logarithmic axis."""
    values = sorted(values, reverse=True)
    least = max((values[0] / values[-1]) ** 0.14, 1.01)
    kept = values[:1]
    for value in values[1:]:
        if kept[-1] / value >= least:
            kept.append(value)
    return kept[::-1]


def draw_mixes(path: Path, rows: Sequence[MixRow], labels: Sequence[str]) -> None:
    """Draw the layer weights of each mix as a heat map (figure 2 of the paper)."""
    n_layers = max(len(row.weights) for row in rows)
    values = [[w.mean for w in row.weights] for row in rows]
    values = [row + [float("nan")] * (n_layers - len(row)) for row in values]

    def draw(axes: Any) -> None:
        axes.imshow(values, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        axes.set_xticks(range(n_layers), [f"layer {i}" for i in range(n_layers)])
        axes.set_yticks(range(len(rows)), labels)
        axes.tick_params(length=0)
        axes.grid(False)
        axes.spines[:].set_visible(False)
        for y, row in enumerate(rows):
            for x, weight in enumerate(row.weights):
                colour = "white" if weight.mean > 0.55 else "black"
                axes.text(x, y, f"{weight.mean:.2f}", ha="center", va="center", color=colour)

    _save(path, "Layer weights", draw, height=1.1 + 0.55 * len(rows))


def draw_pretraining(path: Path, title: str, history: list[dict[str, Any]]) -> None:
    """Draw perplexity against words read."""

    def draw(axes: Any) -> None:
        words = [record["words"] / 1e6 for record in history]
        for name, colour, style in zip(
            ("forward", "backward", "average"), COLOURS, ("--", ":", "-")
        ):
            values = [record[name] for record in history]
            # One evaluation is a point, not a line.
            marker = "o" if len(history) == 1 else ""
            axes.plot(words, values, label=name, color=colour, linestyle=style, marker=marker)
        axes.axhline(history[-1]["unigram"], color=GRAY, linestyle="-.", label="unigram")
        axes.set_xlim(left=0)
        axes.set_yscale("log")
        low = min(record[name] for record in history for name in ("forward", "backward"))
        high = max(record[name] for record in history for name in ("forward", "unigram"))
        ticks = [n * 10**e for e in range(7) for n in (1, 2, 5) if 0.7 * low <= n * 10**e <= high]
        axes.set_yticks(ticks, [f"{n:,}" for n in ticks])
        axes.set_yticks([], minor=True)
        axes.set_xlabel("million words read")
        axes.set_ylabel("held-out perplexity")
        axes.legend()

    _save(path, title, draw)


def draw_probes(path: Path, title: str, probes: Sequence[dict[str, Any]]) -> None:
    """Draw the accuracy of each layer's probe, before and after pretraining."""

    def draw(axes: Any) -> None:
        for probe, colour, marker in zip(probes, COLOURS * len(probes), MARKERS * len(probes)):
            for key, style in (("layers", "-"), ("untrained", "--")):
                name = probe["name"] if key == "layers" else f"{probe['name']}, untrained"
                axes.plot(
                    [str(row["layer"]) for row in probe[key]],
                    [100 * row["accuracy"] for row in probe[key]],
                    label=name,
                    color=colour,
                    marker=marker,
                    linestyle=style,
                    fillstyle="full" if key == "layers" else "none",
                )
        # Probes on other data have another line, but need no other entry.
        for i, value in enumerate(sorted({probe["most_frequent"] for probe in probes})):
            label = "" if i else "most frequent tag"
            axes.axhline(100 * value, color=GRAY, linestyle="-.", label=label)
        axes.set_xlabel("layer")
        axes.set_ylabel("accuracy (%)")
        axes.figure.legend(loc="outside lower center", ncols=2, fontsize=10, frameon=False)

    _save(path, title, draw, height=3.6 + 0.25 * (len(probes) + 1))


def _save(path: Path, title: str, draw: Any, height: float = 3.8) -> None:
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        axes = figure.subplots()
        draw(axes)
        axes.set_title(title)
        with atomic_file(path) as temporary:
            figure.savefig(temporary, format="png", dpi=200)
