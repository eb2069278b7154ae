"""spacy elmo perplexity: how well a pretrained model predicts a text."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

import numpy
import srsly
import typer
from wasabi import msg

from ..files import atomic_file
from ..pretraining.corpus import Sentences
from ..pretraining.head import Head, open_language_model
from ..pretraining.perplexity import finite, perplexity
from ..pretraining.scores import TokenScores, score
from ..pretraining.tokenize import tokenize
from ..tools.records import Reader
from ..tools.texts import find_files, read_texts, total_size
from . import util


def perplexity_cli(
    model: str = typer.Argument(
        ..., help="en_elmo_sm, a result of `pretrain`, or a checkpoint of bilm-tf"
    ),
    texts: list[str] = typer.Argument(..., help=util.INPUT_HELP),
    text: Optional[str] = util.TEXT,
    encoding: str = util.ENCODING,
    errors: str = util.ERRORS,
    gpu_id: int = util.GPU_ID,
    head: Optional[Path] = typer.Option(None, "--head", help="Its output layer, if not MODEL.head"),
    carry_state: bool = typer.Option(False, "--carry-state", help="Carry the LSTMs' states over"),
    as_json: bool = typer.Option(False, "--json", help="Print JSON"),
    out: Optional[Path] = typer.Option(None, "--out", help="Write JSON, too"),
    words: Optional[Path] = typer.Option(None, "--words", help="Write each word's, JSON lines"),
    force: bool = typer.Option(False, "--force", "-F", help="Overwrite files"),
) -> None:
    """
    Measure how well a model predicts a text.

    Perplexities are exact (full softmax), of both directions. The text is tokenised as the training
    text was. Words outside the vocabulary count as predictions of <UNK>. A training with
    carry_state = true measures itself with carried states: compare with those of --carry-state.
    --words writes a line per sentence: its tokens, their natural log probabilities forward and
    backward, which of them are unknown, and the log probabilities of its end and its beginning.
    """
    with util.exit_on_error():
        device = util.torch_device(gpu_id)
        if words is not None and carry_state:
            raise ValueError("--words are those of whole sentences: leave out --carry-state")
        _check_outputs(words, out, force)
        language_model, output = open_language_model(model, head)
        reader = Reader(text, encoding, errors)
        outputs = {path.resolve() for path in (words, out) if path is not None}
        files = find_files(texts, columns=text is not None)
        if not (files := [path for path in files if path.resolve() not in outputs]):
            raise ValueError(f"no text besides the output in {', '.join(texts)}")
        sentences = _read(files, reader, output)
        language_model.to(device)
        with util.progress_bar("Scoring", " words") as progress:
            if words is None:
                settings: dict[str, Any] = {"carry_state": carry_state, "progress": progress}
                scores = perplexity(language_model, sentences, **settings)
            else:
                scores, by_sentence = score(language_model, sentences, progress=progress)
                _write_words(words, by_sentence)
        assert scores is not None
        util.warn_of_errors(reader)
        _show(scores, out, as_json)


def _check_outputs(words: Optional[Path], out: Optional[Path], force: bool) -> None:
    if words is not None and out is not None and words.resolve() == out.resolve():
        raise ValueError(f"--words and --out are the same file, {out}")
    for path in filter(None, (words, out)):
        util.check_overwrite(path, force)


def _read(files: list[Path], reader: Reader, output: Head) -> Sentences:
    with util.progress_bar("Reading", "B", total_size(files)) as progress:
        tokenized = tokenize(read_texts(files, reader, progress), output.tokenization)
        tokens = itertools.chain.from_iterable(sentences for _, sentences in tokenized)
        return Sentences.from_tokens(tokens, output.words)


def _write_words(path: Path, by_sentence: Iterator[TokenScores]) -> None:
    with atomic_file(path) as temporary, temporary.open("w", encoding="utf8") as file:
        for scores in by_sentence:
            fields = scores._asdict().items()
            line = {k: v.tolist() if isinstance(v, numpy.ndarray) else v for k, v in fields}
            file.write(json.dumps(line) + "\n")


def _show(scores: dict[str, Any], out: Optional[Path], as_json: bool) -> None:
    if out is not None:
        with atomic_file(out) as temporary:
            srsly.write_json(temporary, finite(scores))
    if as_json:
        print(srsly.json_dumps(finite(scores), indent=2))
        return
    rows = {name: f"{scores[name]:.2f}" for name in ("forward", "backward", "average")}
    rows["words"] = f"{scores['n_words']:,}"
    rows["sentences"] = f"{scores['n_sentences']:,}"
    rows["unknown words"] = f"{scores['unknown']:.2%}, predicted as <UNK>"
    msg.table(rows)
