"""Fast inference with a biLM: packed weights, precisions, a cache of word types."""

from .session import Session, current_session
from .settings import Settings

__all__ = ["Session", "Settings", "current_session"]
