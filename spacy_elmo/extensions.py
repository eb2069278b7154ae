"""The extension attributes, registered when this module is imported.

| attribute         | value                                                  | stored?           |
|-------------------|--------------------------------------------------------|-------------------|
| doc._.elmo_layers | (L+1, tokens, 2P), layer 0 is the token encoder        | yes (keep_layers) |
| doc._.elmo_tokens | (tokens, width), the component's own mix               | yes               |
| token._.elmo      | (width,), the token's row                              | getter            |
| span._.elmo       | (width,), mean over the tokens that are not whitespace | getter            |
| doc._.elmo        | the same for the whole doc                             | getter            |
| doc._.elmo_sources| whose arrays these are; for this module only           | yes               |

All are None on a doc that no "elmo" component has seen. The width is 2P, except when the
component's mix is of another width (all layers concatenated). Arrays are those of the component's
ops: on a GPU CuPy's, which take up GPU memory for as long as the doc keeps them.

With several "elmo" components, the stored arrays are those of the last one that ran. Listeners find
the layers of each of them. Setting `doc._.elmo_layers` replaces them all, so that None frees them.

Beside each array, the doc keeps the words that its rows belong to. An array whose words are not
those of the doc is refused: the doc was retokenised. Beside layers, it also keeps the name of the
component and the checksum of its weights, by which `layers_of` tells whose layers they are.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Callable, NamedTuple, Optional, Union, cast

import numpy
from spacy.attrs import IS_SPACE, ORTH
from spacy.tokens import Doc, Span, Token
from thinc.api import get_array_module
from thinc.types import Floats1d, Floats2d, Floats3d

# Keys of a doc's user data. Those of spaCy's own form are left out where only a part of the doc is
# copied (`Span.as_doc`), which is right for arrays of the whole doc.
_LAYERS = ("._.", "elmo_layers", None, None)
_TOKENS = ("._.", "elmo_tokens", None, None)
# A dict: "tokens" are the words of `elmo_tokens`, "layers" is the source of `elmo_layers`, "others"
# are the layers of the components that ran before.
_SOURCES = ("._.", "elmo_sources", None, None)


class _Layers(NamedTuple):
    """Layers on a doc. All but the array may be unknown.

    component (Optional[str]): The name of the component that wrote them.
    checksum (Optional[str]): The checksum of the weights that they were computed with.
    words (Optional[ndarray]): The hashes (ORTH) of the doc's words at that time.
    array (Floats3d): Shape (L+1, tokens, 2P).
    """

    component: Optional[str]
    checksum: Optional[str]
    words: Optional[numpy.ndarray]
    array: Floats3d


def token_vector(token: Token) -> Optional[Floats1d]:
    """RETURNS (Optional[Floats1d]): The token's row of `doc._.elmo_tokens`."""
    doc = token.doc
    vectors = get_tokens(doc)
    if vectors is None:
        return None
    words = _sources(doc).get("tokens")
    _check_length(doc, len(vectors))
    # Only the token's own word is compared: the time for all tokens must not be quadratic.
    if words is not None and words[token.i] != token.orth:
        raise ValueError(_RETOKENISED)
    return vectors[token.i]


def span_vector(span: Span) -> Optional[Floats1d]:
    """RETURNS (Optional[Floats1d]): The mean over the span; zeros if it is all whitespace."""
    # Not in spaCy's type stubs. Reads the tokens of the span only, however long the doc is.
    return _mean(span.doc, span.start, cast(Any, span).to_array([ORTH, IS_SPACE]))


def doc_vector(doc: Doc) -> Optional[Floats1d]:
    """RETURNS (Optional[Floats1d]): The mean over the doc; zeros if it is all whitespace."""
    return _mean(doc, 0, doc.to_array([ORTH, IS_SPACE]))


def _mean(doc: Doc, start: int, values: numpy.ndarray) -> Optional[Floats1d]:
    """values (ndarray): ORTH and IS_SPACE of the tokens from `start` on."""
    vectors = get_tokens(doc)
    if vectors is None:
        return None
    _check_length(doc, len(vectors))
    part = slice(start, start + len(values))
    words = _sources(doc).get("tokens")
    if words is not None and not numpy.array_equal(words[part], values[:, 0]):
        raise ValueError(_RETOKENISED)
    # Whitespace tokens have zero vectors: they add nothing to the sum.
    n_words = int((values[:, 1] == 0).sum())
    return vectors[part].sum(axis=0) / max(n_words, 1)


def get_tokens(doc: Doc) -> Optional[Floats2d]:
    """Get `doc._.elmo_tokens`."""
    return _user_data(doc).get(_TOKENS)


def set_tokens(doc: Doc, vectors: Optional[Floats2d]) -> None:
    """Set `doc._.elmo_tokens`."""
    data = _user_data(doc)
    data[_TOKENS] = vectors
    data[_SOURCES] = {**_sources(doc), "tokens": None if vectors is None else _words(doc)}


def get_layers(doc: Doc) -> Optional[Floats3d]:
    """Get `doc._.elmo_layers`."""
    return _user_data(doc).get(_LAYERS)


def set_layers(doc: Doc, layers: Optional[Floats3d]) -> None:
    """Set `doc._.elmo_layers`. The layers of all components go."""
    data = _user_data(doc)
    data[_LAYERS] = layers
    source = None if layers is None else _source(None, None, _words(doc))
    data[_SOURCES] = {**_sources(doc), "layers": source, "others": []}


def write_layers(doc: Doc, component: str, checksum: str, layers: Optional[Floats3d]) -> None:
    """Put a component's layers on the doc, in place of those that it wrote before. The layers of
    other components are kept beside them, for listeners.

    component (str): The name of the component.
    checksum (str): The checksum of its weights.
    layers (Optional[Floats3d]): None if the component does not keep them.
    """
    others = [other for other in _stored(doc) if other.component not in (None, component)]
    data = _user_data(doc)
    data[_LAYERS] = layers
    source = None if layers is None else _source(component, checksum, _words(doc))
    data[_SOURCES] = {
        **_sources(doc),
        "layers": source,
        "others": [{**_source(*other[:3]), "array": other.array} for other in others],
    }


def layers_of(doc: Doc, component: str = "*", checksums: Sequence[str] = ()) -> Optional[Floats3d]:
    """Find the layers that a component computed.

    component (str): Its name, or "*" for the last one that ran.
    checksums (Sequence[str]): Of weights, the preferred ones first. Only layers that were computed
        with one of them are taken, whatever the name of the component was then; the name decides
        between several. If there are none, the name alone counts. Layers that the user has set
        are always taken.
    RETURNS (Optional[Floats3d]): Shape (L+1, tokens, 2P), or None if there are none.
    RAISES (ValueError): If the doc was retokenised since.
    """
    stored = list(_stored(doc))
    if checksums:
        ranks = [*checksums, None]
        possible = [
            one
            for one in stored
            if one.checksum in checksums
            or (one.checksum is None and component in ("*", one.component or component))
        ]
        possible.sort(key=lambda one: (ranks.index(one.checksum), one.component != component))
    else:
        possible = [one for one in stored if component == "*" or one.component in (None, component)]
    if not possible:
        return None
    chosen = possible[0]
    _check_length(doc, chosen.array.shape[1])
    if chosen.words is not None and not numpy.array_equal(chosen.words, _words(doc)):
        raise ValueError(_RETOKENISED)
    return chosen.array


def _stored(doc: Doc) -> Iterator[_Layers]:
    """YIELDS (_Layers): All layers on the doc, those of the last component first."""
    sources = _sources(doc)
    data = _user_data(doc)
    array = get_layers(doc)
    if array is not None:
        # Docs from before there were sources hold the names of the components, and no more.
        unknown = _source(data.get("elmo_upstream"), None, None)
        yield _Layers(**(sources.get("layers") or unknown), array=array)
    for other in sources.get("others", ()):
        yield _Layers(**other)
    if not sources:
        for key in data:
            if isinstance(key, tuple) and key[0] == "elmo_upstream":
                yield _Layers(key[1], None, None, data[key])


def _source(
    component: Optional[str], checksum: Optional[str], words: Optional[numpy.ndarray]
) -> dict[str, Any]:
    return {"component": component, "checksum": checksum, "words": words}


def _sources(doc: Doc) -> dict[str, Any]:
    return _user_data(doc).get(_SOURCES, {})


def _user_data(doc: Doc) -> dict[Any, Any]:
    return doc.user_data  # spaCy's type stubs know of strings as keys only.


def _words(doc: Doc) -> numpy.ndarray:
    return doc.to_array(ORTH)


_RETOKENISED = (
    "the doc was retokenised after the elmo component, which must come later in the pipeline: the "
    "ELMo vectors belong to other tokens"
)


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
    getter = next(getter for kind, getter in _GETTERS.items() if isinstance(obj, kind))
    vector = getter(obj)
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
    try:
        return _vector_norm(obj) > 0
    except ValueError:  # The vectors are gone, or belong to other tokens.
        return False


def _similarity(obj: Union[Doc, Span, Token], other: Any) -> float:
    if obj.vector.shape != other.vector.shape:
        raise ValueError(
            f"an ELMo vector of {len(obj.vector)} numbers cannot be compared with one of "
            f"{len(other.vector)}: the other text needs vectors of the same elmo component"
        )
    norms = float(obj.vector_norm) * float(other.vector_norm)
    cosine = float((obj.vector * other.vector).sum()) / norms if norms else 0.0
    return min(max(cosine, -1.0), 1.0)  # Rounding can exceed 1, which `math.acos` refuses.


_GETTERS: dict[Any, Callable] = {Doc: doc_vector, Span: span_vector, Token: token_vector}


def register() -> None:
    """Register the attributes. One of the user's own that exists already is left alone, with a
    warning."""
    stored: dict[str, tuple[Callable, Callable]] = {
        "elmo_layers": (get_layers, set_layers),
        "elmo_tokens": (get_tokens, set_tokens),
    }
    for name, (getter, setter) in stored.items():
        _register(Doc, name, getter, setter)
    for kind, getter in _GETTERS.items():
        _register(kind, "elmo", getter, None)
    if not Doc.has_extension("elmo_sources"):
        Doc.set_extension("elmo_sources", default=None)


def _register(kind: Any, name: str, getter: Callable, setter: Optional[Callable]) -> None:
    if not kind.has_extension(name):
        kind.set_extension(name, getter=getter, setter=setter)
    elif kind.get_extension(name)[2] is not getter:
        warnings.warn(
            f"the extension attribute {kind.__name__}._.{name} exists already, so that it will not "
            f"give ELMo vectors: register yours under another name ({kind.__name__}.set_extension)",
            stacklevel=2,
        )


register()
