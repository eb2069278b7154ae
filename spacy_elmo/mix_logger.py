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
Logger = Callable[[Language, IO, IO], tuple[Callable[[Info], None], Callable[[], None]]]


def find_mixes(nlp: Language) -> Iterator[tuple[str, MixState]]:
    """YIELDS (tuple): The mixes of a pipeline's listeners: the task, which is the name of the
    component, with "/input" or "/output" if it can have two mixes; and the state of the mix."""
    for name, component in nlp.components:
        model = getattr(component, "model", None)
        nodes = list(model.walk()) if isinstance(model, Model) else []
        n_layers, tasks = 0, {}
        for node in nodes:
            if node.name == LISTENER and node.attrs["link"].upstream is not None:
                n_layers = node.attrs["link"].upstream.layer_shape[0]
            elif node.name == ENCODER:
                n_layers = get_bilm(node).config.n_activations
            for end in ("input", "output"):
                if (mix := node.maybe_get_ref(f"{end}_mix")) is not None:
                    tasks[mix.id] = f"{name}/{end}"
        for node in nodes:
            if node.name == MIX_DOCS:
                yield tasks.get(node.id, name), mix_state(node.layers[0], n_layers)


@registry.loggers("spacy-elmo.MixLogger.v1")
def mix_logger(logger: Optional[Logger] = None) -> Logger:
    """Log each task's mix, in addition to what another logger logs. For `[training.logger]`.

    The mixes are printed below each evaluation. The other logger also gets them with the scores
    (`info["other_scores"]`, as `elmo_TASK_layer0` and so on, and `elmo_TASK_gamma`).

    logger (Optional[Logger]): The other logger; the default is spaCy's console logger.
    """
    inner = console_logger_v3() if logger is None else logger

    def setup(
        nlp: Language, stdout: IO = sys.stdout, stderr: IO = sys.stderr
    ) -> tuple[Callable[[Info], None], Callable[[], None]]:
        log_inner, finalize_inner = inner(nlp, stdout, stderr)

        def log_step(info: Info) -> None:
            mixes = [] if info is None else list(find_mixes(nlp))
            lines = []
            for task, mix in mixes:
                scores = {f"layer{i}": weight for i, weight in enumerate(mix.weights or ())}
                shown = " ".join(f"{weight:.3f}" for weight in scores.values())
                if mix.gamma is not None:
                    scores["gamma"] = mix.gamma
                    shown += f", gamma {mix.gamma:.3f}"
                lines.append(f"  {task}: {mix.kind} {shown or 'no layer weights'}")
                prefix = f"elmo_{task.replace('/', '_')}"
                for name, score in scores.items():
                    info["other_scores"][f"{prefix}_{name}"] = score  # type: ignore[index]
            log_inner(info)
            # Clears the progress bar of the other logger, and draws it again below.
            with tqdm.external_write_mode(file=stdout):
                print(*lines, sep="\n", end="\n" if lines else "", file=stdout)

        def finalize() -> None:
            finalize_inner()
            for _, component in nlp.components:
                if isinstance(component, Elmo):
                    component.end_training()

        return log_step, finalize

    return setup
