"""The width of vectors, for spaCy's entity linker."""

from __future__ import annotations

from typing import Any

from spacy.pipeline import EntityLinker
from thinc.api import Model
from thinc.layers.chain import init as init_chain


def infer_width(component: Any) -> None:
    """Let an entity linker ask its tok2vec for the width of the vectors when it is initialised.
    spaCy asks when the model is made: a listener does not know its upstream then. Any other
    component is left alone."""
    model = component.model
    is_plain = isinstance(component, EntityLinker) and model.init is init_chain
    if is_plain and model.has_ref("tok2vec"):
        model.init = _init


def _init(model: Model, X: Any = None, Y: Any = None) -> None:
    tok2vec = model.get_ref("tok2vec")
    tok2vec.initialize(X=X)
    for node in model.walk():
        if node.name == "maxout" and node.has_dim("nO") is None:
            node.set_dim("nO", tok2vec.get_dim("nO"))
    init_chain(model, X, Y)
