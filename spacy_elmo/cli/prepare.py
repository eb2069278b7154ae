"""spacy elmo prepare: text files to a corpus for pretraining."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

import typer
from wasabi import msg

from ..formats import read_vocabulary
from ..pretraining.corpus import FILES, MANIFEST, prepare
from ..pretraining.signals import handle_signals
from ..pretraining.tokenize import TokenizationConfig
from ..tools.records import Reader
from ..tools.texts import find_files, read_texts, total_size
from . import util

_INPUTS = typer.Argument(..., metavar="IN... OUT", help=f"{util.INPUT_HELP}; then OUT")
_MAX_UNKNOWN, _MIN_WORDS = 0.5, 1_000_000  # More, or fewer, call for a warning.


def prepare_cli(
    inputs: list[str] = _INPUTS,
    lang: str = typer.Option("en", "--lang", "-l", help="The language whose tokenizer is used"),
    whitespace: bool = typer.Option(False, "--whitespace", help="Tokens are separated by spaces"),
    one_per_line: bool = typer.Option(False, "--sentence-per-line", help="Lines are sentences"),
    max_length: int = typer.Option(200, "--max-length", min=1, help="Tokens per sentence, at most"),
    vocab: Optional[Path] = typer.Option(
        None, "--vocab", help="Words to predict, one per line, <S> </S> <UNK> first"
    ),
    vocab_size: Optional[int] = typer.Option(
        None, "--vocab-size", min=1, help="Or: the number of words, the most frequent ones"
    ),
    min_count: int = typer.Option(1, "--min-count", min=1, help="Or: the minimum count of a word"),
    dev_fraction: float = typer.Option(0.01, "--dev-fraction", help="Fraction of texts held out"),
    dev: list[str] = typer.Option([], "--dev", help="Or: files of held-out text; may be repeated"),
    text: Optional[str] = util.TEXT,
    encoding: str = util.ENCODING,
    errors: str = util.ERRORS,
    n_process: int = typer.Option(1, "--n-process", "-n", min=1, help="Processes that tokenise"),
    force: bool = typer.Option(False, "--force", "-F", help="Overwrite OUT"),
) -> None:
    """
    Tokenise text files for pretraining, into the folder OUT.
    """
    with util.exit_on_error():
        *sources, target = inputs
        if not sources:
            raise ValueError("give input files and an output folder: spacy elmo prepare IN... OUT")
        if vocab is not None and (vocab_size is not None or min_count != 1):
            raise ValueError("--vocab names all words: leave out --vocab-size and --min-count")
        settings = {
            "tokenization": TokenizationConfig(lang, whitespace, one_per_line, max_length),
            "vocabulary": None if vocab is None else read_vocabulary(vocab),
            "vocab_size": vocab_size,
            "min_count": min_count,
            "dev_fraction": dev_fraction,
            "n_process": n_process,
        }
        prepare_files(sources, Path(target), Reader(text, encoding, errors), force, settings, dev)


def prepare_files(
    sources: Sequence[str],
    out: Path,
    reader: Reader,
    force: bool,
    settings: dict[str, Any],
    dev: Sequence[str] = (),
) -> None:
    """Write a corpus of text files, and print what it has; `settings` are those of `prepare`."""

    def skip(path: Path) -> None:
        msg.info(f"{path} is not read: it was written by spacy-elmo, and is not text")

    columns = reader.text is not None
    files, dev_files = (find_files(names, skip, columns=columns) for names in (sources, dev))
    if same := {x.resolve() for x in files} & {x.resolve() for x in dev_files}:
        raise ValueError(f"{min(same)} is both a text and held out: leave it out of one of them")
    bar = util.progress_bar("Reading", "B", total_size([*files, *dev_files]))
    # An exception: workers end, half-written files are removed.
    on_signal = handle_signals(lambda number, frame: sys.exit(128 + number), signal.SIGTERM)
    with util.lock_folder(out, force, (MANIFEST, *FILES)), on_signal, bar as progress:
        texts = read_texts(files, reader, progress)
        dev_texts = read_texts(dev_files, reader, progress) if dev else None
        manifest = prepare(texts, out, dev_texts=dev_texts, **settings)
    util.warn_of_errors(reader)
    _report(out, manifest, settings.get("vocabulary") is not None)


def _report(out: Path, manifest: dict[str, Any], has_vocabulary: bool) -> None:
    n_words, n_unknown = manifest["n_tokens"]["train"], manifest["n_unknown"]
    fraction = n_unknown / n_words
    msg.good(
        f"{out}: {n_words:,} words in {manifest['n_sentences']['train']:,} sentences, "
        f"{manifest['n_tokens']['dev']:,} words held out, {manifest['n_types']:,} types, "
        f"vocabulary of {manifest['n_vocabulary']:,} ({fraction:.2%} unknown)"
    )
    if has_vocabulary and fraction > _MAX_UNKNOWN:
        msg.warn(f"{fraction:.0%} of the words are not in --vocab: is it of this language?")
    if n_words < _MIN_WORDS:
        msg.warn(
            f"{n_words:,} words are too few to learn much from: give a million or more, or "
            "continue with weights that there are (--paths.init_from)"
        )
    if not n_unknown:
        msg.warn(
            "No word is unknown, so training will not learn what to do with the unknown words "
            "of other texts: lower --vocab-size, or give --min-count 2"
        )
