"""What a name or a path stands for. Everything that takes weights or a pipeline asks here."""

from __future__ import annotations

import contextlib
import importlib.util
import warnings
from pathlib import Path
from typing import Optional, Union

import spacy
import srsly
from spacy.language import Language
from spacy.util import is_package, load_config

from .bilm import BiLM
from .bilm.formats import OPTIONS, load

# Weights that come with the package, one folder per name, which begins with its language. Each has
# a model card beside it.
FOLDER = Path(__file__).parent / "weights"
DEFAULT = "en_elmo_sm"


def names() -> list[str]:
    """RETURNS (list): The names of the weights that come with the package."""
    if not FOLDER.is_dir():
        return []
    return sorted(path.name for path in FOLDER.iterdir() if path.is_dir())


def find(what: Union[str, Path]) -> Path:
    """Find weights or a pipeline.

    what (Union[str, Path]): The name of weights that come with the package or of an installed
        pipeline package, or the path of a folder or a file. A name goes before a path that is
        spelled alike, with a warning. `Path` objects, and strings with a separator, are paths.
    RETURNS (Path): The absolute path of the folder or file.
    RAISES (ValueError): If there is no such thing.
    """
    named, path = _named(what), Path(what).expanduser()
    if named is None and not (str(what) and path.exists()):
        raise ValueError(
            f"no pipeline and no weights {str(what)!r}: give a name that comes with spacy-elmo "
            f"({', '.join(names()) or 'none in this version'}), the name of an installed pipeline "
            "package, or the path of a folder or a file. Published weights have to be downloaded "
            'first: see "Published weights" in the README'
        )
    if named is None:
        return path.absolute()
    if is_pipeline(path) or (path / OPTIONS).is_file():
        warnings.warn(
            f"{str(what)!r} is read as a name, and means {named}. To use the folder that is called "
            f"the same, write './{what}'",
            stacklevel=3,
        )
    return named


def absolute(what: Union[str, Path]) -> Union[str, Path]:
    """RETURNS (Union[str, Path]): What `find` takes for the same thing later, in whatever folder
    the process works by then."""
    path = Path(what).expanduser()
    return path.absolute() if _named(what) is None and path.exists() else what


def is_pipeline(path: Path) -> bool:
    """RETURNS (bool): Whether this is the folder of a pipeline (and not weights alone)."""
    return (path / "config.cfg").is_file()


def language_of(what: Union[str, Path, None]) -> Optional[str]:
    """RETURNS (Optional[str]): The language of the text that weights were trained on, as spaCy
    names it: that of their pipeline, or of weights that come with the package. None if unknown."""
    if what is None:
        return None
    path = _named(what) or Path(what).expanduser()
    if path.parent == FOLDER:
        return path.name.split("_")[0]
    lang = None
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        lang = srsly.read_json(path / "meta.json")["lang"]
    return None if lang == "xx" else lang


def load_weights(what: Union[str, Path], component: Optional[str] = None) -> BiLM:
    """Read a biLM.

    what (Union[str, Path]): See `find`: weights (a folder of options and weights, or a file of
        weights with its options beside it), or a pipeline, of which nothing else is loaded.
    component (Optional[str]): Which elmo component of a pipeline, if it has several.
    RAISES (ValueError): If there is no such thing, or it cannot be read.
    """
    path = find(what)
    return _of_pipeline(path, component) if is_pipeline(path) else load(path)


def load_pipeline(what: Union[str, Path]) -> Language:
    """Load a pipeline. Weights alone make one that splits sentences and embeds them.

    what (Union[str, Path]): See `find`.
    RAISES (ValueError): If there is no such thing, or it cannot be loaded.
    """
    path = find(what)
    if is_pipeline(path):
        try:
            # A package has a `load` function of its own.
            return spacy.load(str(what) if path == _package(what) else path)
        except (ImportError, OSError, ValueError, KeyError) as error:
            raise ValueError(f"cannot load the pipeline {what}: {error}") from error
    nlp = spacy.blank(language_of(path) or "xx")
    nlp.add_pipe("sentencizer")
    elmo = nlp.add_pipe("elmo", config={"model": {"weights": str(path)}})
    elmo.bilm  # type: ignore[attr-defined]  # noqa: B018  What is wrong with them is said now.
    return nlp


def _named(what: Union[str, Path]) -> Optional[Path]:
    """The folder that a name stands for; None if this is no name."""
    if isinstance(what, str) and what in names():
        return FOLDER / what
    return _package(what)


def _package(what: Union[str, Path]) -> Optional[Path]:
    """The data of an installed pipeline package. Nothing is imported."""
    if not (isinstance(what, str) and what.isidentifier() and is_package(what)):
        return None
    spec = importlib.util.find_spec(what)
    if spec is None or spec.origin is None:
        return None
    root = Path(spec.origin).parent
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        meta = srsly.read_json(root / "meta.json")
        return root / f"{meta['lang']}_{meta['name']}-{meta['version']}"
    return None  # A package, but no pipeline.


def _of_pipeline(path: Path, component: Optional[str]) -> BiLM:
    """Neither the other components nor the language's tokenizer are needed, nor what the elmo
    component's own settings name."""
    try:
        config = load_config(path / "config.cfg", interpolate=True)
        pipeline = config["nlp"]["pipeline"]
        found = [name for name in pipeline if config["components"][name].get("factory") == "elmo"]
        name = _one_of(found, component, pipeline)
        elmo = spacy.blank("xx").add_pipe("elmo", config={"model": {"weights": None}})
        elmo.from_disk(path / name, exclude=["vocab"])  # type: ignore[attr-defined]
        return elmo.bilm  # type: ignore[attr-defined]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"cannot load the weights of the pipeline {path}: {error}") from error


def _one_of(found: list[str], name: Optional[str], pipeline: list[str]) -> str:
    if not found:
        raise ValueError(f"it has no elmo component, only {pipeline}")
    if name is None and len(found) > 1:
        raise ValueError(
            f"it has several elmo components {found}: write the weights of one to a folder with "
            "`spacy elmo export PIPELINE OUT --name NAME`, and use that"
        )
    if name is not None and name not in found:
        raise ValueError(f"it has no elmo component {name!r}, only {found}")
    return name or found[0]
