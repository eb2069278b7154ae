"""spacy elmo init-config: ready-made configs."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

import spacy
import typer
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
        if lang != "en" or weights is not None:
            if pretraining:
                raise ValueError(
                    "--lang and --weights are for tasks: give the language to `spacy elmo prepare`"
                    ", and weights to start from to `spacy elmo pretrain` as --paths.init_from"
                )
            config = spacy.util.load_config(folder / f"{name}.cfg")
            config["nlp"]["lang"] = lang
            config["nlp"]["tokenizer"] = spacy.blank(lang).config["nlp"]["tokenizer"]
            config["paths"]["weights"] = weights
            text = config.to_str()
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
