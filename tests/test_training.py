"""What `spacy train` uses of ours: the log of the mixes."""

from __future__ import annotations

import io

from spacy.util import registry

from .conftest import add_tagger, elmo_pipeline, tagged


class Terminal(io.StringIO):
    """What is written to it, tqdm takes for a terminal."""

    def isatty(self):
        return True

    def lines(self):
        """What a reader sees: after a carriage return, a line is written over."""
        shown = []
        for line in self.getvalue().split("\n"):
            cells: list[str] = []
            for text in line.split("\r"):
                cells[: len(text)] = text
            shown.append("".join(cells).rstrip())
        return shown


def log(nlp, logger, n_evaluations=3):
    """RETURNS (list): The lines on a terminal after some evaluations."""
    terminal = Terminal()
    log_step, finalize = logger(nlp, terminal, terminal)
    for step in range(n_evaluations):
        info = {"epoch": step, "step": step, "score": 0.5, "losses": {"tagger": 1.0, "elmo": 0.0}}
        log_step({**info, "other_scores": {"tag_acc": 0.5}})
        for _ in range(2):
            log_step(None)
    finalize()
    return terminal.lines()


def test_the_progress_bar_does_not_tear_the_log(weights_folder):
    nlp = elmo_pipeline(weights_folder)
    add_tagger(nlp)
    nlp.initialize(lambda: tagged(nlp))
    console = registry.loggers.get("spacy.ConsoleLogger.v3")
    plain = log(nlp, registry.loggers.get("spacy-elmo.MixLogger.v1")(console()))
    assert sum("scalar_mix 0.333 0.333 0.333, gamma 1.000" in line for line in plain) == 3
    logger = registry.loggers.get("spacy-elmo.MixLogger.v1")(console(progress_bar="eval"))
    with_bar = log(nlp, logger)
    # The bar has the last line. Above it there is nothing of it left.
    assert with_bar[: len(plain) - 1] == plain[:-1]
