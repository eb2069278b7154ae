"""The mixes of a pipeline's listeners, and a logger that shows them during `spacy train`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import IO, Any, Callable, NamedTuple, Optional

from spacy.language import Language
from spacy.training.loggers import console_logger_v3
from spacy.util import registry
from thinc.api import Model
from tqdm import tqdm

from .component import Elmo
from .layers.encoder import NAME as ENCODER
from .layers.encoder import get_bilm
from .layers.listener import MIX_DOCS
from .layers.listener import NAME as LISTENER
from .layers.mixes import MixState, mix_state

Info = Optional[dict[str, Any]]
LogStep = Callable[[Info], None]
Logger = Callable[[Language, IO, IO], tuple[LogStep, Callable[[], None]]]


class TaskMix(NamedTuple):
    """A mix in a pipeline.

    task (str): The name of the component, with "/input" or "/output" if it can have two mixes.
    kind (str): The name of the mix.
    state (MixState): The weights of the layers.
    """

    task: str
    kind: str
    state: MixState


def find_mixes(nlp: Language) -> Iterator[TaskMix]:
    """YIELDS (TaskMix): The mixes of a pipeline's listeners."""
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
                mix = node.layers[0]
                yield TaskMix(ends.get(node.id, name), mix.name, mix_state(mix, n_layers))


def _count_layers(node: Model) -> int:
    """RETURNS (int): L+1 of the biLM that a node listens to or holds; 0 for none."""
    if node.name == LISTENER and node.attrs["link"].upstream is not None:
        return node.attrs["link"].upstream.layer_shape[0]
    return get_bilm(node).config.n_activations if node.name == ENCODER else 0


def describe_state(state: MixState) -> str:
    """RETURNS (str): For example "0.21 0.47 0.32, gamma 1.05"."""
    parts = []
    if state.weights is not None:
        parts.append(" ".join(f"{weight:.3f}" for weight in state.weights))
    if state.gamma is not None:
        parts.append(f"gamma {state.gamma:.3f}")
    return ", ".join(parts) or "no layer weights"


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
                for mix in mixes:
                    print(f"  {mix.task}: {mix.kind} {describe_state(mix.state)}", file=stdout)

        def finalize() -> None:
            finalize_inner()
            for _, component in nlp.components:
                if isinstance(component, Elmo):
                    component.end_training()

        return log_step, finalize

    return setup


def _scores(mixes: list[TaskMix]) -> dict[str, float]:
    scores = {}
    for mix in mixes:
        name = f"elmo_{mix.task.replace('/', '_')}"
        for number, weight in enumerate(mix.state.weights or ()):
            scores[f"{name}_layer{number}"] = weight
        if mix.state.gamma is not None:
            scores[f"{name}_gamma"] = mix.state.gamma
    return scores
