"""Write settings.md: every setting of a config, from the docstrings and signatures of the code.

python docs/settings.py
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from spacy_elmo import architectures, callbacks, mix_logger, segmenters
from spacy_elmo.bilm import BiLMConfig, CharCNNConfig, LSTMConfig
from spacy_elmo.component import DEFAULT_CONFIG, Elmo
from spacy_elmo.inference import Settings
from spacy_elmo.layers import activation_cache
from spacy_elmo.layers.textcat import TextCatSum
from spacy_elmo.layers.tok2vec import ElmoTok2Vec
from spacy_elmo.pretraining import loggers
from spacy_elmo.pretraining.config import (
    LossConfig,
    OptimizerConfig,
    PathsConfig,
    PretrainingConfig,
    SystemConfig,
)

OUT = Path(__file__).with_suffix(".md")
REQUIRED = object()
# An entry of a docstring: its names, perhaps a type, and the text.
_ENTRY = re.compile(r"^([a-z]\w*(?:, [a-z]\w*)*)(?: \(.+?\))?: (.*)$")
_REFERENCE = re.compile(r"^See `(\w+)`\.$")
# What "See `...`" in a docstring refers to.
_REFERRED = {"ElmoListener": architectures.ElmoListener, "Settings": Settings}
_HEAD = """<!-- Written by docs/settings.py: change the docstrings, and run it. -->
# Settings

All settings of registered functions and of `spacy elmo pretrain`, with their defaults. `null` is
none. [vectors.md](vectors.md) has those of `[initialize.components.elmo]`,
[pretraining.md](pretraining.md) the loggers.
"""


def described(thing: Any) -> dict[str, str]:
    """RETURNS (dict): What a docstring says about each name."""
    found: dict[str, str] = {}
    names: list[str] = []
    for line in (inspect.getdoc(thing) or "").splitlines():
        if match := _ENTRY.match(line):
            names = match[1].split(", ")
            found.update(dict.fromkeys(names, match[2]))
        elif names and line.startswith(" "):
            found.update({name: f"{found[name]} {line.strip()}" for name in names})
        else:
            names = []
    return found


def settings_of(thing: Any) -> dict[str, tuple[Any, Any]]:
    """RETURNS (dict): Type and default of the fields of a dataclass or the arguments of a
    function."""
    if not is_dataclass(thing):
        hints = get_type_hints(thing.__init__ if inspect.isclass(thing) else thing)
        parameters = inspect.signature(thing).parameters.values()
        return {
            p.name: (hints[p.name], REQUIRED if p.default is p.empty else p.default)
            for p in parameters
        }
    hints = get_type_hints(thing)
    return {
        f.name: (
            hints[f.name],
            f.default_factory()
            if f.default_factory is not MISSING
            else REQUIRED
            if f.default is MISSING
            else f.default,
        )
        for f in fields(thing)
    }


def text_of(name: str, *things: Any) -> str:
    """RETURNS (str): What the first of some docstrings says about a name.
    RAISES (KeyError): If none says anything."""
    for thing in things:
        text = described(thing).get(name)
        if text is None:
            continue
        if match := _REFERENCE.match(text):
            return text_of(name, _REFERRED[match[1]])
        return text
    raise KeyError(f"{things[0].__name__} says nothing about {name!r}")


def shown(value: Any) -> str:
    return "required" if value is REQUIRED else f"`{json.dumps(value)}`"


def kind_of(hint: Any) -> str:
    """RETURNS (str): A type, as a config's author needs it."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return ", ".join(f"`{json.dumps(choice)}`" for choice in args)
    if origin is Union:
        return " or ".join(dict.fromkeys(map(kind_of, args)))
    simple = {
        bool: "true or false", int: "whole number", float: "number", str: "text", Path: "text",
        type(None): "null",
    }  # fmt: skip
    if hint in simple:
        return simple[hint]
    return "list" if origin in (tuple, Sequence) else "block"


def table(rows: Iterable[tuple[str, str, str, str]]) -> str:
    lines = ["| setting | type | default | |", "|---|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return re.sub(r"\bNone\b", "null", "\n".join(lines)) + "\n"


def section(
    title: str,
    thing: Any,
    *others: Any,
    skip: Iterable[str] = (),
    defaults: Mapping[str, Any] = {},
    about: bool = False,
) -> str:
    """A heading and a table.

    thing (Any): A dataclass or a function whose settings these are.
    others (Any): Where else its names are described.
    defaults (Mapping): Defaults that are not those of `thing`.
    about (bool): Begin with the first paragraph of the docstring.
    """
    rows = []
    for name, (hint, default) in settings_of(thing).items():
        if name not in skip:
            value = shown(defaults.get(name, default))
            rows.append((f"`{name}`", kind_of(hint), value, text_of(name, thing, *others)))
    paragraphs = [f"### {title}"]
    if about:
        paragraphs.append((inspect.getdoc(thing) or "").split("\n\n")[0].replace("\n", " "))
    return "\n\n".join([*paragraphs, table(rows) if rows else "No settings.\n"])


def pretraining() -> list[str]:
    least = {"lstm": {"dim": 1}, "char_cnn": {"filters": [[1, 1]], "embedding": {"dim": 1}}}
    bilm = BiLMConfig.from_options(least)
    lstm = {**vars(bilm.lstm), "dim": REQUIRED, "projection_dim": REQUIRED}
    char_cnn = {**vars(bilm.char_cnn), "filters": REQUIRED, "embedding_dim": REQUIRED}
    width = text_of("embedding_dim", CharCNNConfig)
    hidden = {"embedding_dim", "n_characters", "characters", "word_dim"}
    return [
        "## Of `spacy elmo pretrain`\n",
        section("`[paths]`", PathsConfig, defaults={"corpus": REQUIRED}),
        section("`[system]`", SystemConfig),
        section("`[bilm.lstm]`", LSTMConfig, defaults=lstm),
        section("`[bilm.char_cnn]`", CharCNNConfig, defaults=char_cnn, skip=hidden)
        + "\nLeave the section out for word input. The vocabulary is the corpus's.\n",
        "### `[bilm.char_cnn.embedding]`\n\n"
        + table([("`dim`", "whole number", "required", width)]),
        section("`[pretraining]`", PretrainingConfig, skip={"loss", "optimizer", "logger"}),
        section("`[pretraining.loss]`", LossConfig),
        section("`[pretraining.optimizer]`", OptimizerConfig),
    ]  # fmt: skip


def registered(group: str, module: str) -> list[Callable]:
    """RETURNS (list): The functions of a module or package that `setup.py` registers."""
    return [one.load() for one in entry_points(group=group) if one.module.startswith(module)]


def blocks() -> list[str]:
    """The component and everything registered that its block and a task's can name."""
    bilm = architectures.PretrainedBiLM
    return [
        "## Of pipelines\n",
        section("`[components.elmo]`", Elmo, defaults=DEFAULT_CONFIG["elmo"],
                skip={"nlp", "name", "model", "mix", "activation_cache"})
        + "\nThe blocks `model`, `mix` and `activation_cache` (or null) are below.\n",
        section("`spacy-elmo.PretrainedBiLM.v1`", bilm, about=True),
        section("`spacy-elmo.ElmoListener.v1`", architectures.ElmoListener, about=True),
        section("`spacy-elmo.ElmoTok2Vec.v1`", ElmoTok2Vec, about=True),
        section("`spacy-elmo.TextCatSum.v1`", TextCatSum, about=True),
        *(
            section(
                f"`spacy-elmo.{function.__name__}.v1`", function, segmenters.Segmenter, about=True
            )
            for function in (
                *registered("thinc_layers", "spacy_elmo.layers.mixes"),
                *registered("spacy_misc", "spacy_elmo.segmenters"),
            )
        ),
        section("`spacy-elmo.ActivationCache.v1`", activation_cache.ActivationCache),
        section("`spacy-elmo.gradual_unfreezing.v1`", callbacks.gradual_unfreezing, about=True),
        section("`spacy-elmo.MixLogger.v1`", mix_logger.mix_logger, about=True),
        section("`spacy-elmo.PretrainConsoleLogger.v1`", loggers.console_logger, about=True),
    ]  # fmt: skip


def page() -> str:
    """RETURNS (str): The whole page, Markdown."""
    return "\n".join([_HEAD, *pretraining(), *blocks()])


if __name__ == "__main__":
    OUT.write_text(page(), encoding="utf8")
