"""The bidirectional language model in plain PyTorch. Imports neither spaCy nor thinc."""

from .config import BiLMConfig, CharCNNConfig, LSTMConfig
from .model import BiLM

__all__ = ["BiLM", "BiLMConfig", "CharCNNConfig", "LSTMConfig"]
