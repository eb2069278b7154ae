"""spacy elmo prepare: text files to a corpus for pretraining."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

import typer
from tqdm import tqdm
from wasabi import msg

from ..bilm.formats import read_vocabulary
from ..bilm.validation import validate
from ..pretraining.corpus import FILES, MANIFEST, prepare
from ..pretraining.tokenize import TokenizationConfig, make_pipeline
from ..pretraining.vocabulary import VocabularyConfig
from ..tools.texts import find_files, read_texts, total_size
from .util import exit_on_error, lock_folder

# The files of a corpus; the last two are of version 1.
_FILES = (MANIFEST, *FILES, "characters.bin", "lengths.bin")


def prepare_cli(
    inputs: list[str] = typer.Argument(
        ...,
        metavar="IN... OUT",
        help="Files, folders or patterns: .txt, .jsonl (also compressed), .spacy; then OUT",
    ),
    lang: str = typer.Option("en", "--lang", "-l", help="The language whose tokenizer is used"),
    whitespace: bool = typer.Option(False, "--whitespace", help="Tokens are separated by spaces"),
    one_per_line: bool = typer.Option(
        False, "--sentence-per-line", help="Every line is a sentence: do not split further"
    ),
    max_length: int = typer.Option(
        200, "--max-length", help="Tokens per sentence; longer ones are cut"
    ),
    vocabulary: Optional[Path] = typer.Option(
        None, "--vocab", help="Words to predict, one per line, <S> </S> <UNK> first"
    ),
    vocab_size: Optional[int] = typer.Option(
        None, "--vocab-size", help="Or: the number of words, the most frequent ones"
    ),
    min_count: int = typer.Option(1, "--min-count", help="Or: the minimum count of a word"),
    dev_fraction: float = typer.Option(
        0.01, "--dev-fraction", help="Fraction of the texts held out"
    ),
    encoding: str = typer.Option("utf8", "--encoding", help="Of the text files"),
    errors: str = typer.Option("strict", "--errors", help="strict, replace or ignore"),
    n_process: int = typer.Option(1, "--n-process", "-n", help="Processes that tokenise"),
    force: bool = typer.Option(False, "--force", "-F", help="Overwrite OUT"),
) -> None:
    """
    Tokenise text for pretraining.

    IN... are text files, OUT is the folder to write.
    """
    with exit_on_error():
        if len(inputs) < 2:
            raise ValueError("give input files and an output folder: spacy elmo prepare IN... OUT")
        *sources, target = inputs
        out = Path(target)
        if max_length < 1 or n_process < 1:
            raise ValueError("--max-length and --n-process must be 1 or more")
        if vocabulary is not None and (vocab_size is not None or min_count != 1):
            raise ValueError("--vocab names all words: leave out --vocab-size and --min-count")
        tokenization = TokenizationConfig(lang, whitespace, one_per_line, max_length)
        make_pipeline(tokenization)  # An unknown language is an error before workers start.
        words = None if vocabulary is None else read_vocabulary(vocabulary)
        files = find_files(
            sources, lambda path: msg.info(f"{path} is not read: it is no text, but made of text")
        )
        settings = {"size": vocab_size, "min_count": min_count, "words": words}
        words_config = validate(VocabularyConfig, settings, "vocabulary.")
        bar = tqdm(total=total_size(files), unit="B", unit_scale=True, desc="Reading", disable=None)
        with lock_folder(out, force, _FILES), _exit_on_sigterm(), bar:
            manifest = prepare(
                read_texts(files, encoding, errors, bar.update),
                out,
                tokenization,
                words_config,
                dev_fraction=dev_fraction,
                n_process=n_process,
            )
        n_tokens, n_unknown = manifest["n_tokens"], manifest["n_unknown"]
        msg.good(
            f"{out}: {n_tokens['train']:,} words in {manifest['n_sentences']['train']:,} "
            f"sentences, {n_tokens['dev']:,} words held out, {manifest['n_types']:,} types, "
            f"vocabulary of {manifest['n_vocabulary']:,} "
            f"({n_unknown / n_tokens['train']:.2%} unknown)"
        )
        if not n_unknown:
            msg.warn(
                "No word is unknown, so training will not learn what to do with the unknown words "
                "of other texts: lower --vocab-size, or give --min-count 2"
            )


@contextlib.contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """Turn the signal into an exception, so that workers and half-written files go. Only the main
    thread may do that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: Any) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
