"""What commands and scripts share: errors, progress, devices, checks of outputs, components."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Optional

import spacy
import torch
import typer
from spacy.language import Language
from spacy.tokens import Doc
from tqdm import tqdm
from wasabi import Printer, msg

from ..files import locked_output
from ..tools.records import Reader
from ..tools.texts import read_docs, total_size

# Options of the commands that read texts.
INPUT_HELP = (
    "Files, folders or patterns: .txt, .jsonl, .csv, .tsv (also compressed: .gz, .zst, ...), "
    ".spacy, .parquet; a file of another suffix has lines of text; - is stdin"
)
TEXT = typer.Option(
    None, "--text", help="The column of texts, or of lists of tokens (.csv, .tsv, .jsonl, .parquet)"
)
ENCODING = typer.Option("utf8", "--encoding", help="Of the text files")
ERRORS = typer.Option(
    "strict", "--errors", help="strict, or of what cannot be read: replace or ignore (leave out)"
)
LAYER = typer.Option(None, "--layer", "-L", help="A layer, -1 for the top; by default the mix")
NAME_N = typer.Option(None, "--name", "-n", help="Name of the elmo component")
NAME = typer.Option(None, "--name", help="Name of the elmo component")
GPU_ID = typer.Option(-1, "--gpu-id", "-g", help="GPU ID, or -1 for the CPU")


@contextlib.contextmanager
def exit_on_error() -> Iterator[None]:
    """Print an error that a user can mend as one message, and exit with code 1."""
    try:
        yield
    except (ValueError, OSError, ImportError) as error:  # ImportError: spaCy lacks a language.
        msg.fail(str(error), exits=1)


@contextlib.contextmanager
def progress_bar(
    what: str, unit: str, total: Optional[int] = None, *, quiet: bool = False
) -> Iterator[Callable[..., object]]:
    """Show what is done of a total, the rate and the time left, if stderr is a terminal and it
    takes more than a second.
    YIELDS (Callable): To be called with how much was done since the last call, and with the total
        if it was not known before."""
    bars: list[tqdm] = []
    settings = {"unit": unit, "unit_scale": unit == "B", "dynamic_ncols": True, "delay": 1}

    def advance(n: int, total: Optional[int] = total) -> None:
        if not bars:  # Not before: another bar may be shown until then.
            off = quiet or None  # None: unless it is a terminal.
            bars.append(tqdm(desc=what, total=total, disable=off, file=sys.stderr, **settings))
        bars[0].update(n)

    try:
        yield advance
    finally:
        for bar in bars:
            bar.close()


def read_docs_with_bar(
    nlp: Language, files: Sequence[Path], reader: Optional[Reader] = None
) -> Iterator[tuple[Doc, str]]:
    """YIELDS (tuple): What `read_docs` does."""
    with progress_bar("Reading", "B", total_size(files)) as progress:
        yield from read_docs(nlp, files, reader, progress)


def warn_of_errors(reader: Reader) -> None:
    """Say how many lines were not read as they are; on stderr, as stdout may have results."""
    if reader.n_bad:
        what = "replaced" if reader.errors == "replace" else "left out"
        text = f"Of {reader.n_bad:,} bad line(s) or row(s), what cannot be read was {what}"
        warning = Printer(no_print=True).warn(f"{text} (--errors {reader.errors})")
        typer.echo(warning, err=True)


def torch_device(gpu_id: int) -> str:
    """RETURNS (str): "cuda:N", or "cpu" for -1. RAISES (ValueError): If there is no such GPU."""
    n_gpus = torch.cuda.device_count()
    if gpu_id >= n_gpus:
        raise ValueError(f"--gpu-id {gpu_id}: PyTorch finds {n_gpus} GPU(s); -1 is the CPU")
    return "cpu" if gpu_id < 0 else f"cuda:{gpu_id}"


def require_gpu(gpu_id: int) -> None:
    """Make spaCy compute on a GPU; -1 leaves it on the CPU."""
    if torch_device(gpu_id) != "cpu":
        spacy.require_gpu(gpu_id)


def check_overwrite(path: Path, force: bool, files: Sequence[str] = ()) -> None:
    """Check an output before it is written.

    files (Sequence[str]): Names and patterns of all files that the command writes to a folder, the
        first one always. A folder with any other file is never overwritten. Empty for a file.
    RAISES (ValueError): If the path exists and must not be overwritten.
    """
    if not path.exists():
        return
    if not force:
        raise ValueError(f"{path} exists already: choose another path, or give --force")
    inside = (file for file in path.rglob("*") if file.is_symlink() or not file.is_dir())
    names = sorted(file.relative_to(path).as_posix() for file in inside)
    others = [name for name in names if not any(fnmatchcase(name, pattern) for pattern in files)]
    if path.is_dir() != bool(files) or others or (names and files[0] not in names):
        what = f"{', '.join(others[:3])}" if others else f"no {files[0]}" if files else "no folder"
        raise ValueError(
            f"{path} was not written by this command alone ({what} in it), and so is not "
            "overwritten: choose another path, or move it away"
        )


@contextlib.contextmanager
def lock_folder(path: Path, force: bool, files: Sequence[str]) -> Iterator[None]:
    """Lock a folder that the body writes, after the check of `check_overwrite`.
    RAISES (ValueError): If it must not be overwritten, or another run is writing it."""
    # The lock comes first: it restores a folder that a killed run has moved away.
    with locked_output(path):
        check_overwrite(path, force, files)
        yield
