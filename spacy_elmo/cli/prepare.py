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
from ..pretraining.corpus import MANIFEST, MAX_CHARACTERS, prepare
from ..pretraining.tokenize import Tokenization, make_pipeline
from ..pretraining.vocabulary import VocabularySettings
from ..tools.texts import find_files, read_texts, total_size
from .util import exit_on_error, lock_folder

# What a corpus consists of.
_FILES = (
    *(MANIFEST, "types.txt", "counts.bin", "characters.bin", "lengths.bin"),
    *(f"{split}.{name}.bin" for split in ("train", "dev") for name in ("ids", "ends")),
)


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
    max_length: int = typer.Option(200, "--max-length", help="Cut sentences after so many tokens"),
    vocabulary: Optional[Path] = typer.Option(
        None, "--vocab", help="Words to predict, one per line, <S> </S> <UNK> first"
    ),
    vocab_size: Optional[int] = typer.Option(
        None, "--vocab-size", help="Or: so many of the most frequent words"
    ),
    min_count: int = typer.Option(1, "--min-count", help="Or: the words that occur so often"),
    dev_fraction: float = typer.Option(0.01, "--dev-fraction", help="Part that is held out"),
    max_characters: int = typer.Option(50, "--max-characters", help="Characters per token"),
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
        if not 3 <= max_characters <= MAX_CHARACTERS:
            raise ValueError(
                f"--max-characters must be from 3 (begin, a character and end) to {MAX_CHARACTERS}"
            )
        if vocabulary is not None and (vocab_size is not None or min_count != 1):
            raise ValueError("--vocab names all words: leave out --vocab-size and --min-count")
        tokenization = Tokenization(lang, whitespace, one_per_line, max_length)
        make_pipeline(tokenization)  # An unknown language should not wait for a worker to say so.
        words = None if vocabulary is None else read_vocabulary(vocabulary)
        files = find_files(
            sources, lambda path: msg.info(f"{path} is not read: it is no text, but made of text")
        )
        settings = VocabularySettings(vocab_size, min_count, words)
        bar = tqdm(total=total_size(files), unit="B", unit_scale=True, desc="Reading", disable=None)
        with lock_folder(out, force, _FILES), _exit_on_sigterm(), bar:
            manifest = prepare(
                read_texts(files, encoding, errors, bar.update),
                out,
                tokenization,
                settings,
                dev_fraction=dev_fraction,
                max_characters=max_characters,
                n_process=n_process,
            )
        n_tokens, n_sentences = manifest["n_tokens"], manifest["n_sentences"]
        n_train = max(n_tokens["train"], 1)
        msg.good(
            f"{out}: {n_tokens['train']:,} words in {n_sentences['train']:,} sentences, "
            f"{n_tokens['dev']:,} words held out, {manifest['n_types']:,} types, vocabulary of "
            f"{manifest['n_vocabulary']:,} ({manifest['n_unknown'] / n_train:.2%} unknown)"
        )
        if not manifest["n_unknown"]:
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
