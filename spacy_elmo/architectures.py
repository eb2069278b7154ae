"""The registered functions for the `model` block of an "elmo" component and of a task."""

from __future__ import annotations

from functools import partial
from typing import Any, Optional, Union

from spacy.tokens import Doc
from spacy.util import registry
from thinc.api import Model, chain
from thinc.types import Floats2d

from .inference import Settings
from .layers.batch_layers import BatchLayers
from .layers.encoder import ElmoEncoder, ElmoShim
from .layers.listener import ANY, Listener, make_source
from .layers.mix_docs import mix_docs
from .layers.mixes import Mix
from .segmenters import Segmenter, sentences
from .weights import DEFAULT, absolute_source, load_bilm, source_language


@registry.architectures("spacy-elmo.PretrainedBiLM.v1")
def PretrainedBiLM(
    weights: Optional[str] = DEFAULT,
    segmenter: Optional[Segmenter] = None,
    precision: str = Settings.precision,
    max_tokens_per_batch: Optional[int] = Settings.max_tokens_per_batch,
    type_cache_mb: float = Settings.type_cache_mb,
    stateful: bool = Settings.stateful,
    kernel: str = Settings.kernel,
    mixed_precision: bool = False,
) -> Model[list[Doc], BatchLayers]:
    """A biLM with existing weights. They are read at first use and saved with the pipeline, which
    then does not need the original file again.

    weights (Optional[str]): The name of weights that come with the package, of an installed
        pipeline package or of a downloaded model, or a path; None if they are given later.
    segmenter (Optional[Segmenter]): How docs are cut into sequences; the default is sentences.
    precision, max_tokens_per_batch, type_cache_mb, stateful, kernel: See `Settings`.
    mixed_precision (bool): Fine-tune with bfloat16 products. A processor that is not faster in
        them fine-tunes in float32, with a warning.
    RAISES (ValueError): If a setting has an impossible value.
    """
    load = None if weights is None else partial(load_bilm, absolute_source(weights))
    # Any text for a choice, up to here: `Settings` has the better message.
    choices: Any = (precision, max_tokens_per_batch, type_cache_mb, stateful, kernel)
    settings = Settings(*choices)
    shim = ElmoShim(load, settings, mixed_precision, source_language(weights))
    return ElmoEncoder(shim, segmenter or sentences())


@registry.architectures("spacy-elmo.ElmoListener.v1")
def ElmoListener(
    mix: Mix,
    upstream: Union[str, Listener] = ANY,
    grad_factor: float = 1.0,
) -> Model[list[Doc], list[Floats2d]]:
    """ELMo vectors for a component that takes a tok2vec.

    mix (Mix): From the layers to the vectors.
    upstream (Union[str, Model]): The name of the "elmo" component it listens to, or "*" for any.
        `nlp.replace_listeners` writes the block of an own biLM here.
    grad_factor (float): Scales the gradient that goes back to the biLM, if that is not frozen.
    """
    return chain(make_source(upstream, grad_factor), mix_docs(mix))
