"""Write settings.md: every setting of a config, from the docstrings and signatures of the code.

python docs/settings.py
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from spacy_elmo.architectures import ElmoListener, PretrainedBiLM
from spacy_elmo.bilm import BiLMConfig, CharCNNConfig, LSTMConfig
from spacy_elmo.component import DEFAULT_CONFIG, Elmo
from spacy_elmo.inference import Settings
from spacy_elmo.pretraining import config
from spacy_elmo.segmenters import cut_doc

OUT = Path(__file__).with_suffix(".md")
# An entry of a docstring: its names, perhaps a type, and the text, with its further lines.
ENTRY = re.compile(r"^([a-z][\w, ]*?)(?: \(.+?\))?: (.*(?:\n +.*)*)", re.MULTILINE)
GROUPS = ("spacy_architectures", "thinc_layers", "spacy_misc", "spacy_loggers")
HEAD = """<!-- Written by docs/settings.py: change the docstrings, and run it. -->
# Settings

All settings of registered functions and of `spacy elmo pretrain`, with their defaults. `null` is
none. [vectors.md](vectors.md) has those of `[initialize.components.elmo]`,
[pretraining.md](pretraining.md) the loggers.
"""
# Parameters that are no settings, or have a block of their own.
BLOCKS = "nlp name model mix activation_cache"
UNSAID = "embedding_dim characters word_dim"
REQUIRED = inspect.Parameter.empty
KINDS = {bool: "true or false", int: "whole number", float: "number", str: "text", Path: "text"}
KINDS |= {type(None): "null"}


def described(*things: Any) -> dict[str, str]:
    """RETURNS (dict): What docstrings say about each name. The first that says something counts."""
    texts: dict[str, str] = {}
    for thing in things:
        for names, text in ENTRY.findall(inspect.getdoc(thing) or ""):
            for name in names.split(", "):
                texts.setdefault(name, " ".join(text.split()))
    return texts


def kind_of(hint: Any) -> str:
    """RETURNS (str): A type, as a config's author needs it."""
    origin, choices = get_origin(hint), get_args(hint)
    if origin is Literal:
        return ", ".join(f"`{json.dumps(choice)}`" for choice in choices)
    if origin is Union:
        return " or ".join(dict.fromkeys(map(kind_of, choices)))
    return KINDS.get(hint, "list" if origin in (tuple, Sequence) else "block")


def section(title: str, thing: Any, defaults: Mapping[str, Any] = {}, hidden: str = "") -> str:
    """RETURNS (str): A heading and the table of the parameters of a function or a dataclass."""
    common = described(
        Settings, Elmo, LSTMConfig, CharCNNConfig, ElmoListener, PretrainedBiLM, cut_doc
    )
    texts, rows = described(thing), []
    for name, parameter in inspect.signature(thing).parameters.items():
        if name in hidden.split():
            continue
        text = texts.get(name, "See `")
        text = common[name.removeprefix("char_")] if text.startswith("See `") else text
        default = defaults.get(name, parameter.default)
        shown = "required" if default is REQUIRED else f"`{json.dumps(default)}`"
        rows.append(f"| `{name}` | {kind_of(get_type_hints(thing)[name])} | {shown} | {text} |")
    about = (inspect.getdoc(thing) or "").split("\n\n")[0].replace("\n", " ")
    table = "\n".join(["| setting | type | default | |", "|---|---|---|---|", *rows])
    table = re.sub(r"\bNone\b", "null", table) if rows else "No settings."
    return "\n\n".join(filter(None, [f"### `{title}`", about, table])) + "\n"


def page() -> str:
    """RETURNS (str): The whole page, Markdown."""
    least = {"lstm": {"dim": 1}, "char_cnn": {"filters": [[1, 1]], "embedding": {"dim": 1}}}
    bilm = BiLMConfig.from_options(least)
    lstm = {**vars(bilm.lstm), "dim": REQUIRED, "projection_dim": REQUIRED}
    char_cnn = {**vars(bilm.char_cnn), "filters": REQUIRED}
    parts = [
        HEAD + "\n## `spacy elmo pretrain`\n",
        section("[paths]", config.PathsConfig, {"corpus": REQUIRED}),
        section("[system]", config.SystemConfig),
        section("[bilm.lstm]", LSTMConfig, lstm),
        section("[bilm.char_cnn]", CharCNNConfig, char_cnn, UNSAID),
        "For word input, leave it out. `[bilm.char_cnn.embedding]` has `dim`, the width of "
        "a character embedding (required).\n",
        section("[pretraining]", config.PretrainingConfig, hidden="loss optimizer logger"),
        section("[pretraining.loss]", config.LossConfig),
        section("[pretraining.optimizer]", config.OptimizerConfig),
        "## Pipelines\n",
        section("[components.elmo]", Elmo, DEFAULT_CONFIG, BLOCKS),
        "The blocks `model`, `mix` and `activation_cache` (or null) are below.\n",
    ]
    for group in GROUPS:
        ours = (x for x in entry_points(group=group) if x.module.startswith("spacy_elmo"))
        parts += [section(x.name, x.load()) for x in sorted(ours, key=lambda x: x.name)]
    return "\n".join(parts)


def pages() -> dict[str, str]:
    """RETURNS (dict): The page by the name of its file."""
    return {OUT.name: page()}


if __name__ == "__main__":
    OUT.write_text(page(), encoding="utf8")
