"""Where weights come from: a name, a folder, a file or a pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Optional, Union

import spacy

from .bilm import BiLM
from .bilm.formats import load

# Weights that come with the package, one folder per name, which begins with its language. Each has
# a model card beside it.
FOLDER = Path(__file__).parent / "weights"
DEFAULT = "en_elmo_sm"


def names() -> list[str]:
    """RETURNS (list): The names of the weights that come with the package."""
    if not FOLDER.is_dir():
        return []
    return sorted(path.name for path in FOLDER.iterdir() if path.is_dir())


def language_of(weights: Union[str, Path, None]) -> Optional[str]:
    """RETURNS (Optional[str]): The language of the text that weights were trained on, as spaCy
    names it; None for others than those that come with the package."""
    return str(weights).split("_")[0] if str(weights) in names() else None


def load_weights(weights: Union[str, Path]) -> BiLM:
    """Read a biLM.

    weights (Union[str, Path]): A name from `names()`, a folder of options and weights, a file of
        weights (HDF5 or safetensors) with its options beside it, or the folder of a pipeline.
    RAISES (ValueError): If there is no such thing, or it cannot be read.
    """
    if str(weights) in names():
        return load(FOLDER / str(weights))
    path = Path(weights)
    if not path.exists():
        known = ", ".join(names()) or "none in this version"
        raise ValueError(
            f"no weights {str(weights)!r}: neither a file or folder nor a known name ({known})"
        )
    return _of_pipeline(path) if (path / "config.cfg").is_file() else load(path)


def _of_pipeline(path: Path) -> BiLM:
    try:
        nlp = spacy.load(path)
    except (ImportError, OSError, ValueError) as error:
        raise ValueError(f"cannot load the pipeline {path}: {error}") from error
    for name, component in nlp.components:
        if nlp.get_pipe_meta(name).factory == "elmo":
            return component.bilm  # type: ignore[attr-defined]
    raise ValueError(f"the pipeline {path} has no elmo component, only {nlp.pipe_names}")
