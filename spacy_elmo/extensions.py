"""The extension attributes. They are registered when this module is imported.

| attribute         | value                                                  | stored?           |
|-------------------|--------------------------------------------------------|-------------------|
| doc._.elmo_layers | (L+1, tokens, 2P), layer 0 is the token encoder        | yes (keep_layers) |
| doc._.elmo_tokens | (tokens, width), the component's own mix               | yes               |
| token._.elmo      | (width,), the token's row                              | getter            |
| span._.elmo       | (pooled width,), a mean over its tokens (see `pooling`)| getter            |
| doc._.elmo        | the same for the whole doc                             | getter            |

All are None on a doc that no "elmo" component has processed. The width is 2P, except when the
component's mix has another width (all layers concatenated). A pooling has a width of its own.
Arrays are those of the component's ops: on a GPU CuPy's, which take up GPU memory for as long as
the doc keeps them.

With several "elmo" components, the last one that ran gives the arrays. Listeners find the layers of
each. Setting `doc._.elmo_layers` replaces them all, so that None frees them.

Each array is stored in a dict: "array"; beside the mix "pooled", the rows that vectors of spans are
the mean of, or None; "words", the hashes (ORTH) of its rows, to refuse it if the doc was
retokenised; and for layers "component" and "checksum", the name of the component and the checksum
of its weights, which are None if the user has set them.
"""

from __future__ import annotations

from typing import Any, Callable, Optional, Union, cast

import numpy
from spacy.attrs import IS_SPACE, ORTH
from spacy.tokens import Doc, Span, Token
from thinc.api import get_array_module, to_numpy
from thinc.types import Floats1d, Floats2d, Floats3d

# Keys of a doc's user data. spaCy leaves out keys of this form where only a part of the doc is
# copied (`Span.as_doc`), which is right for arrays of the whole doc.
_LAYERS = ("._.", "elmo_layers", None, None)  # A list, with the last component's first.
_TOKENS = ("._.", "elmo_tokens", None, None)


def token_vector(token: Token) -> Optional[Floats1d]:
    """RETURNS (Optional[Floats1d]): The token's row of `doc._.elmo_tokens`."""
    doc = token.doc
    stored = _get(doc, _TOKENS)
    if stored is None:
        return None
    vectors = stored["array"]
    # Only the token's own word is compared: the time for all tokens must not be quadratic.
    _check(doc, len(vectors), stored["words"][token.i : token.i + 1], [token.orth])
    return vectors[token.i]


def span_vector(span: Union[Doc, Span]) -> Optional[Floats1d]:
    """RETURNS (Optional[Floats1d]): The mean over a doc or span of its tokens' rows, pooled if they
    are; zeros if it is all whitespace."""
    doc, start = (span, 0) if isinstance(span, Doc) else (span.doc, span.start)
    stored = _get(doc, _TOKENS)
    if stored is None:
        return None
    # `Span.to_array` is not in spaCy's type stubs. It reads only the tokens of the span.
    values = cast(Any, span).to_array([ORTH, IS_SPACE])
    tokens = slice(start, start + len(values))
    vectors = stored["array"] if stored.get("pooled") is None else stored["pooled"]
    _check(doc, len(vectors), stored["words"][tokens], values[:, 0])
    # Whitespace tokens have zero vectors: they add nothing to the sum.
    n_words = int((values[:, 1] == 0).sum())
    return vectors[tokens].sum(axis=0) / max(n_words, 1)


def write(
    doc: Doc,
    component: str,
    checksum: str,
    layers: Optional[Floats3d],
    tokens: Optional[Floats2d],
    pooled: Optional[Floats2d],
) -> None:
    """Write what a component computed to the doc, in place of what it wrote before: its layers, its
    mix, and the rows that are pooled. The layers of other components are kept for listeners."""
    words = doc.to_array(ORTH)
    own = {"component": component, "checksum": checksum, "words": words, "array": layers}
    others = [one for one in _get(doc, _LAYERS) or () if one["component"] not in (None, component)]
    data = cast(dict, doc.user_data)
    data[_LAYERS] = [own, *others]
    data[_TOKENS] = {"words": words, "array": tokens, "pooled": pooled}


def get_layers(
    doc: Doc, component: str = "*", checksum: Optional[str] = None, *, by_name: bool = False
) -> Optional[Floats3d]:
    """Get the layers that a component computed, shape (L+1, tokens, 2P), if there are any.

    component (str): Its name, or "*" for the last one that ran.
    checksum (Optional[str]): Checksum of the weights. It goes before the name, which decides
        between several with the same weights. Layers that the user has set always match.
    by_name (bool): Whether the name must match, too: other components with these weights may cut
        docs in another way, or compute in another precision.
    """
    matches = []
    for one in _get(doc, _LAYERS) or ():
        is_known = checksum is not None and one["checksum"] is not None
        has_name = component == "*" or one["component"] in (component, None)
        matches_all = not is_known or one["checksum"] == checksum
        if one["array"] is not None and matches_all and (has_name or (is_known and not by_name)):
            matches.append(one)
    if not matches:
        return None
    return _valid_array(doc, min(matches, key=lambda one: one["component"] != component), axis=1)


def _valid_array(doc: Doc, stored: dict[str, Any], *, axis: int) -> Any:
    """RETURNS (Any): An array with rows, along this axis, of the doc's tokens; or None."""
    array = stored["array"]
    if array is not None:
        _check(doc, array.shape[axis], stored["words"], doc.to_array(ORTH))
    return array


def _get(doc: Doc, key: tuple) -> Any:
    return cast(dict, doc.user_data).get(key)


def _check(doc: Doc, n_vectors: int, words: Any, present: Any) -> None:
    """Compare the words of some rows with the present ones."""
    if n_vectors != len(doc) or not numpy.array_equal(words, present):
        raise ValueError(
            f"the doc has {len(doc)} tokens, but ELMo vectors of {n_vectors} other ones: it was "
            "retokenised after the elmo component, which must come later in the pipeline"
        )


def move_mix_to_numpy(doc: Doc) -> None:
    """Keep the mix of a doc, and the rows that are pooled, in main memory."""
    stored = _get(doc, _TOKENS)
    for name in ("array", "pooled"):
        if stored.get(name) is not None:
            stored[name] = to_numpy(stored[name])


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
    vector = token_vector(obj) if isinstance(obj, Token) else span_vector(obj)
    if vector is None:
        raise ValueError(
            "set_vectors is on, but the doc has no ELMo vectors: a doc_cleaner has removed them, "
            "or span.as_doc has not copied them"
        )
    return vector


def _vector_norm(obj: Union[Doc, Span, Token]) -> float:
    vector = _vector(obj)
    return float(get_array_module(vector).linalg.norm(vector))


def _has_vector(obj: Union[Doc, Span, Token]) -> bool:
    try:
        return _vector_norm(obj) > 0
    except ValueError:  # The vectors are gone, or belong to other tokens.
        return False


def _similarity(obj: Union[Doc, Span, Token], other: Any) -> float:
    if isinstance(obj, Token) != isinstance(other, Token):  # Pooled vectors are of another kind.
        obj, other = (x.doc[x.i : x.i + 1] if isinstance(x, Token) else x for x in (obj, other))
    # Docs that were stored have theirs in main memory. spaCy keeps the norm of a span, even if its
    # vector changes.
    u, v = to_numpy(obj.vector), to_numpy(other.vector)
    norms = float(numpy.linalg.norm(u)) * float(numpy.linalg.norm(v))
    cosine = float(u @ v) / norms if norms else 0.0
    return min(max(cosine, -1.0), 1.0)  # Rounding can exceed 1, which `math.acos` refuses.


# Spawned workers get the attributes as a pickle, which has no lambdas.
def _get_layers(doc: Doc) -> Optional[Floats3d]:
    stored = _get(doc, _LAYERS)
    return _valid_array(doc, stored[0], axis=1) if stored else None


def _get_tokens(doc: Doc) -> Optional[Floats2d]:
    stored = _get(doc, _TOKENS)
    return None if stored is None else _valid_array(doc, stored, axis=0)


def _set_layers(doc: Doc, layers: Optional[Floats3d]) -> None:
    one = {"component": None, "checksum": None, "words": doc.to_array(ORTH), "array": layers}
    cast(dict, doc.user_data)[_LAYERS] = [] if layers is None else [one]


def _set_tokens(doc: Doc, vectors: Optional[Floats2d]) -> None:
    one = {"words": doc.to_array(ORTH), "array": vectors}
    cast(dict, doc.user_data)[_TOKENS] = None if vectors is None else one


def register() -> None:
    """Register the attributes. A notebook may have reloaded this module, and replaces its own."""
    attributes: list[tuple[Any, str, Callable, Optional[Callable]]] = [
        (Doc, "elmo_layers", _get_layers, _set_layers),
        (Doc, "elmo_tokens", _get_tokens, _set_tokens),
        (Doc, "elmo", span_vector, None),
        (Span, "elmo", span_vector, None),
        (Token, "elmo", token_vector, None),
    ]
    for kind, name, getter, setter in attributes:
        known = kind.get_extension(name)[2] if kind.has_extension(name) else None
        is_own = getattr(known, "__module__", None) == __name__
        kind.set_extension(name, getter=getter, setter=setter, force=is_own)


register()
