"""ELMo beside a task's own tok2vec: [x; ELMo] at its input, [h; ELMo] at its output."""

from __future__ import annotations

from typing import Any, Callable, Optional, Union

from spacy.tokens import Doc
from spacy.util import registry
from thinc.api import Maxout, Model, noop, with_array
from thinc.types import Floats2d

from .listener import ANY, Listener, make_source
from .mix_docs import mix_docs
from .mixes import Mix

_MAXOUT_PIECES = 3

Vectors = list[Floats2d]


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
    layers: dict[str, Model] = {"source": make_source(upstream, grad_factor), "embed": embed}
    layers["reduce"] = noop()
    if elmo_input is not None:
        layers["input_mix"] = mix_docs(elmo_input)
        layers["reduce"] = with_array(Maxout(nO=width, nP=_MAXOUT_PIECES, normalize=True))
    layers["encode"] = encode
    if elmo_output is not None:
        output = layers["output_mix"] = mix_docs(elmo_output)
        output_width = output.maybe_get_dim("nO")
        width = width + output_width if width and output_width else None
    refs: dict = {**layers}
    dims = {"nO": width}
    return Model("elmo_tok2vec", forward, init=init, dims=dims, layers=[*refs.values()], refs=refs)


def forward(
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


def init(model: Model[list[Doc], Vectors], X: Any = None, Y: Any = None) -> None:
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
    layer = model.get_ref(ref)
    layer.initialize(X=X)
    return layer.predict(X)


def _append(
    model: Model, ref: str, X: Vectors, layers: Any, is_train: bool
) -> tuple[Vectors, Callable]:
    """Put the vectors of a mix beside others, if there is the mix. The backprop returns the
    gradients of the others and of the layers."""
    if not model.has_ref(ref):
        return X, lambda dY: (dY, None)
    vectors, backprop_mix = model.get_ref(ref)(layers, is_train)

    def backprop(dY: Vectors) -> tuple[Vectors, Any]:
        widths = [array.shape[1] for array in X]
        # Copies, because the layers below may write into their gradients.
        d_vectors = [d[:, width:].copy() for d, width in zip(dY, widths)]
        dX = [d[:, :width].copy() for d, width in zip(dY, widths)]
        return dX, backprop_mix(d_vectors)

    return [model.ops.xp.concatenate(pair, axis=1) for pair in zip(X, vectors)], backprop
