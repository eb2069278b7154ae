"""The "elmo" pipeline component."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Callable, Optional, Union

from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example
from spacy.util import registry
from spacy.vocab import Vocab
from thinc.api import Config, Model, Optimizer

from . import processes  # noqa: F401 (ends the workers of `nlp.pipe`)
from .layers.activation_cache import ActivationCache
from .layers.encoder import BatchLayers, get_shim, set_bilm
from .layers.mixes import Mix
from .layers.not_serialized import LayerSettings
from .layers.upstream import RunState, Upstream
from .weights import load_bilm

# The settings that are not here are filled in from the signatures of the registered functions.
DEFAULT_CONFIG_STR = """
[elmo]
keep_layers = true
set_vectors = false
batch_size = 1000
frozen = true
optimizer = null

[elmo.activation_cache]
@misc = "spacy-elmo.ActivationCache.v1"

[elmo.model]
@architectures = "spacy-elmo.PretrainedBiLM.v1"

[elmo.model.segmenter]
@misc = "spacy-elmo.sentences.v1"

[elmo.mix]
@layers = "spacy-elmo.FrozenMix.v1"
"""
DEFAULT_CONFIG = Config().from_str(DEFAULT_CONFIG_STR)


@Language.factory(
    "elmo",
    assigns=["doc._.elmo_layers", "doc._.elmo_tokens", "doc._.elmo", "span._.elmo", "token._.elmo"],
    default_config=DEFAULT_CONFIG["elmo"],
)
def make_elmo(
    nlp: Language,
    name: str,
    model: Model[list[Doc], BatchLayers],
    mix: Mix,
    keep_layers: bool,
    set_vectors: bool,
    batch_size: int,
    frozen: bool,
    optimizer: Optional[Optimizer],
    activation_cache: Optional[ActivationCache],
) -> Elmo:
    shim = get_shim(model)
    if shim.language not in (None, nlp.lang) and nlp.lang != "xx":
        # Shown when the weights are loaded. A saved pipeline replaces them before that.
        shim.warning = (
            f"the weights of {name!r} were trained on text in {shim.language!r}, but the "
            f"pipeline's language is {nlp.lang!r}: name others in the config (model.weights)"
        )
    elmo = Elmo(
        nlp.vocab,
        model,
        name,
        mix=mix,
        keep_layers=keep_layers,
        set_vectors=set_vectors,
        batch_size=batch_size,
        frozen=frozen,
        optimizer=optimizer,
        activation_cache=activation_cache,
    )
    elmo.set_pipeline(nlp)
    return elmo


def pipe_settings(nlp: Language, elmo: Elmo, *, keep_layers: bool = True) -> dict[str, Any]:
    """Arguments for `nlp.pipe` with which the pipeline stops after the component, so that no later
    component overwrites or removes its arrays. The pipeline itself is not changed.

    nlp (Language): The pipeline.
    elmo (Elmo): One of its components.
    keep_layers (bool): Whether to write the layers of all docs, whatever the component's setting.
    RETURNS (dict): `disable` and `component_cfg`.
    RAISES (ValueError): If the component is disabled.
    """
    if elmo.name not in nlp.pipe_names:
        raise ValueError(f"the component {elmo.name!r} is disabled, only {nlp.pipe_names} run")
    after = nlp.pipe_names[nlp.pipe_names.index(elmo.name) + 1 :]
    return {"disable": after, "component_cfg": {elmo.name: {"keep_layers": keep_layers}}}


def replace_listener_cfg(upstream: dict, listener: dict, *, frozen: bool) -> dict:
    """What `nlp.replace_listeners` writes into the config: the listener's own block, with the
    upstream's model instead of its name.

    RAISES (ValueError): If the block is not one of ours.
    """
    name = str(listener.get("@architectures"))
    if name.split(".")[0] != "spacy-elmo":
        raise ValueError(
            f"cannot replace a listener inside {name}: model.tok2vec must be "
            "spacy-elmo.ElmoListener.v1 or spacy-elmo.ElmoTok2Vec.v1"
        )
    if frozen:
        listener = {**listener, "grad_factor": 0.0}
    return {**listener, "upstream": upstream}


def replace_listener(
    encoder: Model[list[Doc], BatchLayers],
    listener: Model[list[Doc], BatchLayers],
    upstream: Elmo,
) -> Model[list[Doc], BatchLayers]:
    """What `nlp.replace_listeners` puts where the listener was: a copy of the upstream's model."""
    factor = listener.attrs["settings"].grad_factor
    encoder.attrs["gradient"] = LayerSettings(factor=0.0 if upstream.frozen else factor)
    return encoder


@contextlib.contextmanager
def _naming_component(name: str, source: Any) -> Iterator[None]:
    """Name the component and the source in what spaCy, thinc and msgpack raise for damaged data."""
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        reason = error if isinstance(error, ValueError) else repr(error)
        raise ValueError(f"cannot load the component {name!r} from {source}: {reason}") from error


class Elmo(Upstream):
    """Runs a biLM over docs and writes its activations to the docs (see `extensions`), for users
    and for components that listen (see `layers.listener`). What it does with docs is in `Upstream`.

    vocab (Vocab): The shared vocabulary.
    model (Model): An `ElmoEncoder`, as the architectures build it.
    name (str): The name of the component.
    mix (Mix): From all layers to the vectors of `doc._.elmo_tokens`.
    keep_layers (bool): Keep the activations of all layers on the doc, too.
    set_vectors (bool): Make `.vector` and `.similarity()` use ELMo. These hooks stay in
        the process that made the doc: docs from `nlp.pipe(n_process=2)` come without them.
    batch_size (int): Maximum number of docs in a batch of `pipe`.
    frozen (bool): Do not change the biLM when the components that listen are trained.
    optimizer (Optional[Optimizer]): For the biLM, if it is not frozen; None for the pipeline's.
    activation_cache (Optional[ActivationCache]): Keeps what a frozen biLM computes while the
        components that listen are trained, until `end_training`.
    RAISES (ValueError): If batch_size is not positive, or the mix has weights to be trained.
    """

    def __init__(
        self,
        vocab: Vocab,
        model: Model[list[Doc], BatchLayers],
        name: str = "elmo",
        *,
        mix: Mix,
        keep_layers: bool = True,
        set_vectors: bool = False,
        batch_size: int = 1000,
        frozen: bool = True,
        optimizer: Optional[Optimizer] = None,
        activation_cache: Optional[ActivationCache] = None,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"{name}: batch_size must be 1 or more, found {batch_size}")
        if any(node.param_names for node in mix.walk()):
            raise ValueError(
                f"{name}: nothing would train a {mix.name} as the component's own mix: choose "
                "one without weights to train, such as FrozenMix, and give this one to a listener"
            )
        self.vocab = vocab
        self.model = model
        self.name = name
        self.mix = mix
        self.keep_layers = keep_layers
        self.set_vectors = set_vectors
        self.batch_size = batch_size
        self.optimizer = optimizer
        self.frozen = frozen
        # The vectors of a stateful biLM depend on what ran before.
        is_stateful = model.attrs["settings"].stateful
        self.activation_cache = None if is_stateful else activation_cache
        self.listener_map = {}
        self._run = RunState()
        model.attrs["replace_listener"] = replace_listener
        model.attrs["replace_listener_cfg"] = partial(replace_listener_cfg, frozen=frozen)
        # Saved with the component. All settings are in the config, which nothing may override.
        self.cfg: dict[str, Any] = {}

    def load_weights(self, weights: Union[str, Path]) -> None:
        """Use other weights.

        weights (Union[str, Path]): A name, a folder, or a file of weights.
        RAISES (ValueError): If they do not exist, or cannot be read.
        """
        set_bilm(self.model, load_bilm(weights))

    def from_bytes(self, bytes_data: bytes, *, exclude: Iterable[str] = ()) -> Elmo:
        """See spaCy. RAISES (ValueError): If the bytes are damaged."""
        with _naming_component(self.name, "bytes"):
            return super().from_bytes(bytes_data, exclude=exclude)

    def from_disk(self, path: Union[str, Path], *, exclude: Iterable[str] = ()) -> Elmo:
        """See spaCy. RAISES (ValueError): If a file is damaged."""
        with _naming_component(self.name, path):
            return super().from_disk(path, exclude=exclude)

    def set_pipeline(self, nlp: Language) -> None:
        """Remember the pipeline, to notice when the component is removed from it."""
        self._run.pipeline = weakref.ref(nlp)

    def initialize(
        self,
        get_examples: Callable[[], Iterable[Example]],
        *,
        nlp: Optional[Language] = None,
        weights: Optional[str] = None,
    ) -> None:
        """Begin a training: read the weights, if they are not there yet, or undo the training that
        they have had since they were read (by this component, `load_weights` or a saved pipeline).

        weights (Optional[str]): From `[initialize.components.elmo]`; overrides the weights that the
            `model` block names.
        RAISES (ValueError): If there are no weights.
        """
        if nlp is not None:
            self.set_pipeline(nlp)
            # The moments and the schedules of the last training end with it.
            config = nlp.config.interpolate()["components"].get(self.name, {})
            if config.get("optimizer") is not None:
                self.optimizer = registry.resolve({"_": config["optimizer"]})["_"]
        self._run.end_training()
        if weights is not None:
            self.load_weights(weights)
        self.model.initialize()
        self.bilm.unfreeze()
