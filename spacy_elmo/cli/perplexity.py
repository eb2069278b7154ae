"""spacy elmo perplexity: how well a pretrained model predicts a text."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, Optional

import srsly
import typer
from wasabi import msg

from ..files import atomic_file
from ..formats import unpacked
from ..pretraining.corpus import Sentences
from ..pretraining.head import load_language_model
from ..pretraining.perplexity import finite, perplexity
from ..pretraining.tokenize import tokenize
from ..tools.records import Reader
from ..tools.texts import find_files, read_texts
from ..weights import bundled_names, find_source, load_bilm
from .util import ENCODING, ERRORS, INPUT_HELP, TEXT, exit_on_error, torch_device, warn_of_errors


def perplexity_cli(
    model: str = typer.Argument(..., help="A result of `pretrain`, or a checkpoint of bilm-tf"),
    texts: list[str] = typer.Argument(..., help=INPUT_HELP),
    text: Optional[str] = TEXT,
    encoding: str = ENCODING,
    errors: str = ERRORS,
    gpu_id: int = typer.Option(-1, "--gpu-id", "-g", help="The GPU, -1 for the CPU"),
    head: Optional[Path] = typer.Option(None, "--head", help="Its output layer, if not MODEL.head"),
    carry_state: bool = typer.Option(False, "--carry-state", help="Carry the LSTMs' states over"),
    as_json: bool = typer.Option(False, "--json", help="Print JSON"),
    out: Optional[Path] = typer.Option(None, "--out", help="Write JSON, too"),
) -> None:
    """
    Measure how well a model predicts a text.

    Perplexities are exact (full softmax), of both directions. The text is tokenised as the training
    text was. Words outside the vocabulary count as predictions of <UNK>. A training with
    carry_state = true measures itself with carried states: compare with those of --carry-state.
    """
    with exit_on_error():
        device = torch_device(gpu_id)
        path = find_source(model)
        if model in bundled_names() and head is None:
            raise ValueError(
                f"{model} comes without its output layer, which perplexity needs: "
                f"`spacy project run` in project/{model} rebuilds it, for --head"
            )
        with unpacked(path) as unpacked_path:
            bilm = load_bilm(unpacked_path)
            language_model, output = load_language_model(bilm, unpacked_path, head)
        reader = Reader(text, encoding, errors)
        files = find_files(texts, columns=text is not None)
        tokenized = tokenize(read_texts(files, reader), output.tokenization)
        tokens = itertools.chain.from_iterable(sentences for _, sentences in tokenized)
        sentences = Sentences.from_tokens(tokens, output.words)
        scores = perplexity(language_model.to(device), sentences, carry_state=carry_state)
        assert scores is not None
        warn_of_errors(reader)
        if out is not None:
            with atomic_file(out) as temporary:
                srsly.write_json(temporary, finite(scores))
        if as_json:
            print(srsly.json_dumps(finite(scores), indent=2))
        else:
            _print_table(scores)


def _print_table(scores: dict[str, Any]) -> None:
    rows = {name: f"{scores[name]:.2f}" for name in ("forward", "backward", "average")}
    rows["words"] = f"{scores['n_words']:,}"
    rows["sentences"] = f"{scores['n_sentences']:,}"
    rows["unknown words"] = f"{scores['unknown']:.2%}, predicted as <UNK>"
    msg.table(rows)
