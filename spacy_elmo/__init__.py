"""ELMo for spaCy: contextual word vectors from a bidirectional language model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .bulk.columns import EmbedColumns
    from .component import Elmo
    from .tools.embedder import EmbedTokens

__version__ = "0.1.0"
__all__ = ["Elmo", "EmbedColumns", "EmbedTokens", "__version__"]


def __getattr__(name: str) -> Any:
    # Lazily, so that `spacy_elmo.bilm` stays usable without importing spaCy.
    if name == "Elmo":
        from .component import Elmo

        return Elmo
    if name == "EmbedColumns":
        from .bulk.columns import EmbedColumns

        return EmbedColumns
    if name == "EmbedTokens":
        from .tools.embedder import EmbedTokens

        return EmbedTokens
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
