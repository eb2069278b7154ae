"""ELMo for spaCy: contextual word vectors from a bidirectional language model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .bulk.columns import Embed
    from .component import Elmo
    from .tools.embedder import Embedder

__version__ = "0.1.0"
__all__ = ["Elmo", "Embed", "Embedder", "__version__"]


def __getattr__(name: str) -> Any:
    # Lazily, so that `spacy_elmo.bilm` stays usable without importing spaCy.
    if name == "Elmo":
        from .component import Elmo

        return Elmo
    if name == "Embed":
        from .bulk.columns import Embed

        return Embed
    if name == "Embedder":
        from .tools.embedder import Embedder

        return Embedder
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
