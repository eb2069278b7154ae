"""Shared fixtures: the folder of reference data, small biLMs with random weights, scripts."""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

import numpy
import pytest
import spacy
import torch
from spacy.cli import app as spacy_app
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example
from spacy.util import registry
from typer.testing import CliRunner, Result

from spacy_elmo.bilm import BiLM, BiLMConfig, CharCNNConfig, LSTMConfig, mixed_precision
from spacy_elmo.formats import hdf5, safetensors_format

SHARED = Path(os.environ.get("SPACY_ELMO_SHARED", Path(__file__).parents[2] / "shared"))

# Tests are small: threads that wait for each other cost more than they give, above all on a machine
# that does other work as well.
torch.set_num_threads(1)

# What the user has downloaded is not there.
os.environ["SPACY_ELMO_HOME"] = os.devnull

# Without a GPU, Triton interprets its kernels. It decides when it is imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Tests need no file to survive a power failure.
os.fsync = lambda descriptor: None


def shared_path(name: str) -> Path:
    """A path below the shared data; skips the test where there is none."""
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"no {path}: set SPACY_ELMO_SHARED to the folder of shared data")
    return path


@pytest.fixture
def published() -> Path:
    """The folder of published reference weights and activations."""
    return shared_path("fixtures/allennlp")


TINY = BiLMConfig(
    LSTMConfig(dim=12, projection_dim=6, n_layers=2),
    CharCNNConfig(filters=((1, 4), (2, 6), (3, 8)), n_highway=1, embedding_dim=4),
)
WIDER = BiLMConfig(
    LSTMConfig(dim=64, projection_dim=32),
    CharCNNConfig(filters=((1, 8), (2, 16), (3, 32)), n_highway=1, embedding_dim=8),
)
WORDS = ("<S>", "</S>", "<UNK>", "the", "bank", "river", "money", ".")
TINY_WORDS = BiLMConfig(LSTMConfig(dim=12, projection_dim=6), n_tokens_vocab=len(WORDS))


def random_bilm(config: BiLMConfig = TINY, seed: int = 0, scale: float = 1.0) -> BiLM:
    """A biLM with seeded random weights; `scale` > 1 makes clipping fire."""
    generator = torch.Generator().manual_seed(seed)
    bilm = BiLM(config, WORDS[: config.n_tokens_vocab] if config.char_cnn is None else None)
    with torch.no_grad():
        for name, parameter in bilm.named_parameters():
            spread = scale / max(parameter[0].numel(), 1) ** 0.5 if parameter.dim() > 1 else 0.1
            parameter.normal_(0, spread, generator=generator)
            if name.endswith("char_embedding.weight"):
                parameter[0] = 0
    return bilm


@pytest.fixture
def bilm() -> BiLM:
    return random_bilm()


@pytest.fixture(scope="session")
def tiny_folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny biLM in our own format and in the published one, written once."""
    folder = tmp_path_factory.mktemp("tiny")
    safetensors_format.write(random_bilm(), folder / "weights")
    hdf5.write(random_bilm(), folder / "hdf5")
    return folder


@pytest.fixture
def weights_folder(tmp_path: Path, tiny_folders: Path) -> Path:
    """The tiny biLM in our own format, in a folder that the test may change."""
    return Path(shutil.copytree(tiny_folders / "weights", tmp_path / "weights"))


@pytest.fixture
def hdf5_folder(tmp_path: Path, tiny_folders: Path) -> Path:
    """The tiny biLM in the published format, in a folder that the test may change."""
    return Path(shutil.copytree(tiny_folders / "hdf5", tmp_path / "hdf5"))


def elmo_pipeline(folder: Path, lang: str = "en", **config) -> Language:
    """A blank pipeline with the biLM in `folder`; `config` is that of the component."""
    nlp = spacy.blank(lang)
    model = {"weights": str(folder), **config.pop("model", {})}
    nlp.add_pipe("elmo", config={"model": model, **config})
    return nlp


@pytest.fixture
def nlp(weights_folder: Path) -> Language:
    """A blank pipeline with the tiny biLM."""
    return elmo_pipeline(weights_folder)


SCALAR_MIX = {"@layers": "spacy-elmo.ScalarMix.v1"}


def listener(mix: dict = SCALAR_MIX, **settings) -> dict:
    """The config of a listener."""
    return {"@architectures": "spacy-elmo.ElmoListener.v1", "mix": mix, **settings}


def tok2vec(elmo_input: dict | None, elmo_output: dict | None, **settings) -> dict:
    """The config of an own tok2vec with ELMo at its ends."""
    return {
        "@architectures": "spacy-elmo.ElmoTok2Vec.v1",
        "embed": {
            "@architectures": "spacy.MultiHashEmbed.v2",
            "width": 8,
            "attrs": ["NORM", "PREFIX"],
            "rows": [50, 50],
            "include_static_vectors": False,
        },
        "encode": {
            "@architectures": "spacy.MaxoutWindowEncoder.v2",
            "width": 8,
            "depth": 1,
            "window_size": 1,
            "maxout_pieces": 2,
        },
        "elmo_input": elmo_input,
        "elmo_output": elmo_output,
        **settings,
    }


def add_tagger(nlp: Language, source: dict | None = None, name: str = "tagger") -> None:
    model = {"@architectures": "spacy.Tagger.v2", "tok2vec": source or listener()}
    nlp.add_pipe("tagger", name=name, config={"model": model})


SENTENCES = (
    (["The", "bank", "flows", "."], ["D", "N", "V", "P"]),
    (["Money", "flows"], ["N", "V"]),
    ([], []),
    (["Banks", "flow", "\n", "slowly", "to", "the", "river"], ["N", "V", "_", "R", "T", "D", "N"]),
)


def tagged(nlp: Language) -> list[Example]:
    """A few sentences with tags, an empty one among them."""
    return [
        Example.from_dict(Doc(nlp.vocab, words=words), {"tags": tags}) for words, tags in SENTENCES
    ]


def arguments(sentences: Sequence[Sequence[str]]) -> tuple[list[str], numpy.ndarray, list[int]]:
    """What `BiLM.forward` takes, from sentences as lists of tokens."""
    types = list(dict.fromkeys(token for tokens in sentences for token in tokens))
    index = numpy.array([types.index(token) for tokens in sentences for token in tokens], dtype=int)
    return types, index, [len(tokens) for tokens in sentences]


def max_difference(first, second) -> float:
    """Largest absolute difference of two arrays of one shape; 0 for empty ones."""
    pair = (x.detach() if torch.is_tensor(x) else x for x in (first, second))
    first, second = map(numpy.asarray, pair)
    assert first.shape == second.shape
    return float(numpy.abs(first - second).max()) if first.size else 0.0


def assert_close(found: Iterable, expected: Iterable, bound: float = 1e-5) -> None:
    """Arrays are as many as expected, and each differs by no more than `bound` from its own."""
    for number, (first, second) in enumerate(zip(found, expected, strict=True)):
        assert max_difference(first, second) <= bound, number


def run_spacy(*arguments: object, stdin: str | None = None) -> Result:
    """Run `spacy ...` in this process, which saves the seconds that spaCy takes to start."""
    registry.cli.get_all()  # Loads `spacy elmo`, as spaCy does.
    return CliRunner().invoke(spacy_app, [str(argument) for argument in arguments], input=stdin)


def run_script(path: Path, *arguments: object, fails: bool = False) -> str:
    """Run a script in this process. Its exit code must be 0, or 1 if it is to fail.

    RETURNS (str): What it prints, errors included.
    """
    output, code = io.StringIO(), 0
    with (
        patch.object(sys, "argv", [str(path), *map(str, arguments)]),
        patch.object(sys, "path", [str(path.parent), *sys.path]),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(output),
    ):
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit as error:
            code = error.code
            if isinstance(code, str):  # sys.exit("message")
                output.write(code)
                code = 1
    assert (code or 0) == int(fails), output.getvalue()
    return output.getvalue()


def needs(name: str) -> pytest.MarkDecorator:
    absent = find_spec(name) is None
    return pytest.mark.skipif(absent, reason=f"{name} is not installed, or was not built")


needs_extension = needs("spacy_elmo.kernels._kernels")
needs_triton = needs("triton")
needs_bfloat16 = pytest.mark.skipif(
    not mixed_precision.bfloat16_is_faster(), reason="the processor is not faster in bfloat16"
)


@pytest.fixture
def set_num_threads() -> Iterator[Callable[[int], None]]:
    """Set the number of PyTorch's threads. Afterwards it is what it was."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def without_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor that is slower in bfloat16."""
    monkeypatch.setattr(mixed_precision, "bfloat16_speed", lambda: 0.5)


@pytest.fixture
def with_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor that is faster in bfloat16, as it seems: oneDNN emulates it where it must."""
    monkeypatch.setattr(mixed_precision, "bfloat16_speed", lambda: 2.0)
