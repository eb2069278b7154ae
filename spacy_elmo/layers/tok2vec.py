"""ELMo beside a task's own tok2vec: [x; ELMo] at its input, [h; ELMo] at its output."""

from __future__ import annotations

from typing import Any, Callable, Optional, Union

from spacy.tokens import Doc
from spacy.util import registry
from thinc.api import Maxout, Model, with_array
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
    RAISES (ValueError): If there is no mix at all, or `encode` has no known width.
    """
    if elmo_input is None and elmo_output is None:
        raise ValueError(
            "spacy-elmo.ElmoTok2Vec.v1: give elmo_input, elmo_output or both a mix, or use "
            "spacy.Tok2Vec.v2, which needs no ELMo"
        )
    # The source runs once, also for two mixes.
    source = make_source(upstream, grad_factor)
    layers: dict[str, Model] = {"source": source, "embed": embed, "encode": encode}
    width = encode.maybe_get_dim("nO")
    if elmo_input is not None:
        if width is None:
            raise ValueError(
                f"spacy-elmo.ElmoTok2Vec.v1: the layer {encode.name} has no known width (nO): "
                "choose an encode layer with a width setting"
            )
        layers["input_mix"] = mix_docs(elmo_input)
        layers["reduce"] = with_array(Maxout(nO=width, nP=_MAXOUT_PIECES, normalize=True))
    if elmo_output is not None:
        output = layers["output_mix"] = mix_docs(elmo_output)
        output_width = output.maybe_get_dim("nO")
        width = width + output_width if width and output_width else None
    nodes = list(layers.values())
    dims = {"nO": width}
    return Model("elmo_tok2vec", forward, init=init, dims=dims, layers=nodes, refs={**layers})


def forward(
    model: Model[list[Doc], Vectors], docs: list[Doc], is_train: bool
) -> tuple[Vectors, Callable]:
    if not docs:
        return [], lambda dh: docs
    layers, backprop_source = model.get_ref("source")(docs, is_train)
    input_mix, output_mix = model.maybe_get_ref("input_mix"), model.maybe_get_ref("output_mix")
    x, backprop_embed = model.get_ref("embed")(docs, is_train)
    if input_mix is not None:
        vectors, backprop_input = input_mix(layers, is_train)
        x, split_x = _hstack(model, x, vectors)
        x, backprop_reduce = model.get_ref("reduce")(x, is_train)
    h, backprop_encode = model.get_ref("encode")(x, is_train)
    if output_mix is not None:
        vectors, backprop_output = output_mix(layers, is_train)
        h, split_h = _hstack(model, h, vectors)

    def backprop(dh: Vectors) -> list[Doc]:
        d_layers = None
        if output_mix is not None:
            dh, d_vectors = split_h(dh)
            d_layers = backprop_output(d_vectors)
        dx = backprop_encode(dh)
        if input_mix is not None:
            dx, d_vectors = split_x(backprop_reduce(dx))
            d_input = backprop_input(d_vectors)
            d_layers = d_input if d_layers is None or d_input is None else d_layers + d_input
        backprop_source(d_layers)
        return backprop_embed(dx)

    return h, backprop


def init(model: Model[list[Doc], Vectors], X: Any = None, Y: Any = None) -> None:
    if X is None:
        for layer in model.layers:
            layer.initialize()
        return
    layers = _initialize(model, "source", X)
    x = _initialize(model, "embed", X)
    if model.has_ref("input_mix"):
        x, _ = _hstack(model, x, _initialize(model, "input_mix", layers))
        x = _initialize(model, "reduce", x)
    h = _initialize(model, "encode", x)
    if model.has_ref("output_mix"):
        h, _ = _hstack(model, h, _initialize(model, "output_mix", layers))
    model.set_dim("nO", h[0].shape[1])


def _initialize(model: Model, ref: str, X: Any) -> Any:
    """RETURNS: What a layer predicts for X, after it was initialised with X."""
    layer = model.get_ref(ref)
    layer.initialize(X=X)
    return layer.predict(X)


def _hstack(model: Model, left: Vectors, right: Vectors) -> tuple[Vectors, Callable]:
    """RETURNS (tuple): The vectors of both side by side, and a function that splits gradients."""
    joined = [model.ops.xp.concatenate(pair, axis=1) for pair in zip(left, right)]

    def split(dY: Vectors) -> tuple[Vectors, Vectors]:
        widths = [array.shape[1] for array in left]
        # Copies, because the layers below may write into their gradients.
        return (
            [d[:, :width].copy() for d, width in zip(dY, widths)],
            [d[:, width:].copy() for d, width in zip(dY, widths)],
        )

    return joined, split
