"""The mixes of a pipeline's listeners, and a logger that shows them during `spacy train`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import IO, Any, Callable, Optional

from spacy.language import Language
from spacy.training.loggers import console_logger_v3
from spacy.util import registry
from thinc.api import Model
from tqdm import tqdm

from .component import Elmo
from .layers.encoder import NAME as ENCODER
from .layers.encoder import get_bilm
from .layers.listener import NAME as LISTENER
from .layers.mix_docs import NAME as MIX_DOCS
from .layers.mixes import MixState, mix_state

Info = Optional[dict[str, Any]]
LogStep = Callable[[Info], None]
Logger = Callable[[Language, IO, IO], tuple[LogStep, Callable[[], None]]]


def find_mixes(nlp: Language) -> Iterator[tuple[str, MixState]]:
    """YIELDS (tuple): The mixes of a pipeline's listeners: the task, which is the name of the
    component, with "/input" or "/output" if it can have two mixes; and the state of the mix."""
    for name, component in nlp.components:
        model = getattr(component, "model", None)
        nodes = list(model.walk()) if isinstance(model, Model) else []
        n_layers = max(map(_count_layers, nodes), default=0)
        ends = {
            mix.id: f"{name}/{end}"
            for node in nodes
            for end in ("input", "output")
            if (mix := node.maybe_get_ref(f"{end}_mix")) is not None
        }
        for node in nodes:
            if node.name == MIX_DOCS:
                yield ends.get(node.id, name), mix_state(node.layers[0], n_layers)


def _count_layers(node: Model) -> int:
    """RETURNS (int): L+1 of the biLM that a node listens to or holds; 0 for none."""
    if node.name == LISTENER and node.attrs["link"].upstream is not None:
        return node.attrs["link"].upstream.layer_shape[0]
    return get_bilm(node).config.n_activations if node.name == ENCODER else 0


@registry.loggers("spacy-elmo.MixLogger.v1")
def mix_logger(logger: Optional[Logger] = None) -> Logger:
    """Log each task's mix, in addition to what another logger logs. For `[training.logger]`.

    The mixes are printed below each evaluation. The other logger also gets them with the scores
    (`info["other_scores"]`, as `elmo_TASK_layer0` and so on, and `elmo_TASK_gamma`). The loggers of
    spacy-loggers (Wandb, MLflow, ClearML, CuPy, a chain of them) send all scores.

    logger (Optional[Logger]): The other logger; the default is spaCy's console logger.
    """
    inner = console_logger_v3() if logger is None else logger

    def setup(
        nlp: Language, stdout: IO = sys.stdout, stderr: IO = sys.stderr
    ) -> tuple[LogStep, Callable[[], None]]:
        log_inner, finalize_inner = inner(nlp, stdout, stderr)

        def log_step(info: Info) -> None:
            mixes = [] if info is None else list(find_mixes(nlp))
            if info is not None:
                info["other_scores"].update(_scores(mixes))
            log_inner(info)
            # Clears the progress bar of the other logger, and draws it again below.
            with tqdm.external_write_mode(file=stdout):
                for task, mix in mixes:
                    print(f"  {task}: {mix.kind} {_describe(mix)}", file=stdout)

        def finalize() -> None:
            finalize_inner()
            for _, component in nlp.components:
                if isinstance(component, Elmo):
                    component.end_training()

        return log_step, finalize

    return setup


def _describe(mix: MixState) -> str:
    """RETURNS (str): For example "0.210 0.470 0.320, gamma 1.050"."""
    weights = " ".join(f"{weight:.3f}" for weight in mix.weights or ())
    gamma = "" if mix.gamma is None else f"gamma {mix.gamma:.3f}"
    return ", ".join(filter(None, (weights, gamma))) or "no layer weights"


def _scores(mixes: list[tuple[str, MixState]]) -> dict[str, float]:
    scores = {}
    for task, mix in mixes:
        name = f"elmo_{task.replace('/', '_')}"
        for number, weight in enumerate(mix.weights or ()):
            scores[f"{name}_layer{number}"] = weight
        if mix.gamma is not None:
            scores[f"{name}_gamma"] = mix.gamma
    return scores
