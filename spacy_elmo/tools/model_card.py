"""The model card of a pipeline: a README.md for a hub of models, made of what the pipeline says."""

from __future__ import annotations

import json
import re
from typing import Any

from spacy.cli.package import generate_readme
from spacy.language import Language

from ..component import Elmo

_TASKS = {
    "token-classification": ("ner", "tagger", "morphologizer", "parser", "senter", "spancat"),
    "text-classification": ("textcat", "textcat_multilabel"),
}
# The scores of spaCy that a hub lists: the name, its kind of metric, the task.
_SCORES = {
    "tag_acc": ("TAG (XPOS) Accuracy", "accuracy", "token-classification"),
    "pos_acc": ("POS (UPOS) Accuracy", "accuracy", "token-classification"),
    "morph_acc": ("Morph (UFeats) Accuracy", "accuracy", "token-classification"),
    "dep_uas": ("Unlabeled Attachment Score (UAS)", "f_score", "token-classification"),
    "dep_las": ("Labeled Attachment Score (LAS)", "f_score", "token-classification"),
    "ents_f": ("NER F Score", "f_score", "token-classification"),
    "cats_score": ("Text Classification Score", "f_score", "text-classification"),
}
_USE = """
## Use

With spacy-elmo and its extra `hub`:

```bash
python -m spacy elmo download hf:{repository} --output {name}
```

```python
import spacy

nlp = spacy.load("{name}")
doc = nlp("...")
doc[0]._.elmo  # the vector of a token in its sentence
```

In the config of another pipeline, without `--output` above: `weights = "hf:{repository}"`.
"""


def model_card(nlp: Language, repository: str) -> str:
    """RETURNS (str): The card, Markdown that begins with what a hub reads, as YAML.

    repository (str): Where it will be, "owner/name".
    """
    meta = nlp.meta
    name = f"{meta['lang']}_{meta['name']}"
    # JSON is YAML.
    head = "".join(f"{key}: {json.dumps(value)}\n" for key, value in _facts(nlp, name).items())
    text = [f"---\n{head}---\n\n# {name}\n"]
    text += [f"\n{meta['description']}\n"] if meta["description"] else []
    for pipe_name, elmo in nlp.components:
        if isinstance(elmo, Elmo):
            text.append(f"\n`{pipe_name}`: {_describe(elmo)}\n")
    performance = {k: x for k, x in meta["performance"].items() if not k.endswith("_loss")}
    text.append(f"\n{generate_readme({**meta, 'description': '', 'performance': performance})}\n")
    return "".join(text) + _USE.format(repository=repository, name=name)


def _facts(nlp: Language, name: str) -> dict[str, Any]:
    """RETURNS (dict): What a hub reads: library, tags, language, licence, scores."""
    meta = nlp.meta
    factories = {nlp.get_pipe_meta(pipe).factory for pipe in nlp.component_names}
    tags = [task for task, names in _TASKS.items() if factories & {*names}]
    facts: dict[str, Any] = {"library_name": "spacy", "tags": ["spacy", "elmo", *tags]}
    facts["language"] = ["multilingual" if meta["lang"] == "xx" else meta["lang"]]
    if licence := meta["license"]:
        # A hub takes names of a list, such as cc-by-sa-4.0, and other licences as text.
        short = "-".join(licence.lower().removeprefix("gnu ").split())
        is_short = re.fullmatch(r"(mit|apache|bsd|cc|a?l?gpl|mpl|unlicense)[\w.-]*", short)
        facts["license"] = short if is_short else "other"
        facts |= {} if is_short else {"license_name": licence}
    results = [
        {
            "task": {"name": title, "type": task},
            "metrics": [{"name": title, "type": kind, "value": meta["performance"][score]}],
        }
        for score, (title, kind, task) in _SCORES.items()
        if isinstance(meta["performance"].get(score), float)
    ]
    return {**facts, "model-index": [{"name": name, "results": results}]} if results else facts


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
