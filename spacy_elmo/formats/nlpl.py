"""The `meta.json` of models from the NLPL repository (vectors.nlpl.eu): where weights come from."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Optional

from .archives import is_archive, read_member

_META = "meta.json"


class Origin(NamedTuple):
    """Where weights come from.

    language (Optional[str]): The ISO 639-3 code of the training text, if all of it has one.
    is_lemmatized (bool): Whether the training text was lemmas.
    url (str): The permanent address.
    author (str): The names of its creators.
    """

    language: Optional[str]
    is_lemmatized: bool
    url: str
    author: str


def read_origin(path: Path) -> Optional[Origin]:
    """Read the `meta.json` beside weights.

    path (Path): A file of weights, a folder with them, or either in an archive.
    RETURNS (Optional[Origin]): None if there is none, or if it is not of NLPL.
    """
    folder, meta = path if path.is_dir() else path.parent, None
    with contextlib.suppress(Exception):  # Of a damaged archive, any: its weights are refused.
        packed = is_archive(path)
        meta = json.loads(read_member(path, _META) if packed else (folder / _META).read_bytes())
    if not isinstance(meta, Mapping) or "corpus" not in meta:
        return None
    corpora, creators = _objects(meta["corpus"]), _objects(meta.get("creators"))
    languages = {str(corpus.get("language")).lower() for corpus in corpora}
    return Origin(
        language=languages.pop() if len(languages) == 1 else None,
        is_lemmatized=any(str(x.get("lemmatized")).lower() == "true" for x in corpora),
        url=str(meta.get("handle", "")),
        author=", ".join(str(x["name"]) for x in creators if "name" in x),
    )


def _objects(value: Any) -> list[Mapping[str, Any]]:
    values = value if isinstance(value, list) else [value]
    return [x for x in values if isinstance(x, Mapping)]
