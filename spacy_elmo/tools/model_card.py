"""The model card of a pipeline: a README.md for a hub of models, made of what the pipeline says."""

from __future__ import annotations

import json
import re
from typing import Any

from spacy.cli.package import generate_readme
from spacy.language import Language

from ..component import Elmo

_TASKS = {
    "token-classification": {"ner", "tagger", "morphologizer", "parser", "senter", "spancat"},
    "text-classification": {"textcat", "textcat_multilabel"},
}
# The licences that a hub knows by a short name, without the word "licence".
_LICENCE = re.compile(
    r"mit|apache-2\.0|bsd-[23]-clause|cc0-1\.0|cc-by(-nc)?(-sa|-nd)?-[234]\.0|mpl-2\.0|unlicense"
    r"|l?gpl-3\.0|gpl-2\.0|lgpl-2\.1|agpl-3\.0"
)
_USE = """
## Use

With spacy-elmo and its extra `hub`:

```bash
python -m spacy elmo download hf:{repository} --output {name}
```

```python
import spacy

nlp = spacy.load("{name}")
```
"""


def model_card(nlp: Language, repository: str) -> str:
    """RETURNS (str): The card, Markdown that begins with what a hub reads, as YAML.

    repository (str): Where it will be, "owner/name".
    """
    meta = nlp.meta
    name = f"{meta['lang']}_{meta['name']}"
    # JSON is YAML.
    facts = "".join(f"{key}: {json.dumps(value)}\n" for key, value in _facts(nlp).items())
    described = [f"`{pipe}`: {_describe(x)}" for pipe, x in nlp.components if isinstance(x, Elmo)]
    # A pipeline that was not trained has none. What was not measured is 0 or None.
    performance = meta.get("performance", {})
    scores = {k: x for k, x in performance.items() if x and not k.endswith("_loss")}
    table = generate_readme({**meta, "description": "", "performance": scores})
    parts = [f"---\n{facts}---", f"# {name}", meta["description"], *described, table]
    return "\n\n".join(filter(None, parts)) + "\n" + _USE.format(repository=repository, name=name)


def _facts(nlp: Language) -> dict[str, Any]:
    """RETURNS (dict): Library, tags, language and licence, as a hub names them."""
    lang, licence = nlp.meta["lang"], nlp.meta["license"]
    factories = {nlp.get_pipe_meta(pipe).factory for pipe in nlp.component_names}
    tags = ["spacy", "elmo", *(task for task, names in _TASKS.items() if factories & names)]
    facts: dict[str, Any] = {"library_name": "spacy", "tags": tags}
    facts["language"] = ["multilingual" if lang == "xx" else lang]
    if short := "-".join(re.sub(r"\b(gnu|licen[cs]e)\b", "", licence.lower()).split()):
        known = {"license": short}
        facts |= known if _LICENCE.fullmatch(short) else {"license": "other", "license_name": short}
    return facts


def _describe(elmo: Elmo) -> str:
    """RETURNS (str): The size of its biLM, and the shapes of its vectors."""
    bilm = elmo.bilm
    number = sum(parameter.numel() for parameter in bilm.parameters())
    width = bilm.pooling.width if bilm.pooling else bilm.config.output_dim
    return (
        f"a bidirectional language model of {number / 1e6:.1f} million parameters. Tokens have "
        f"{bilm.config.n_activations} layers × {bilm.config.output_dim}, docs and spans vectors of "
        f"{width}."
    )
