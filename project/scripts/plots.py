"""The plots of experiments, in the style of `spacy_elmo.plots`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from results import BASELINE, MAIN_SCORES, Spread

from spacy_elmo.plots import COLOURS, GRAY, save

# Not the baseline's; another number than of colours, so that pairs repeat late.
MARKERS = "oD^vPX<"
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
        axes.set_xlabel("examples to train on")
        axes.set_ylabel(f"{MAIN_SCORES.get(score, score)} (%)")
        axes.figure.legend(loc="outside lower center", ncols=N_COLUMNS, frameon=False)

    save(path, title, draw, height=3.8 + 0.25 * math.ceil(len(curves) / N_COLUMNS))


def _spaced(values: Iterable[int]) -> list[int]:
    """RETURNS (list): Values whose labels do not overlap on a logarithmic axis."""
    values = sorted(values, reverse=True)
    least = max((values[0] / values[-1]) ** 0.14, 1.01)
    kept = values[:1]
    for value in values[1:]:
        if kept[-1] / value >= least:
            kept.append(value)
    return kept[::-1]


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

    save(path, title, draw, height=3.6 + 0.25 * (len(probes) + 1))
