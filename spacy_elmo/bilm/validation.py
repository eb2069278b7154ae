"""Settings that pydantic checks, with messages for those who write config files."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, is_dataclass
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

from pydantic import ConfigDict, Strict, TypeAdapter, ValidationError

T = TypeVar("T")
# Code calls every field by its name, also one that has another name in files (its alias).
SETTINGS = ConfigDict(extra="forbid", populate_by_name=True)
Bool = Annotated[bool, Strict()]
Whole = Annotated[int, Strict()]
Number = Annotated[float, Strict()]
Text = Annotated[str, Strict()]

# What a setting must be, by pydantic's type of the error; other types keep pydantic's words.
_MESSAGES = {
    "greater_than_equal": "must be {ge:g} or more",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "path_type": "must be a path",
    "tuple_type": "must be a list",
    "dataclass_type": "must be a section",
    "too_long": "must have at most {max_length} items",
    "too_short": "must have {min_length} or more items",
}


def validate(kind: type[T], values: Any, prefix: str = "") -> T:
    """Make settings, a pydantic dataclass, of nested mappings.

    values (Any): The settings by name. One that is `dataclasses.MISSING` is reported as missing.
    prefix (str): What comes before the names in messages, such as "pretraining.".
    RAISES (ValueError): With one line for each setting that is unknown, missing or wrong.
    """
    try:
        return TypeAdapter(kind).validate_python(values)
    except ValidationError as error:
        message = "\n".join(_describe(kind, prefix, details) for details in error.errors())
        raise ValueError(message) from error


def check_batch(batch: object, name: str, advice: str) -> None:
    """RAISES (ValueError): If a string, a mapping or a table, or something that is not iterable, is
    in the place of several things, with advice on what to give."""
    is_table = isinstance(batch, Mapping) or hasattr(batch, "columns")
    if isinstance(batch, (str, bytes)) or is_table or not isinstance(batch, Iterable):
        found = " ".join(repr(batch).split())[:60]
        raise ValueError(f"{name}: {found} is a {type(batch).__name__}, not a batch: {advice}")


def token_lists(sentences: object) -> list[list[str]]:
    """RETURNS (list): Sentences as lists of tokens.
    RAISES (ValueError): If they, or one of them, are a string, or a token is none."""
    advice = "give a list of lists of tokens"
    check_batch(sentences, "sentences", advice)
    lists = []
    for number, sentence in enumerate(sentences):  # type: ignore[arg-type, var-annotated]
        check_batch(sentence, f"sentence {number}", advice)
        lists.append(list(sentence))
        if wrong := [token for token in lists[-1] if not isinstance(token, str)]:
            raise ValueError(f"sentence {number} has a token that is no string: {wrong[0]!r}")
    return lists


def check_range(name: str, value: float, least: float, below: float = math.inf) -> None:
    """RAISES (ValueError): If a setting is not at least `least` and less than `below`."""
    if not least <= value < below:
        bound = "" if below == math.inf else f" and less than {below:g}"
        raise ValueError(f"{name} must be {least:g} or more{bound}, found {value}")


def setting_names(kind: Any) -> list[str]:
    """RETURNS (list): The names that the fields of a pydantic dataclass have in files."""
    fields = kind.__pydantic_fields__.items()
    return [str(field.validation_alias or name) for name, field in fields]


def _describe(kind: Any, prefix: str, error: Any) -> str:
    """RETURNS (str): One of pydantic's errors: the setting, what is wrong, and its value."""
    name, what = prefix + ".".join(map(str, error["loc"])), error["type"]
    if what == "missing" or error["input"] is MISSING:
        return f"the setting {name} is missing"
    if what == "unexpected_keyword_argument":
        for section in error["loc"][:-1]:
            hint = get_type_hints(kind)[section]
            kind = next(filter(is_dataclass, (hint, *get_args(hint))))
        names = setting_names(kind)
        close = difflib.get_close_matches(str(error["loc"][-1]), names, 1)
        return f"no setting {name!r}" + (
            f": did you mean {close[0]!r}?" if close else f", only {', '.join(names)}"
        )
    message = error["msg"].replace("Input should be", "must be")
    message = str(error["ctx"]["error"]) if what == "value_error" else message
    message = _MESSAGES.get(what, "{0}").format(message, **error.get("ctx", {}))
    if what == "value_error" and not message.startswith("must be"):
        # A section's error, which names the settings and their values.
        return f"{name}.{message}" if error["loc"] else prefix + message
    return f"{name or prefix.rstrip('.')} {message}, found {error['input']!r:.80}"
