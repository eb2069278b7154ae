"""What the commands share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Optional

import spacy
import torch
from spacy.language import Language
from wasabi import msg

from ..component import Elmo
from ..files import locked_output


@contextlib.contextmanager
def clear_errors() -> Iterator[None]:
    """Show a ValueError or an OSError as one message, with exit code 1."""
    try:
        yield
    except (ValueError, OSError) as error:
        msg.fail(str(error), exits=1)


def torch_device(gpu_id: int) -> str:
    """RETURNS (str): "cpu" for -1. RAISES (ValueError): If there is no such GPU."""
    if gpu_id < 0:
        return "cpu"
    if gpu_id >= torch.cuda.device_count():
        raise ValueError(
            f"--gpu-id {gpu_id}: PyTorch finds {torch.cuda.device_count()} GPU(s); -1 is the CPU"
        )
    return f"cuda:{gpu_id}"


def require_gpu(gpu_id: int) -> None:
    """Make spaCy compute on a GPU; -1 leaves it on the CPU.

    RAISES (ValueError): If there is no such GPU, or no CuPy.
    """
    if torch_device(gpu_id) == "cpu":
        return
    try:
        spacy.require_gpu(gpu_id)
    except ValueError as error:
        raise ValueError(
            f"--gpu-id {gpu_id}: {error}. CuPy comes with the extra for your version of CUDA: "
            'pip install "spacy-elmo[cuda12x]" (or cuda11x, cuda13x, cuda-autodetect)'
        ) from error


def check_free(path: Path, force: bool, files: Sequence[str] = ()) -> None:
    """Check a path before something is written there.

    force (bool): Whether it may be overwritten.
    files (Sequence[str]): Names and patterns of all files in a folder that the command writes. The
        first is in every one. A folder that holds anything else is the user's own, and is never
        overwritten. Empty: the command writes a file.
    RAISES (ValueError): If the path exists and may not be overwritten.
    """
    if not path.exists():
        return
    if files and not path.is_dir():
        raise ValueError(f"{path} is a file, not a folder to write to: was the output left out?")
    if not force:
        raise ValueError(
            f"{path} exists already: choose another path, or overwrite it with --force"
        )
    if not files or not any(path.iterdir()):
        return
    if not (path / files[0]).is_file():
        raise ValueError(
            f"{path} is not what this command writes (no {files[0]} in it), and so not "
            "overwritten: choose another path, or remove it"
        )
    inside = (file for file in path.rglob("*") if file.is_symlink() or not file.is_dir())
    names = sorted(file.relative_to(path).as_posix() for file in inside)
    others = [name for name in names if not any(fnmatchcase(name, pattern) for pattern in files)]
    if others:
        shown = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
        raise ValueError(
            f"{path} also holds what this command does not write ({shown}), and so is not "
            "overwritten: choose another path, or move these files away"
        )


@contextlib.contextmanager
def writing(path: Path, force: bool, files: Sequence[str]) -> Iterator[None]:
    """Check a folder that the body writes, and keep other runs away from it, from the check to the
    end.

    force, files: See `check_free`.
    RAISES (ValueError): If it may not be overwritten, or another run is writing it.
    """
    # What a kill has moved aside is put back before the check, which must see it.
    with locked_output(path):
        check_free(path, force, files)
        yield


def elmo_components(nlp: Language) -> dict[str, Elmo]:
    """RETURNS (dict): The pipeline's elmo components by name, the disabled ones, too."""
    return {name: pipe for name, pipe in nlp.components if isinstance(pipe, Elmo)}


def find_elmo(nlp: Language, name: Optional[str]) -> Elmo:
    """RETURNS (Elmo): The elmo component of this name, or the only one if none is named.
    RAISES (ValueError): If there is no such component, or more than one and no name."""
    found = elmo_components(nlp)
    if not found:
        raise ValueError(f"the pipeline has no elmo component, only {nlp.component_names}")
    if name is None:
        if len(found) > 1:
            raise ValueError(f"the pipeline has several elmo components {list(found)}: use --name")
        return next(iter(found.values()))
    if name not in found:
        raise ValueError(f"no elmo component {name!r}: the pipeline has {list(found)}")
    return found[name]
