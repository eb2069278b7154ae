"""The config of a baseline: the same training, without ELMo."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from thinc.api import Config

ELMO_TOK2VEC = "spacy-elmo.ElmoTok2Vec.v1"
LISTENER = "spacy-elmo.ElmoListener.v1"
TEXTCAT_SUM = "spacy-elmo.TextCatSum.v1"

# Replaces a listener: spaCy's convolutional layers, in their default size.
CNN = {
    "@architectures": "spacy.HashEmbedCNN.v2",
    "pretrained_vectors": None,
    "width": 96,
    "depth": 4,
    "embed_size": 2000,
    "window_size": 1,
    "maxout_pieces": 3,
    "subword_features": True,
}


def without_elmo(config: Config) -> Config:
    """Take ELMo out of a config, and leave everything else as it is.

    An ElmoTok2Vec keeps its own layers (spacy.Tok2Vec.v2 of the same embed and encode); a
    TextCatSum, its bag of words (spacy.TextCatBOW.v3); a listener elsewhere becomes a HashEmbedCNN.

    config (Config): The config of a pipeline with ELMo, not interpolated.
    RETURNS (Config): A new one.
    """
    config = deepcopy(config)
    components = config["components"]
    names = {name for name, block in components.items() if block.get("factory") == "elmo"}
    config["nlp"]["pipeline"] = [n for n in config["nlp"]["pipeline"] if n not in names]
    for name in names:
        del components[name]
    for block in components.values():
        block.update(_replaced(block))
    return config


def _replaced(block: dict[str, Any]) -> dict[str, Any]:
    architecture = block.get("@architectures")
    if architecture == LISTENER:
        return dict(CNN)
    if architecture == ELMO_TOK2VEC:
        own = {name: block[name] for name in ("embed", "encode")}
        return {"@architectures": "spacy.Tok2Vec.v2", **own}
    if architecture == TEXTCAT_SUM:
        own = {name: value for name, value in block.items() if name[0] != "@" and name != "tok2vec"}
        return {"@architectures": "spacy.TextCatBOW.v3", "no_output_layer": False, **own}
    return {
        name: _replaced(value) if isinstance(value, dict) else value
        for name, value in block.items()
    }
