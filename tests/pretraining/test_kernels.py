"""bfloat16 on a CPU: oneDNN compiles and keeps a kernel for every shape of a product, so there must
be few shapes."""

from __future__ import annotations

import pickle
import random
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from spacy_elmo.bilm import BiLMConfig, CharCNNConfig, LSTMConfig
from spacy_elmo.pretraining.config import LossConfig, SystemConfig
from spacy_elmo.pretraining.corpus import open_corpus, prepare

from .conftest import CHARACTERS, SENTENCE_PER_LINE, WORDS, run_config, train

pytestmark = pytest.mark.usefixtures("with_bfloat16")


@pytest.fixture(scope="module")
def varied(tmp_path_factory):
    """Sentences of 1 to 60 words of 1 to 30 characters: every batch is of another size."""
    draw = random.Random(0)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = [
        "".join(draw.choices(letters, k=1 + int(29 * draw.random() ** 4))) for _ in range(4000)
    ]
    frequencies = [1 / (i + 1) for i in range(len(words))]
    lengths = [1 + int(59 * draw.random() ** 2) for _ in range(6000)]
    lines = [" ".join(draw.choices(words, frequencies, k=length)) for length in lengths]
    folder = tmp_path_factory.mktemp("varied") / "corpus"
    prepare(lines, folder, SENTENCE_PER_LINE, dev_fraction=0.02)
    return open_corpus(folder)


class Shapes(TorchDispatchMode):
    """Notes the shapes of all bfloat16 products."""

    def __init__(self):
        super().__init__()
        self.shapes = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        tensors = [value for value in args if isinstance(value, torch.Tensor)]
        products = (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm)
        if function.overloadpacket in products and tensors[0].dtype == torch.bfloat16:
            shapes = [(tuple(value.shape), value.stride()) for value in tensors]
            self.shapes.add((function, *shapes))
        return function(*args, **(kwargs or {}))


def small(corpus, bilm, loss, n_steps, **settings):
    config = run_config(
        corpus,
        bilm,
        loss=LossConfig(loss, n_samples=256, cutoffs=(100, 800)),
        mixed_precision=True,
        max_steps=n_steps,
        batch_words=400,
        eval_frequency=10**6,
        checkpoint_frequency=10**6,
        eval_words=100,
        **settings,
    )
    return replace(config, system=SystemConfig(1))


@pytest.mark.parametrize(
    "bilm, loss", [(CHARACTERS, "sampled"), (WORDS, "adaptive")], ids=["sampled", "adaptive"]
)
def test_there_are_few_shapes_of_products(tmp_path, varied, bilm, loss):
    shapes, counts = Shapes(), []
    config = small(varied, bilm, loss, 40)
    with shapes:
        train(config, tmp_path / "run", after_update=lambda *_: counts.append(len(shapes.shapes)))
    assert counts[0] > 20
    # Half the steps later, most shapes have been there before.
    assert counts[-1] < 1.25 * counts[len(counts) // 2]


SCRIPT = """
import pickle, resource, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from spacy.util import registry
from spacy_elmo.bilm import mixed_precision
from spacy_elmo.pretraining.run import pretrain
mixed_precision.bfloat16_speed = lambda: 2.0
config, output = map(Path, sys.argv[1:])
n_steps = 0
def log(info):
    global n_steps
    n_steps += 1
    if n_steps % 25 == 0:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        print("bytes", pages * resource.getpagesize(), flush=True)
@registry.loggers("test.Memory.v1")
def logger():
    return lambda nlp, stdout, stderr: (log, lambda: None)
pretrain(pickle.loads(config.read_bytes()), output)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("loss", ["sampled", "adaptive"])
def test_memory_does_not_grow(tmp_path, varied, loss):
    bilm = BiLMConfig(
        LSTMConfig(256, 64),
        CharCNNConfig(((1, 32), (2, 32), (3, 64), (4, 128), (5, 128)), n_highway=1),
    )
    logger = {"@loggers": "test.Memory.v1"}
    config = small(varied, bilm, loss, 250, logger=logger)
    (tmp_path / "config").write_bytes(pickle.dumps(config))
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, tmp_path / "script.py", tmp_path / "config", tmp_path / "run"]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    lines = [line for line in output.splitlines() if line.startswith("bytes ")]
    _, after_50, *later = (int(line.split()[1]) for line in lines)
    assert len(later) == 8
    assert max(later) < 1.1 * after_50
