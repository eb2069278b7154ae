"""The extension attributes, registered when this module is imported.

| attribute         | value                                                  | stored?           |
|-------------------|--------------------------------------------------------|-------------------|
| doc._.elmo_layers | (L+1, tokens, 2P), layer 0 is the token encoder        | yes (keep_layers) |
| doc._.elmo_tokens | (tokens, width), the component's own mix               | yes               |
| token._.elmo      | (width,), the token's row                              | getter            |
| span._.elmo       | (width,), mean over the tokens that are not whitespace | getter            |
| doc._.elmo        | the same for the whole doc                             | getter            |

All are None on a doc that no "elmo" component has seen. The width is 2P, except when the
component's mix is of another width (all layers concatenated). Arrays are those of the component's
ops: on a GPU CuPy's, which take up GPU memory for as long as the doc keeps them.
"""

from __future__ import annotations

from typing import Any, Callable, Optional, Union

from spacy.attrs import IS_SPACE
from spacy.tokens import Doc, Span, Token
from thinc.api import get_array_module
from thinc.types import Floats1d, Floats2d, Floats3d

# The key, among a doc's user data, of the name of the component that wrote `doc._.elmo_layers`.
_UPSTREAM = "elmo_upstream"


def token_vector(token: Token) -> Optional[Floats1d]:
    """RETURNS (Optional[Floats1d]): The token's row of `doc._.elmo_tokens`."""
    vectors = _vectors(token.doc)
    return None if vectors is None else vectors[token.i]


def span_vector(span: Span) -> Optional[Floats1d]:
    """RETURNS (Optional[Floats1d]): The mean over the span; zeros if it is all whitespace."""
    return _mean(span.doc, span.start, span.end)


def doc_vector(doc: Doc) -> Optional[Floats1d]:
    """RETURNS (Optional[Floats1d]): The mean over the doc; zeros if it is all whitespace."""
    return _mean(doc, 0, len(doc))


def _mean(doc: Doc, start: int, end: int) -> Optional[Floats1d]:
    vectors = _vectors(doc)
    if vectors is None:
        return None
    # Whitespace tokens have zero vectors: they add nothing to the sum.
    n_words = int((doc.to_array(IS_SPACE)[start:end] == 0).sum())
    return vectors[start:end].sum(axis=0) / max(n_words, 1)


def _vectors(doc: Doc) -> Optional[Floats2d]:
    vectors = doc._.elmo_tokens
    if vectors is not None:
        _check_length(doc, len(vectors))
    return vectors


def set_layers(doc: Doc, upstream: str, layers: Optional[Floats3d]) -> None:
    """Put the layers of the component of this name on the doc, or None in place of older ones. If
    another component's stand there, they move aside, where `layers_of` still finds them."""
    data: dict[Any, Any] = doc.user_data
    data.pop((_UPSTREAM, upstream), None)
    previous = data.get(_UPSTREAM)
    if layers is None:
        if previous == upstream:
            doc._.elmo_layers = None
        return
    if previous not in (None, upstream) and doc._.elmo_layers is not None:
        data[_UPSTREAM, previous] = doc._.elmo_layers
    doc._.elmo_layers = layers
    data[_UPSTREAM] = upstream


def layers_of(doc: Doc, upstream: str = "*") -> Optional[Floats3d]:
    """Find the layers that a component computed.

    upstream (str): Its name, or "*" for the last one that ran.
    RETURNS (Optional[Floats3d]): Shape (L+1, tokens, 2P), or None if there are none.
    RAISES (ValueError): If the doc was retokenised since.
    """
    data: dict[Any, Any] = doc.user_data
    layers = doc._.elmo_layers
    if upstream not in ("*", data.get(_UPSTREAM, upstream)):
        layers = data.get((_UPSTREAM, upstream))
    if layers is not None:
        _check_length(doc, layers.shape[1])
    return layers


def _check_length(doc: Doc, n_vectors: int) -> None:
    if n_vectors != len(doc):
        raise ValueError(
            f"the doc has {len(doc)} tokens, but ELMo vectors of {n_vectors}: it was "
            "retokenised after the elmo component, which must come later in the pipeline"
        )


def install_vectors(doc: Doc) -> None:
    """Make `.vector`, `.vector_norm`, `.has_vector` and `.similarity()` of the doc, its spans and
    its tokens use ELMo, through spaCy's user hooks."""
    for hooks in (doc.user_hooks, doc.user_span_hooks, doc.user_token_hooks):
        hooks["vector"] = _vector
        if hooks is not doc.user_span_hooks:  # A span would return its vector (spaCy 3.8).
            hooks["vector_norm"] = _vector_norm
        hooks["has_vector"] = _has_vector
        hooks["similarity"] = _similarity


# Functions of the module, not closures: docs are pickled together with their hooks.
def _vector(obj: Union[Doc, Span, Token]) -> Floats1d:
    vector = obj._.elmo
    if vector is None:
        raise ValueError(
            "set_vectors is on, but the doc's ELMo vectors are gone (removed by a doc_cleaner, or "
            "left behind by span.as_doc?)"
        )
    return vector


def _vector_norm(obj: Union[Doc, Span, Token]) -> float:
    vector = _vector(obj)
    return float(get_array_module(vector).linalg.norm(vector))


def _has_vector(obj: Union[Doc, Span, Token]) -> bool:
    return obj._.elmo is not None and _vector_norm(obj) > 0


def _similarity(obj: Union[Doc, Span, Token], other: Any) -> float:
    if obj.vector.shape != other.vector.shape:
        raise ValueError(
            f"an ELMo vector of {len(obj.vector)} numbers cannot be compared with one of "
            f"{len(other.vector)}: the other text needs vectors of the same elmo component"
        )
    norms = float(obj.vector_norm) * float(other.vector_norm)
    return float((obj.vector * other.vector).sum()) / norms if norms else 0.0


def register() -> None:
    """Register the attributes. Does nothing for those that exist already."""
    for name in ("elmo_layers", "elmo_tokens"):
        if not Doc.has_extension(name):
            Doc.set_extension(name, default=None)
    getters: dict[Any, Callable] = {Doc: doc_vector, Span: span_vector, Token: token_vector}
    for kind, getter in getters.items():
        if not kind.has_extension("elmo"):
            kind.set_extension("elmo", getter=getter)


register()
