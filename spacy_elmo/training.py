"""What `spacy train` can be told to do with ELMo: callbacks and loggers."""

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
from .layers.listener import mixes_of, n_layers_of
from .layers.mixes import MixState, mix_state

Info = Optional[dict[str, Any]]
LogStep = Callable[[Info], None]
Logger = Callable[[Language, IO, IO], tuple[LogStep, Callable[[], None]]]


@registry.callbacks("spacy-elmo.gradual_unfreezing.v1")
def gradual_unfreezing(
    every: int, component: str = "elmo"
) -> Callable[[Language, dict[str, Any]], None]:
    """Fine-tune the top layer of a biLM first, then one layer more every so many steps, the token
    encoder last (Howard and Ruder 2018, section 3.3). For `[training.before_update]`.

    every (int): Steps from one layer to the next.
    component (str): The name of the "elmo" component.
    RAISES (ValueError): If every is not positive; at the first step, if there is no such component
        or it is frozen.
    """
    if every < 1:
        raise ValueError(f"gradual_unfreezing: every must be 1 or more steps, found {every}")

    def before_update(nlp: Language, info: dict[str, Any]) -> None:
        elmo = nlp.get_pipe(component) if component in nlp.pipe_names else None
        if not isinstance(elmo, Elmo):
            raise ValueError(
                f"gradual_unfreezing: no elmo component {component!r} in {nlp.pipe_names}"
            )
        if elmo.frozen or component in nlp.config["training"]["frozen_components"]:
            raise ValueError(
                f"gradual_unfreezing: the component {component!r} is frozen: set its frozen = "
                "false and take it out of training.frozen_components"
            )
        if info["step"] % every == 0:
            elmo.bilm.unfreeze(min(1 + info["step"] // every, elmo.bilm.config.n_activations))

    return before_update


class TaskMix(NamedTuple):
    """A mix in a pipeline.

    task (str): The component, with "/input" or "/output" where it has two.
    kind (str): Which mix.
    state (MixState): What it makes of the layers.
    """

    task: str
    kind: str
    state: MixState


def task_mixes(nlp: Language) -> Iterator[TaskMix]:
    """YIELDS (TaskMix): The mixes of a pipeline's listeners."""
    for name, component in nlp.components:
        model = getattr(component, "model", None)
        if not isinstance(model, Model):
            continue
        n_layers = n_layers_of(model)
        for place, mix in mixes_of(model):
            state = mix_state(mix, n_layers)
            if state is not None:
                yield TaskMix(f"{name}/{place}" if place else name, mix.name, state)


def describe_state(state: MixState) -> str:
    """RETURNS (str): For example "0.21 0.47 0.32, gamma 1.05"."""
    parts = []
    if state.weights is not None:
        parts.append(" ".join(f"{weight:.3f}" for weight in state.weights))
    if state.gamma is not None:
        parts.append(f"gamma {state.gamma:.3f}")
    return ", ".join(parts) or "not initialised"


@registry.loggers("spacy-elmo.MixLogger.v1")
def mix_logger(logger: Optional[Logger] = None) -> Logger:
    """Log each task's mix, next to what another logger logs. For `[training.logger]`.

    The mixes are printed below each evaluation. The other logger also finds them among the scores
    (`info["other_scores"]`, as `elmo_TASK_layer0` and so on, and `elmo_TASK_gamma`), from where
    those of spacy-loggers (Wandb, MLflow, ClearML, CuPy, a chain of them) send them on.

    logger (Optional[Logger]): The other logger; the default is spaCy's console logger.
    """
    inner = console_logger_v3() if logger is None else logger

    def setup(
        nlp: Language, stdout: IO = sys.stdout, stderr: IO = sys.stderr
    ) -> tuple[LogStep, Callable[[], None]]:
        log_inner, finalize_inner = inner(nlp, stdout, stderr)

        def log_step(info: Info) -> None:
            mixes = [] if info is None else list(task_mixes(nlp))
            if info is not None:
                info["other_scores"].update(_scores(mixes))
            log_inner(info)
            # The progress bar of the other logger is cleared meanwhile, and drawn again below.
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
