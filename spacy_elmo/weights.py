"""Resolve what the user names as weights or as a pipeline. All code that takes either uses this.

A source is the name of weights that come with the package, the name of an installed pipeline
package, the name of a downloaded model, or the path of a folder or a file. A name takes precedence
over a path that is spelled alike, with a warning. `Path` objects, and strings with a separator
(other than hf:owner/name), are always paths.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shlex
import warnings
from pathlib import Path
from typing import Optional, Union

import spacy
from spacy.language import Language
from spacy.util import find_matching_language, get_lang_class, is_package, load_config

from .bilm import BiLM
from .catalogue import find_download, read_facts, read_manifest
from .formats import OPTIONS, load, read_origin

# Weights that come with the package: a folder per name. The name begins with the language.
FOLDER = Path(__file__).parent / "weights"
DEFAULT = "en_elmo_sm"


def bundled_names() -> list[str]:
    """RETURNS (list): The names of the weights that come with the package."""
    folders = (path for path in FOLDER.glob("*") if path.is_dir())
    return sorted(path.name for path in folders if path.suffix != ".head")  # Output layers.


def find_source(source: Union[str, Path]) -> Path:
    """RETURNS (Path): The absolute path of the folder or file of weights or of a pipeline.
    RAISES (ValueError): If it does not exist."""
    named, path = _find_named(source), Path(os.path.expanduser(source))
    if named is None and str(source) and path.exists():
        return path.absolute()
    if named is None:
        raise ValueError(
            f"no pipeline and no weights {str(source)!r} on this machine: give a path, or a name "
            f"({', '.join(bundled_names())}, or of a pipeline package). Published weights have to "
            f"be downloaded first: `python -m spacy elmo download {shlex.quote(str(source))}`"
        )
    if is_pipeline(path) or (path / OPTIONS).is_file():
        warnings.warn(
            f"{str(source)!r} is read as a name, and means {named}. To use the folder of the same "
            f"name, write './{source}'",
            stacklevel=3,
        )
    return named


def absolute_source(source: Union[str, Path]) -> Union[str, Path]:
    """RETURNS (Union[str, Path]): The source, with a relative path made absolute, so that it stays
    valid after a change of the working directory."""
    # os.path raises no error for a folder without permission, or for ~ of an unknown user. A saved
    # pipeline may have such a path in its config, and does not need it.
    path = os.path.expanduser(source)
    is_path = str(source) and _find_named(source) is None and os.path.exists(path)
    return Path(path).absolute() if is_path else source


def is_pipeline(path: Path) -> bool:
    """RETURNS (bool): Whether this is the folder of a pipeline (and not of weights alone)."""
    return (path / "config.cfg").is_file()


def source_language(source: Union[str, Path, None]) -> Optional[str]:
    """RETURNS (Optional[str]): spaCy's code of the language that the biLM was trained on, from the
    meta.json of a pipeline or of NLPL, or the name of bundled weights. None if it is unknown."""
    if source is None:
        return None
    path = _find_named(source) or Path(os.path.expanduser(source))
    if path.parent == FOLDER:
        return path.name.split("_")[0]
    manifest = read_manifest(path if os.path.isdir(path) else path.parent)
    if lang := read_facts(path / "meta.json").get("lang") or manifest.get("lang"):
        return None if lang == "xx" else lang
    with contextlib.suppress(ImportError):  # Only languages that spaCy has.
        if code := read_origin(path).get("language"):  # ISO 639-3.
            return get_lang_class(find_matching_language(code) or code).lang
    return None


def load_bilm(source: Union[str, Path], component: Optional[str] = None) -> BiLM:
    """Read a biLM from weights or from a pipeline, whose other components are not loaded. If it has
    several elmo components, one has to be named.
    RAISES (ValueError): If the source does not exist or cannot be read."""
    path = find_source(source)
    if not is_pipeline(path):
        return load(path)
    try:
        # Neither the tokenizer nor what the settings of the component refer to is needed.
        config = load_config(path / "config.cfg", interpolate=True)
        names = config["nlp"]["pipeline"]
        found = [x for x in names if config["components"][x].get("factory") == "elmo"]
        advice = "write the weights of one to a folder with `spacy elmo export --name NAME`"
        name = choose_component(found, names, component, advice)
        elmo = spacy.blank("xx").add_pipe("elmo", config={"model": {"weights": None}})
        elmo.from_disk(path / name, exclude=["vocab"])  # type: ignore[attr-defined]
        return elmo.bilm  # type: ignore[attr-defined]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"cannot load the weights of the pipeline {path}: {error}") from error


def load_pipeline(source: Union[str, Path]) -> Language:
    """Load a pipeline. Weights alone become a blank pipeline with a sentencizer and ELMo.
    RAISES (ValueError): If the source does not exist or cannot be loaded."""
    path = find_source(source)
    try:
        if is_pipeline(path):
            # A package has its own `load` function.
            return spacy.load(str(source) if path == _find_package(source) else path)
        nlp = spacy.blank(source_language(path) or "xx")
        nlp.add_pipe("sentencizer")
        elmo = nlp.add_pipe("elmo", config={"model": {"weights": str(path)}})
        elmo.bilm  # type: ignore[attr-defined]  # noqa: B018  Load now, so that errors appear here.
        return nlp
    except (ImportError, OSError, ValueError, KeyError) as error:
        raise ValueError(f"cannot load the pipeline {source}: {error}") from error


def choose_component(
    names: list[str], pipeline: list[str], name: Optional[str], advice: str
) -> str:
    """RETURNS (str): The one of these elmo components that the user has named, or the only one.
    RAISES (ValueError): If the pipeline has none, or several, with this advice."""
    found = [x for x in names if name in (None, x)]
    if len(found) != 1:
        wanted = "" if name is None else f" {name!r}"
        none = f"there is no elmo component{wanted}, only {names or pipeline}"
        raise ValueError(f"there are several elmo components {names}: {advice}" if found else none)
    return found[0]


def _find_named(source: Union[str, Path]) -> Optional[Path]:
    """RETURNS (Optional[Path]): The folder of a name; None if the source is not a name."""
    if not isinstance(source, str):
        return None
    if source in bundled_names():
        return FOLDER / source
    return _find_package(source) or find_download(source)


def _find_package(source: Union[str, Path]) -> Optional[Path]:
    """RETURNS (Optional[Path]): The data folder of an installed pipeline package, which is not
    imported; None if the source is not the name of one."""
    if not (isinstance(source, str) and source.isidentifier() and is_package(source)):
        return None
    spec = importlib.util.find_spec(source)
    root = Path((spec and spec.origin) or source).parent
    return next((x.parent for x in root.glob(f"{source}-*/config.cfg")), None)
