"""Gradual unfreezing of the biLM: a callback for `spacy train`."""

from __future__ import annotations

from typing import Any, Callable

from spacy.language import Language
from spacy.util import registry

from .component import Elmo


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
        frozen = component in nlp.config["training"]["frozen_components"]
        if not isinstance(elmo, Elmo) or elmo.frozen or frozen:
            raise ValueError(
                f"gradual_unfreezing: {component!r} must be an elmo component with frozen = false, "
                "and not among training.frozen_components"
            )
        if info["step"] % every == 0:
            elmo.bilm.unfreeze(min(1 + info["step"] // every, elmo.bilm.config.n_activations))

    return before_update
