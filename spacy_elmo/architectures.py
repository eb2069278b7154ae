"""The registered functions for the `model` block of an "elmo" component and of a task."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Optional, Union

from spacy.tokens import Doc
from spacy.util import registry
from thinc.api import (
    LayerNorm,
    Linear,
    Logistic,
    Maxout,
    Model,
    add,
    chain,
    list2ragged,
    noop,
    reduce_mean,
    softmax_activation,
    with_array,
    zero_init,
)
from thinc.types import Floats2d

from .inference import Settings
from .layers.batch_layers import BatchLayers
from .layers.encoder import ElmoEncoder, ElmoShim
from .layers.listener import ANY, Listener, make_source
from .layers.mix_docs import mix_docs
from .layers.mixes import Mix
from .segmenters import Segmenter, sentences
from .weights import DEFAULT, absolute_source, load_bilm, source_language

Vectors = list[Floats2d]


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
) -> Model[list[Doc], Vectors]:
    """ELMo vectors for a component that takes a tok2vec.

    mix (Mix): From the layers to the vectors.
    upstream (Union[str, Model]): The name of the "elmo" component it listens to, or "*" for any.
        `nlp.replace_listeners` writes the block of an own biLM here.
    grad_factor (float): Scales the gradient that goes back to the biLM, if that is not frozen.
    """
    return chain(make_source(upstream, grad_factor), mix_docs(mix))


@registry.architectures("spacy-elmo.ElmoTok2Vec.v1")
def ElmoTok2Vec(
    embed: Model[list[Doc], Vectors],
    encode: Model[Vectors, Vectors],
    elmo_input: Optional[Mix] = None,
    elmo_output: Optional[Mix] = None,
    upstream: Union[str, Listener] = ANY,
    grad_factor: float = 1.0,
) -> Model[list[Doc], Vectors]:
    """`[x; ELMo] -> encode -> [h; ELMo]` (Peters et al. 2018, section 3.3), over any of spaCy's
    layers for embedding and encoding.

    embed (Model): From docs to vectors x.
    encode (Model): From vectors to contextual vectors h. A maxout layer gives [x; ELMo] its width.
    elmo_input, elmo_output (Optional[Mix]): The mix at the input or the output; null for none.
    upstream, grad_factor: See `ElmoListener`.
    RAISES (ValueError): If there is no mix at all.
    """
    if elmo_input is None and elmo_output is None:
        raise ValueError(
            "spacy-elmo.ElmoTok2Vec.v1: give elmo_input, elmo_output or both a mix, or use "
            "spacy.Tok2Vec.v2, which needs no ELMo"
        )
    width = encode.maybe_get_dim("nO")
    # The source runs once, also for two mixes.
    layers: dict[str, Any] = {"source": make_source(upstream, grad_factor), "embed": embed}
    layers["reduce"] = noop()
    if elmo_input is not None:
        layers["input_mix"] = mix_docs(elmo_input)
        layers["reduce"] = with_array(Maxout(nO=width, nP=3, normalize=True))
    layers["encode"] = encode
    if elmo_output is not None:
        output = layers["output_mix"] = mix_docs(elmo_output)
        output_width = output.maybe_get_dim("nO")
        width = width + output_width if width and output_width else None
    return Model(
        "elmo_tok2vec",
        _forward_tok2vec,
        init=_init_tok2vec,
        dims={"nO": width},
        layers=[*layers.values()],
        refs=layers,
    )


def _forward_tok2vec(
    model: Model[list[Doc], Vectors], docs: list[Doc], is_train: bool
) -> tuple[Vectors, Callable]:
    if not docs:
        return [], lambda dh: docs
    layers, backprop_source = model.get_ref("source")(docs, is_train)
    x, backprop_embed = model.get_ref("embed")(docs, is_train)
    x, backprop_input = _append(model, "input_mix", x, layers, is_train)
    x, backprop_reduce = model.get_ref("reduce")(x, is_train)
    h, backprop_encode = model.get_ref("encode")(x, is_train)
    h, backprop_output = _append(model, "output_mix", h, layers, is_train)

    def backprop(dh: Vectors) -> list[Doc]:
        dh, d_layers = backprop_output(dh)
        dx, d_input = backprop_input(backprop_reduce(backprop_encode(dh)))
        parts = [d for d in (d_layers, d_input) if d is not None]
        backprop_source(sum(parts[1:], parts[0]) if parts else None)
        return backprop_embed(dx)

    return h, backprop


def _init_tok2vec(model: Model[list[Doc], Vectors], X: Any = None, Y: Any = None) -> None:
    if X is None:
        for layer in model.layers:
            layer.initialize()
        return
    layers, x = _initialize(model, "source", X), _initialize(model, "embed", X)
    for ref in ("input_mix", "output_mix"):
        if model.has_ref(ref):
            model.get_ref(ref).initialize(X=layers)
    x, _ = _append(model, "input_mix", x, layers, False)
    x = _initialize(model, "reduce", x)
    h, _ = _append(model, "output_mix", _initialize(model, "encode", x), layers, False)
    model.set_dim("nO", h[0].shape[1])


def _initialize(model: Model, ref: str, X: Any) -> Any:
    return model.get_ref(ref).initialize(X=X).predict(X)


def _append(
    model: Model, ref: str, X: Vectors, layers: Any, is_train: bool
) -> tuple[Vectors, Callable]:
    """Put the vectors of a mix beside others, if there is the mix. The backprop returns the
    gradients of the others and of the layers."""
    if not model.has_ref(ref):
        return X, lambda dY: (dY, None)
    vectors, backprop_mix = model.get_ref(ref)(layers, is_train)
    width = X[0].shape[1]

    def backprop(dY: Vectors) -> tuple[Vectors, Any]:
        # Copies, because the layers below may write into their gradients.
        d_vectors = [d[:, width:].copy() for d in dY]
        return [d[:, :width].copy() for d in dY], backprop_mix(d_vectors)

    return [model.ops.xp.concatenate(pair, axis=1) for pair in zip(X, vectors)], backprop


@registry.architectures("spacy-elmo.TextCatSum.v1")
def TextCatSum(
    tok2vec: Model[list[Doc], Vectors],
    exclusive_classes: bool,
    ngram_size: int = 1,
    length: int = 262144,
    nO: Optional[int] = None,
) -> Model[list[Doc], Floats2d]:
    """`f(BOW(doc) + W norm(mean(tok2vec(doc))) + b)`, with f = softmax for exclusive classes and
    the logistic function for others.

    The gradient of the loss reaches each summand directly. In spacy.TextCatEnsemble.v2, it reaches
    the bag of words through the last layer: a network beside it learns few texts by heart before.

    tok2vec (Model): From docs to vectors, such as `ElmoListener`.
    exclusive_classes (bool): Whether a doc has exactly one class: True for `textcat`, False for
        `textcat_multilabel`.
    ngram_size, length: See spacy.TextCatBOW.v3.
    nO (Optional[int]): The number of classes; None to take it from the data.
    """
    make_bow = registry.architectures.get("spacy.TextCatBOW.v3")
    bow = make_bow(exclusive_classes, ngram_size, no_output_layer=True, length=length, nO=nO)
    output = Linear(nO, init_W=zero_init)
    pooled: Model = chain(tok2vec, list2ragged(), reduce_mean(), LayerNorm(), output)
    activation = softmax_activation() if exclusive_classes else Logistic()
    model: Model = chain(add(bow, pooled), activation)
    model.set_ref("tok2vec", tok2vec)
    model.set_ref("bag_of_words", bow)
    model.set_ref("output_layer", output)
    model.attrs["multi_label"] = not exclusive_classes
    return model
