"""spacy elmo convert: make a pipeline of published weights."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Optional

import spacy
import typer
from spacy.language import Language
from wasabi import msg

from ..catalogue import find_download, read_manifest
from ..files import atomic_folder, remove_folder, sha256
from ..formats import FORMATS, load, read_origin, round_to_half, unpacked
from ..layers.encoder import set_bilm
from ..pretraining.head import HEAD_FILES, find_head, head_folder, write_head
from ..weights import find_source, source_language
from .util import exit_on_error, lock_folder

_FORMATS = ", ".join(format.NAME for format in FORMATS)
# The files of a pipeline that this command writes.
PIPELINE_FILES = (
    *("meta.json", "config.cfg", "tokenizer*", "vocab/*"),
    *("sentencizer.json", "elmo/cfg", "elmo/model"),
)


def convert_cli(
    paths: list[Path] = typer.Argument(
        ...,
        metavar="[OPTIONS.JSON] WEIGHTS OUT",
        help=f"The options.json, if it is not beside the weights; the weights ({_FORMATS}, or a "
        "zip or tar archive of them); the folder of the new pipeline",
    ),
    lang: Optional[str] = typer.Option(
        None, "--lang", "-l", help="Language of the pipeline, or xx; default: as the weights, or en"
    ),
    half: bool = typer.Option(False, "--half", help="Round the weights to float16"),
    sentencizer: bool = typer.Option(
        False, "--sentencizer", help="Add a sentencizer, which splits at punctuation"
    ),
    force: bool = typer.Option(False, "--force", "-F", help="Overwrite the folder"),
) -> None:
    """
    Make a pipeline folder of ELMo weights.

    Use it with spacy.load and spacy package. For word input, vocab.txt must be in the folder of the
    weights. The output layer of a TensorFlow checkpoint, whose words are in vocab.txt, becomes the
    folder OUT.head, for spacy elmo perplexity and pretrain. The mix that an AllenNLP model learned
    becomes the FrozenMix of the component.
    """
    with exit_on_error():
        if len(paths) not in (2, 3):
            raise ValueError(f"give [OPTIONS.JSON] WEIGHTS OUT, found {len(paths)} paths")
        *given, weights, out = paths
        with lock_pipeline(out, force):
            if not weights.exists():  # A name. The published files of a model, not its pipeline.
                weights = find_download(str(weights), published=True) or find_source(str(weights))
            options, name = (given[0] if given else None), out.absolute().name.replace("-", "_")
            convert(weights, out, options, lang, half, sentencizer, name=name)
    msg.good(f"Wrote the pipeline {out}", f'Use it with spacy.load("{out}")')


@contextlib.contextmanager
def lock_pipeline(out: Path, force: bool, files: Iterable[str] = ()) -> Iterator[None]:
    """Lock the folders of a pipeline, of `PIPELINE_FILES` and other files, and of its output layer.
    See `lock_folder`."""
    names, head_out = (*PIPELINE_FILES, *files), head_folder(out)
    with lock_folder(out, force, names), lock_folder(head_out, force, HEAD_FILES):
        yield


def convert(
    weights: Path,
    out: Path,
    options: Optional[Path],
    lang: Optional[str],
    half: bool,
    sentencizer: bool,
    **meta: Any,
) -> None:
    """Write a pipeline of weights, with facts for its meta.json.
    RAISES (ValueError): If the weights cannot be read, or if there is no such language."""
    with unpacked(weights) as unpacked_weights:
        bilm = load(unpacked_weights, options)
        if half:
            round_to_half(bilm)
        nlp = spacy.blank(lang or source_language(unpacked_weights) or "en")
        if sentencizer:
            nlp.add_pipe("sentencizer")
        config: dict = {"model": {"weights": None}}
        if bilm.trained_mix is not None:  # In the config, it can be seen and changed.
            config["mix"] = {"@layers": "spacy-elmo.FrozenMix.v1", **bilm.trained_mix._asdict()}
            bilm.trained_mix = None
        set_bilm(nlp.add_pipe("elmo", config=config).model, bilm)  # type: ignore[attr-defined]
        meta |= {"sources": _describe_sources(weights, read_origin(unpacked_weights))}
        nlp.meta.update(description="ELMo: contextual word vectors from a biLM", **meta)
        write_pipeline(nlp, unpacked_weights, out, named=weights)


def write_pipeline(
    nlp: Language,
    weights: Path,
    out: Path,
    files: Iterable[Path] = (),
    named: Optional[Path] = None,
) -> None:
    """Write a pipeline, and beside it the output layer of its weights, if they have one.

    weights (Path): The weights, unpacked, or the pipeline that has them.
    files (Iterable[Path]): What is copied into it where it has no such file of its own.
    named (Optional[Path]): What a warning calls the weights, if not by their path.
    """
    head, head_out = None, head_folder(out)
    try:
        head = find_head(weights)
    except ValueError as error:
        reason = str(error).replace(str(weights), str(named or weights))
        msg.warn(f"The pipeline will be without its output layer: {reason}")
    with contextlib.ExitStack() as outputs:
        new = outputs.enter_context(atomic_folder(out))
        nlp.to_disk(new)
        for file in files:
            if not (new / file.name).exists():
                shutil.copy(file, new)
        if head is not None:
            write_head(outputs.enter_context(atomic_folder(head_out)), head)
    if head is None:
        remove_folder(head_out)  # Of the pipeline that was replaced.


def _describe_sources(weights: Path, origin: Mapping[str, Any]) -> list[dict[str, str]]:
    """RETURNS (list): The files of weights, with their origin where it is known."""
    inside = [weights] if weights.is_file() else sorted(weights.iterdir())
    files = [x for x in inside if x.is_file() and not x.name.startswith(".")]
    downloaded = read_manifest(inside[0].parent).get("files", {})
    facts = {name: origin[name] for name in ("url", "author") if origin}
    return [
        {"name": file.name, "sha256": sha256(file), **facts, **downloaded.get(file.name, {})}
        for file in files
    ]
