"""Loggers for `[pretraining.logger]`, with spaCy's interface; those of spacy-loggers work as well.

After an evaluation they get what spaCy's trainer gives: `epoch`, `step`, `words`, `seconds`,
`losses` (nats per word since the last evaluation), `score` (the average perplexity: less is better)
and `other_scores`, which has the perplexities, `learn_rate`, `gradient_norm` (mean, before it was
clipped), `clipped` (the share of steps) and `skipped` (steps whose gradient was not finite);
besides, `words_per_second`, and `seconds_left` (None if unknown). After other steps they get None.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import IO, Any, Optional

from spacy import Language
from spacy.util import registry

Log = Callable[[Optional[dict[str, Any]]], None]
Setup = Callable[[Language, IO[str], IO[str]], tuple[Log, Callable[[], None]]]

_WIDTHS = (3, 7, 7, 8, 8, 8, 8, 17)  # 80 columns.
_HEADER = ("E", "#", "Loss", "Forward", "Backward", "Average", "Words/s", "ETA")


@registry.loggers("spacy-elmo.PretrainConsoleLogger.v1")
def console_logger() -> Setup:
    """Print a line per evaluation; the default."""

    def setup(
        nlp: Language, stdout: IO[str] = sys.stdout, stderr: IO[str] = sys.stderr
    ) -> tuple[Log, Callable[[], None]]:
        def row(cells: Sequence[str]) -> None:
            print(*map(str.rjust, cells, _WIDTHS), sep="  ", file=stdout, flush=True)

        row(_HEADER)
        row(["-" * width for width in _WIDTHS])

        def log_step(info: Optional[dict[str, Any]]) -> None:
            if info is None:
                return
            scores, loss = info["other_scores"], info["losses"].get("elmo")
            cells = [str(info["epoch"]), str(info["step"]), "" if loss is None else f"{loss:.3f}"]
            cells += [f"{scores[name]:.1f}" for name in ("forward", "backward", "average")]
            left = info["seconds_left"]
            eta = "" if left is None else str(timedelta(seconds=int(left)))
            row([*cells, f"{info['words_per_second']:,.0f}", eta])

        return log_step, lambda: None

    return setup


def resolve_logger(block: Optional[dict[str, Any]]) -> Setup:
    """RETURNS (Callable): The logger that a `[pretraining.logger]` block describes."""
    if not block:
        return console_logger()
    try:
        return registry.resolve({"logger": block})["logger"]
    except Exception as error:  # The registry's errors are of several kinds.
        raise ValueError(f"[pretraining.logger] is wrong: {error}") from error
