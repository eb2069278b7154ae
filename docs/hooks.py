"""What `mkdocs build` does with the files of this repository, beside what mkdocs.yml says.

Pages are where they are in the repository, so that links between them are the same there and on
the site. Formulas become MathML, and drawings a part of the page: neither needs a script, and both
take the colours of the page.
"""

from __future__ import annotations

import html
import posixpath
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
# The pages, and what they link to.
SOURCES = (
    *("*.md", "docs/*.md", "docs/*.svg", "docs/*.css", "docs/*.json", "examples/*.py"),
    *("examples/notebooks/*.ipynb", "benchmarks/*.md", "benchmarks/*.py", "project/*.md"),
    *("project/en_elmo_sm/N*.md", "project/project.yml", "project/scripts/*.py"),
    *("spacy_elmo/weights/*/*.md", "spacy_elmo/configs/**/*.cfg"),
)
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
DRAWING = re.compile(r'<img alt="([^"]*)" src="([^"]*\.svg)" ?/?>')


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Take the files of the repository instead of those in docs."""
    paths = sorted(path for pattern in SOURCES for path in ROOT.glob(pattern))
    names = {path.relative_to(ROOT).as_posix(): str(path) for path in paths}
    ours = [File.generated(config, name, abs_src_path=names[name]) for name in names]
    return Files([*(file for file in files if file.src_dir != config.docs_dir), *ours])


def on_page_content(content: str, page: Page, **_: Any) -> str:
    """Put formulas and drawings into a page."""

    def formula(match: re.Match) -> str:
        tag, text = match[1], html.unescape(match[2])
        math = convert(text, display="block" if tag == "div" else "inline")
        return f'<{tag} class="formula">{math}</{tag}>'

    def drawing(match: re.Match) -> str:
        path = ROOT / posixpath.normpath(posixpath.join(page.url, match[2]))
        svg = re.sub(r"<style>.*?</style>", "", path.read_text(encoding="utf8"), flags=re.DOTALL)
        return svg.replace("<svg ", f'<svg role="img" aria-label="{match[1]}" ', 1)

    return DRAWING.sub(drawing, FORMULA.sub(formula, content))
