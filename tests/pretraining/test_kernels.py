"""bfloat16 on a CPU: oneDNN compiles and keeps a kernel for every shape of a product, so there must
be few shapes."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

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
