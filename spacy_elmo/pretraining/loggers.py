"""Loggers for pretraining, with spaCy's interface, for `[pretraining.logger]`.

Those of spacy-loggers (Weights & Biases, MLflow, ClearML, a chain of several) work as well. After
an evaluation they all get what spaCy's trainer gives: `epoch`, `step`, `words`, `seconds`, `losses`
(nats per word, the mean since the last evaluation), `score` (the average perplexity: less is
better) and `other_scores`, which has the perplexities, `learn_rate`, `gradient_norm` (mean, before
it was clipped), `clipped` (the share of steps) and `skipped` (steps whose gradient was not finite);
besides, `words_per_second`, and `seconds_left` (None if unknown). After other steps they get None.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import IO, Any, Optional

from spacy import Language
from spacy.util import registry
from tqdm import tqdm

from .distributed import rank
from .train_state import TrainState, means

Log = Callable[[Optional[dict[str, Any]]], None]
Setup = Callable[[Language, IO[str], IO[str]], tuple[Log, Callable[[], None]]]

_WIDTHS = (5, 8, 9, 10, 10, 10, 9, 8)
_HEADER = ("E", "#", "Loss", "Forward", "Backward", "Average", "Words/s", "ETA")


@registry.loggers("spacy-elmo.PretrainConsoleLogger.v1")
def console_logger(progress_bar: bool = True) -> Setup:
    """Print a line per evaluation; the default.

    progress_bar (bool): Show a bar in between, if the output is a terminal.
    """

    def setup(
        nlp: Language, stdout: IO[str] = sys.stdout, stderr: IO[str] = sys.stderr
    ) -> tuple[Log, Callable[[], None]]:
        total = nlp.config["pretraining"]["eval_frequency"] or None
        disable = None if progress_bar else True
        bar = tqdm(total=total, leave=False, disable=disable, unit="step", file=stderr)

        def row(cells: Sequence[str]) -> None:
            bar.clear()
            line = "  ".join(cell.rjust(width) for cell, width in zip(cells, _WIDTHS))
            print(line, file=stdout, flush=True)

        row(_HEADER)
        row(["-" * width for width in _WIDTHS])

        def log_step(info: Optional[dict[str, Any]]) -> None:
            bar.update(1)
            if info is None:
                return
            scores, loss = info["other_scores"], info["losses"].get("elmo")
            cells = [str(info["epoch"]), str(info["step"]), "" if loss is None else f"{loss:.3f}"]
            cells += [f"{scores[name]:.1f}" for name in ("forward", "backward", "average")]
            row([*cells, f"{info['words_per_second']:,.0f}", _duration(info["seconds_left"])])
            bar.reset()

        return log_step, bar.close

    return setup


def resolve_logger(block: Optional[dict[str, Any]]) -> Setup:
    """RETURNS (Callable): The logger that a `[pretraining.logger]` block describes.
    RAISES (ValueError): If there is no such logger, or its settings are wrong."""
    if not block:
        return console_logger()
    try:
        return registry.resolve({"logger": block})["logger"]
    except Exception as error:  # The registry's errors are of several kinds.
        raise ValueError(f"[pretraining.logger] is wrong: {error}") from error


class ProgressLines:
    """Lines between evaluations, the first soon, for those who see no progress bar.

    state (TrainState): The state at the start of the run.
    """

    def __init__(self, state: TrainState) -> None:
        self.restart(state, 30)

    def restart(self, state: TrainState, seconds: float = 60) -> None:
        """Let the next line come after so many seconds, and tell what is new then."""
        self._next = state.seconds + seconds
        self._sums, self._n_words, self._seconds = state.sums, state.n_words, state.seconds

    def is_due(self, state: TrainState) -> bool:
        return state.seconds >= self._next

    def print(self, state: TrainState, learn_rate: float) -> None:
        """Print a line, unless this is another process than rank 0 or the output is a terminal."""
        info = means([new - old for new, old in zip(state.sums, self._sums)], learn_rate)
        rate = (state.n_words - self._n_words) / max(state.seconds - self._seconds, 1e-9)
        cells = [f"step {state.step:,}:"]
        if info["loss"] is not None:
            cells.append(f"loss {info['loss']:.3f}, rate {info['learn_rate']:.3g},")
            cells.append(f"gradient {info['gradient_norm']:.3g}, {info['clipped']:.0%} clipped,")
        if info["skipped"]:
            cells.append(f"{info['skipped']} skipped,")
        if rank() == 0 and not sys.stdout.isatty():
            print(*cells, f"{rate:,.0f} words/s", flush=True)
        self.restart(state)


def _duration(seconds: Optional[float]) -> str:
    if seconds is None:
        return ""
    if seconds < 60:
        return f"{int(seconds)} s"
    minutes = int(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d} h"
