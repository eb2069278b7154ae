"""ELMo for spaCy: contextual word vectors from a bidirectional language model."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .bulk.columns import EmbedColumns
    from .component import Elmo
    from .pretraining.scores import ScoreTokens
    from .tools.embedder import EmbedTokens
    from .visualize import render

__version__ = "0.1.0"
__all__ = ["Elmo", "EmbedColumns", "EmbedTokens", "ScoreTokens", "render", "__version__"]
_MODULES = {
    "Elmo": "component",
    "EmbedColumns": "bulk.columns",
    "EmbedTokens": "tools.embedder",
    "ScoreTokens": "pretraining.scores",
    "render": "visualize",
}


def __getattr__(name: str) -> Any:
    # Lazily, so that `spacy_elmo.bilm` stays usable without importing spaCy.
    if name in _MODULES:
        return getattr(import_module(f".{_MODULES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
