"""The "elmo" pipeline component."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable, Optional, Union

from spacy.language import Language
from spacy.training import Example
from spacy.util import registry
from thinc.api import Model

from . import processes  # noqa: F401 (ends the workers of `nlp.pipe`)
from .bilm.validation import check_range
from .layers.encoder import get_shim, set_bilm
from .layers.upstream import RunState, Upstream
from .weights import choose_component, load_bilm

# The settings that are not here are filled in from the signatures of the registered functions.
DEFAULT_CONFIG = {
    "keep_layers": True,
    "set_vectors": False,
    "batch_size": 1000,
    "frozen": True,
    "optimizer": None,
    "activation_cache": {"@misc": "spacy-elmo.ActivationCache.v1"},
    "pooling": None,
    "model": {
        "@architectures": "spacy-elmo.PretrainedBiLM.v1",
        "segmenter": {"@misc": "spacy-elmo.sentences.v1"},
    },
    "mix": {"@layers": "spacy-elmo.FrozenMix.v1"},
}


def list_components(nlp: Language) -> dict[str, Elmo]:
    """RETURNS (dict): The pipeline's elmo components by name, including disabled ones."""
    return {name: pipe for name, pipe in nlp.components if isinstance(pipe, Elmo)}


def get_component(nlp: Language, name: Optional[str]) -> Elmo:
    """RETURNS (Elmo): The elmo component of this name, or the only one if the name is None.
    RAISES (ValueError): If there is no such component, or several and no name."""
    components = list_components(nlp)
    names = list(components), nlp.component_names
    return components[choose_component(*names, name, "choose one with --name, or name=...")]


def pipe_settings(nlp: Language, elmo: Elmo, *, keep_layers: bool = True) -> dict[str, Any]:
    """RETURNS (dict): `disable` and `component_cfg` for `nlp.pipe`, so that it stops after a
    component, and no later one overwrites or removes its arrays."""
    if elmo.name not in nlp.pipe_names:
        raise ValueError(f"the component {elmo.name!r} is disabled, only {nlp.pipe_names} run")
    after = nlp.pipe_names[nlp.pipe_names.index(elmo.name) + 1 :]
    return {"disable": after, "component_cfg": {elmo.name: {"keep_layers": keep_layers}}}


def replace_listener_cfg(upstream: dict, listener: dict, *, frozen: bool) -> dict:
    """What `nlp.replace_listeners` writes into the config: the listener's own block, with the
    upstream's model instead of its name."""
    name = str(listener.get("@architectures"))
    if not name.startswith("spacy-elmo."):
        raise ValueError(
            f"cannot replace a listener inside {name}: model.tok2vec must be "
            "spacy-elmo.ElmoListener.v1 or spacy-elmo.ElmoTok2Vec.v1"
        )
    factor = {"grad_factor": 0.0} if frozen else {}
    return {**listener, **factor, "upstream": upstream}


def replace_listener(encoder: Model, listener: Model, upstream: Elmo) -> Model:
    """What `nlp.replace_listeners` puts where the listener was: a copy of the upstream's model."""
    if between := listener.attrs["link"].between:
        warnings.warn(
            f"the copy of {upstream.name!r} runs after {', '.join(between)}, and reads sentence by "
            f"sentence what {upstream.name!r} reads as a whole, if nothing before it sets sentence "
            "boundaries: evaluate the pipeline",
            stacklevel=3,
        )
    factor = 0.0 if upstream.frozen else listener.attrs["settings"].grad_factor
    encoder.attrs["gradient"] = SimpleNamespace(factor=factor)
    return encoder


@Language.factory(
    "elmo",
    assigns=["doc._.elmo_layers", "doc._.elmo_tokens", "doc._.elmo", "span._.elmo", "token._.elmo"],
    default_config=DEFAULT_CONFIG,
)
@dataclass(eq=False, repr=False)
class Elmo(Upstream):
    """Runs a biLM over docs and writes its activations to the docs (see `extensions`), for users
    and for components that listen (see `layers.listener`). What it does with docs is in `Upstream`.

    nlp (Language): The pipeline.
    name (str): The name of the component.
    model (Model): An `ElmoEncoder`, as the architectures build it.
    mix (Mix): From all layers to the vectors of `doc._.elmo_tokens`.
    keep_layers (bool): Keep the activations of all layers on the doc, too.
    set_vectors (bool): Make `.vector` and `.similarity()` use ELMo. These hooks stay in
        the process that made the doc: docs from `nlp.pipe(n_process=2)` come without them.
    batch_size (int): Maximum number of docs in a batch of `pipe`.
    frozen (bool): Do not change the biLM when the components that listen are trained.
    optimizer (Optional[Optimizer]): For the biLM, if it is not frozen; None for the pipeline's.
    activation_cache (Optional[ActivationCache]): Keeps what a frozen biLM computes while the
        components that listen are trained, until `end_training`.
    pooling (Optional[Pooling]): How tokens become the vector of a doc or span. None: what was
        fitted for the weights, else the mean of `doc._.elmo_tokens`.
    RAISES (ValueError): If batch_size is not positive, or the mix has weights to be trained.
    """

    def __post_init__(self) -> None:
        nlp, shim = self.nlp, get_shim(self.model)
        del self.nlp  # A component outlives its pipeline, as where it is sourced.
        check_range(f"{self.name}: batch_size", self.batch_size, 1)
        if any(node.param_names for node in self.mix.walk()):
            raise ValueError(
                f"{self.name}: nothing would train a {self.mix.name} as the component's own mix: "
                "choose one without weights to train, such as FrozenMix, and give this one to a "
                "listener"
            )
        if shim.language not in (None, nlp.lang) and nlp.lang != "xx":
            # Shown when the weights are loaded. A saved pipeline replaces them before that.
            shim.warning = (
                f"the weights of {self.name!r} were trained on text in {shim.language!r}, but the "
                f"pipeline's language is {nlp.lang!r}: name others in the config (model.weights)"
            )
        if shim.settings.stateful:  # The vectors depend on what ran before.
            self.activation_cache = None
        self.vocab = nlp.vocab
        self.listener_map = {}
        attrs = self.model.attrs
        attrs["replace_listener"] = replace_listener
        attrs["replace_listener_cfg"] = partial(replace_listener_cfg, frozen=self.frozen)
        # Saved with the component. All settings are in the config, which nothing may override.
        self.cfg: dict[str, Any] = {}

    def __repr__(self) -> str:
        facts = [*get_shim(self.model).facts().values(), self.mix.name]
        return f"Elmo({self.name!r}: {', '.join(facts)})"

    def load_weights(self, weights: Union[str, Path]) -> None:
        """Use other weights: a name, a folder, or a file."""
        set_bilm(self.model, load_bilm(weights))

    def from_disk(self, path: Union[str, Path], *, exclude: Iterable[str] = ()) -> Elmo:
        """See spaCy. RAISES (ValueError): If a file is damaged."""
        try:
            return super().from_disk(path, exclude=exclude)
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
            reason = error if isinstance(error, ValueError) else repr(error)
            text = f"cannot load the component {self.name!r} from {path}: {reason}"
            raise ValueError(text) from error

    def initialize(
        self,
        get_examples: Callable[[], Iterable[Example]],
        *,
        nlp: Optional[Language] = None,
        weights: Optional[str] = None,
    ) -> None:
        """Begin a training: read the weights, or undo the training that they have had since then
        (by this component, `load_weights` or a saved pipeline).

        weights (Optional[str]): From `[initialize.components.elmo]`, instead of the present ones.
        """
        if nlp is not None:
            # The moments and the schedules of the last training end with it.
            config = nlp.config.interpolate()["components"].get(self.name, {})
            if config.get("optimizer") is not None:
                self.optimizer = registry.resolve({"_": config["optimizer"]})["_"]
        self._run = RunState()
        if weights is not None:
            self.load_weights(weights)
        self.model.initialize()
        self.bilm.unfreeze()
