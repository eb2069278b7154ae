"""spacy elmo init-config: ready-made configs."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Optional

import spacy
import typer
from thinc.api import Config
from wasabi import msg

from ..files import atomic_file
from .util import check_overwrite, exit_on_error

FOLDER = Path(__file__).parents[1] / "configs"


def init_config_cli(
    name: str = typer.Argument(..., help="A task, or a size with --pretraining"),
    out: Path = typer.Argument(..., help="The config file to write"),
    pretraining: bool = typer.Option(False, "--pretraining", help="For spacy elmo pretrain"),
    lang: str = typer.Option("en", "--lang", "-l", help="Language of the pipeline"),
    weights: Optional[str] = typer.Option(None, "--weights", "-w", help="Other weights"),
    vectors: Optional[str] = typer.Option(
        None, "--vectors", "-v", help="A pipeline with a table of word vectors, to read beside ELMo"
    ),
    force: bool = typer.Option(False, "--force", "-F", help="Overwrite the file"),
) -> None:
    """
    Write a config for spacy train, or for pretraining.

    Tasks: tagger, morphologizer, parser, ner, textcat, textcat_tok2vec, textcat_multilabel,
    spancat, multitask. For pretraining: tiny, tiny-words, small, medium, original, ...
    """
    with exit_on_error():
        check_overwrite(out, force)
        folder = FOLDER / "pretraining" if pretraining else FOLDER
        choices = sorted(path.stem for path in folder.glob("*.cfg"))
        if name not in choices:
            raise ValueError(f"no config {name!r}: choose one of {', '.join(choices)}")
        text = (folder / f"{name}.cfg").read_text(encoding="utf8")
        if lang != "en" or weights is not None or vectors is not None:
            if pretraining:
                raise ValueError(
                    "--lang, --weights and --vectors are for tasks: give the language to `spacy "
                    "elmo prepare`, and weights to start from to `spacy elmo pretrain` as "
                    "--paths.init_from"
                )
            text = _adapt(folder / f"{name}.cfg", lang, weights, vectors).to_str()
        with atomic_file(out) as temporary:
            temporary.write_text(text, encoding="utf8")
    msg.good(f"Wrote {out}")
    if pretraining:
        print(f"python -m spacy elmo pretrain {out} RUN --paths.corpus CORPUS")
        return
    if lang != "en" and weights is None:
        msg.warn(f"There are no weights for {lang!r} in the package: name some as --paths.weights")
    data = "--paths.train TRAIN.spacy --paths.dev DEV.spacy"
    print(f"python -m spacy train {out} --output OUTPUT {data}")


def _adapt(path: Path, lang: str, weights: Optional[str], vectors: Optional[str]) -> Config:
    config = spacy.util.load_config(path)
    config["nlp"]["lang"] = lang
    config["nlp"]["tokenizer"] = spacy.blank(lang).config["nlp"]["tokenizer"]
    if lang != "en" or weights is not None:
        config["paths"]["weights"] = weights
    if vectors is not None:
        read_vectors(config, vectors)
    return config


def read_vectors(config: Config, vectors: str) -> None:
    """Let tasks read a table of word vectors beside ELMo. A listener gets the tok2vec of `ner`."""
    own = spacy.util.load_config(FOLDER / "ner.cfg")["components"]["ner"]["model"]["tok2vec"]
    models = [config["components"][x].get("model", {}) for x in config["nlp"]["pipeline"]]
    tasks = [model for model in models if "tok2vec" in model]
    if any("TextCatSum" in model["@architectures"] for model in tasks):
        raise ValueError("--vectors is for tasks on tokens and for textcat_tok2vec")
    for model in tasks:
        if "embed" not in model["tok2vec"]:
            model["tok2vec"] = deepcopy(own)
        model["tok2vec"]["embed"]["include_static_vectors"] = True
    config["paths"]["vectors"] = vectors
