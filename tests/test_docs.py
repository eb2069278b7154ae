"""docs/settings.md says what the code says."""

from __future__ import annotations

import runpy
from pathlib import Path

from spacy.util import registry

DOCS = Path(__file__).parents[1] / "docs"


def test_settings_are_up_to_date():
    page = runpy.run_path(str(DOCS / "settings.py"))["page"]()
    assert page == (DOCS / "settings.md").read_text(encoding="utf8"), "run python docs/settings.py"


def test_everything_that_is_registered_is_documented():
    text = (DOCS / "settings.md").read_text(encoding="utf8")
    for name in ("architectures", "layers", "misc", "callbacks", "loggers"):
        for function in getattr(registry, name).get_all():
            assert not function.startswith("spacy-elmo.") or f"### `{function}`" in text
