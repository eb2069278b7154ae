"""Write api.md, the Python interface from its docstrings, in the manner of spaCy's reference,
commands.md, every option of every command, from the functions of the command line, and models.md,
what is known about published models, from their table.

python docs/reference.py
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from typer.models import ArgumentInfo

from spacy_elmo.catalogue import read_table
from spacy_elmo.cli import app

API = {
    "spacy_elmo": "EmbedTokens EmbedColumns ScoreTokens Elmo render",
    "spacy_elmo.weights": "load_bilm load_pipeline",
    "spacy_elmo.bilm": "BiLM",
    "spacy_elmo.bilm.mixes": "ScalarMix",
    "spacy_elmo.inference": "current_session Session Settings",
    "spacy_elmo.layers.mix_docs": "mix_docs",
    "spacy_elmo.tools.texts": "find_files read_docs",
    "spacy_elmo.tools.records": "Reader",
    "spacy_elmo.tools.neighbors": "find_neighbors Neighbor",
}
API_HEAD = """<!-- Written by docs/reference.py: change the docstrings, and run it. -->
# Python

What programs can import. The attributes of docs, spans and tokens are in the
[README](../README.md#attributes), the functions that configs name in [settings.md](settings.md).
L is the number of LSTM layers, P the width of one direction."""
COMMANDS_HEAD = """<!-- Written by docs/reference.py: change the commands' help, and run it. -->
# Options of commands

What `python -m spacy elmo COMMAND --help` prints. [cli.md](cli.md) explains the commands and shows
examples."""
MODELS_HEAD = """<!-- Written by docs/reference.py: change spacy_elmo/models.json, and run it. -->
# All published models

What is known about each model, as `python -m spacy elmo models NAME` prints it; what is not stated
by its authors is left out. Facts above a table hold for all models in it, unless it has others.
[families.md](families.md) helps to choose a model, and gets it. `shape`: the number of LSTM layers,
their cells, and the width of a direction."""
COLLECTIONS = {
    "bundled": "Part of the package",
    "allennlp": "AllenNLP",
    "aligned": "Aligned languages",
    "allennlp-archive": "Models of AllenNLP with ELMo inside",
    "german": "German",
    "nlpl": "NLPL",
    "manylangs": "ELMoForManyLangs",
    "embeddia": "EMBEDDIA",
    "deeppavlov": "DeepPavlov",
}
# Facts of the table of models, and what the page calls them.
FACTS = "family lang id shape parameters size tokens trained_on licence cite notes"
CALLED = {"family": "format", "lang": "language", "id": "number", "trained_on": "trained on"}
# How an entry of a docstring begins: names, perhaps a type, and the text.
ENTRY = re.compile(r"([A-Za-z_][\w, ]*?)(?: \(([^:]+)\))?: (.*)")
RESULTS = ("RETURNS", "YIELDS", "RAISES")
KINDS = {bool: "flag", int: "whole number", float: "number", Path: "path"}
NO_DEFAULT = inspect.Parameter.empty


def text_of(text: str) -> str:
    """RETURNS (str): Text that has no HTML, outside of `code`."""
    parts = text.split("`")
    return "`".join(part if i % 2 else part.replace("<", "&lt;") for i, part in enumerate(parts))


def table(head: str, rows: list[tuple[str, ...]]) -> str:
    """RETURNS (str): A table, or nothing if there are no rows."""
    lines = [f"| {head} |", "|" + "---|" * len(rows[0])] if rows else []
    cells = ([text_of(cell).replace("|", "&#124;") for cell in row] for row in rows)
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in cells)])


def entries(text: str, names: set[str]) -> Iterator[tuple[list[str], str, str]]:
    """YIELDS (tuple): Names, type and text of each entry; without names, what is none."""
    found, kind, lines = [""], "", []
    for line in text.splitlines():
        match = ENTRY.fullmatch(line)
        begins = match and {*match[1].split(", ")} <= {*names, *RESULTS}
        if begins or (not line and found != [""]):  # What follows an empty line is text again.
            yield found, kind, "\n".join(lines)
            found, kind, lines = [""], "", []
        if begins:
            found, kind, line = match[1].split(", "), match[2] or "", match[3]
        lines.append(line if found == [""] else line.strip())
    yield found, kind, "\n".join(lines)


def shown(hint: Any) -> str:
    """RETURNS (str): A type as the source has it."""
    text = hint if isinstance(hint, str) else inspect.formatannotation(hint)
    text = re.sub(r"ForwardRef\('(.*?)'\)", r"\1", text)
    return re.sub(r"\b(?:\w+\.)+(?=\w)", "", text).replace(" | ", " or ")


def described(title: str, thing: Any, level: str) -> str:
    """RETURNS (str): A heading, the text, and the table of the parameters and the results."""
    parameters = dict(inspect.signature(thing).parameters) if callable(thing) else {}
    parameters.pop("self", None)
    texts, types, about = {}, {}, []
    for names, kind, text in entries(inspect.cleandoc(thing.__doc__), {*parameters}):
        about += [text.strip()] if names == [""] else []
        for name in filter(None, names):
            texts[name], types[name] = " ".join(text.split()), kind
    rows = []
    for name, parameter in parameters.items():
        default = parameter.default
        short = f"{type(default).__name__}()" if len(repr(default)) > 30 else repr(default)
        label = f"`{name}`" if default is NO_DEFAULT else f"`{name} = {short}`"
        hint = types.get(name) or shown(parameter.annotation)
        rows.append((label, f"`{hint}`", texts.get(name, "")))
    rows += [(f"**{x}**", f"`{types[x]}`", texts[x]) for x in RESULTS if x in texts]
    parts = [f"{level} `{title}`", *map(text_of, about), table("name | type |", rows)]
    return "\n\n".join(filter(None, parts))


def members(cls: Any) -> dict[str, Any]:
    """RETURNS (dict): The public methods and properties of a class that say what they are."""
    bases = [x for x in cls.__mro__ if x.__module__.startswith("spacy_elmo")]
    found = {name: value for base in reversed(bases) for name, value in vars(base).items()}
    return {
        name: value
        for name, value in found.items()
        if (isinstance(value, property) or inspect.isfunction(value)) and value.__doc__
        if name == "__call__" or not name.startswith("_")
    }


def api() -> str:
    """RETURNS (str): api.md."""
    parts = [API_HEAD]
    for module, names in API.items():
        parts.append(f"## `{module}`")
        for name in names.split():
            thing = getattr(import_module(module), name)
            parts.append(described(name, thing, "###"))
            found = members(thing) if inspect.isclass(thing) else {}
            parts += [described(f"{name}.{x}", value, "####") for x, value in found.items()]
    return "\n\n".join(parts) + "\n"


def option(name: str, hint: Any, info: Any) -> tuple[str, ...]:
    """RETURNS (tuple): Names, kind, default and text of a parameter of a command."""
    is_argument, is_list = isinstance(info, ArgumentInfo), get_origin(hint) is list
    kind = next(x for x in get_args(hint) or [hint] if x is not type(None))
    if is_argument:
        names = [info.metavar or name.upper() + "..." * is_list]
    else:
        names = [x for text in info.param_decls or [f"--{name}"] for x in text.split("/")]
        names += ["--no-" + name] if kind is bool and info.default and len(names) == 1 else []
    default = info.default.value if isinstance(info.default, Enum) else info.default
    default = default.name if isinstance(default, Path) else default
    marks = {"True": "on", "False": "", "None": "", "[]": "", "Ellipsis": "required"}
    takes = KINDS.get(kind, "text")
    if issubclass(kind, Enum):
        takes = ", ".join(f"`{choice.value}`" for choice in kind)
    takes += ", may be repeated" * (is_list and not is_argument)
    shown_default = marks.get(str(default), f"`{default}`")
    return ", ".join(f"`{x}`" for x in names), takes, shown_default, info.help or ""


def commands() -> str:
    """RETURNS (str): commands.md."""
    parts = [COMMANDS_HEAD]
    for command in sorted(app.registered_commands, key=lambda x: str(x.name)):
        function: Any = command.callback
        hints, parameters = get_type_hints(function), inspect.signature(function).parameters
        rows = [option(x, hints[x], y.default) for x, y in parameters.items() if x != "ctx"]
        about = text_of(inspect.cleandoc(function.__doc__))
        parts += [f"## `{command.name}`", about, table("argument | type | default |", rows)]
    return "\n\n".join(parts) + "\n"


def models() -> str:
    """RETURNS (str): models.md."""
    parts, everything = [MODELS_HEAD], read_table().values()
    for collection, title in COLLECTIONS.items():
        found = [x for x in everything if x["collection"] == collection and x.get("listed", True)]
        known = {x: [str(model.get(x) or "") for model in found] for x in FACTS.split()}
        known["parameters"] = [x and f"{int(x):,}" for x in known["parameters"]]
        # What most models of a section have in common is said once, if it is known of all.
        common = {}
        for x, values in known.items():
            text, count = Counter(values).most_common(1)[0]
            if count == len(found) or (x != "lang" and all(values) and 2 * count > len(found)):
                common[x] = text
                known[x] = ["" if value == text else value for value in values]
        lines = [f"- {CALLED.get(x, x)}: {text}" for x, text in common.items() if text]
        columns = [x for x, values in known.items() if any(values)]
        names = [f"`{model['name']}`" for model in found]
        rows = [*zip(names, *(known[x] for x in columns))]
        head = " | ".join(["name", *(CALLED.get(x, x) for x in columns)])
        parts += [f"## {title}", "\n".join(lines), table(head, rows)]
    return "\n\n".join(filter(None, parts)) + "\n"


def pages() -> dict[str, str]:
    """RETURNS (dict): The pages by the names of their files."""
    return {"api.md": api(), "commands.md": commands(), "models.md": models()}


if __name__ == "__main__":
    for name, text in pages().items():
        (Path(__file__).parent / name).write_text(text, encoding="utf8")
