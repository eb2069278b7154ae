"""The same pipeline on a GPU: CuPy arrays out, the CPU's values.

What can be tested without a GPU is in `test_device`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy
import pytest
import torch
from spacy.language import Language
from thinc.api import Adam, CupyOps, get_current_ops, to_numpy, use_ops
from thinc.compat import has_cupy_gpu
from torch.nn import functional as F

from spacy_elmo.inference import Settings, current_session
from spacy_elmo.kernels import load_kernels

from .conftest import add_tagger, elmo_pipeline, max_difference, random_bilm, tagged

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not has_cupy_gpu or not torch.cuda.is_available(), reason="no GPU, or no CuPy"
    ),
]
TEXTS = ["the bank of the river", "", "money \n in the bank", "🙂"] * 5


@pytest.fixture(autouse=True)
def on_gpu() -> Iterator[None]:
    with use_ops("cupy"):
        yield


def pipeline(weights: Path, **model: object) -> Language:
    return elmo_pipeline(weights, model=model)


def saved(weights: Path) -> Language:
    with use_ops("numpy"):
        data = pipeline(weights).to_bytes()
    return pipeline(weights).from_bytes(data)


@pytest.mark.parametrize("make", [pipeline, saved])
def test_values_are_the_cpus_and_arrays_are_cupys(weights_folder: Path, make: Callable):
    assert isinstance(get_current_ops(), CupyOps)
    with use_ops("numpy"):
        expected = list(pipeline(weights_folder).pipe(TEXTS))
    nlp = make(weights_folder)
    for doc, cpu in zip(nlp.pipe(TEXTS), expected):
        for name in ("elmo_layers", "elmo_tokens", "elmo"):
            array = getattr(doc._, name)
            assert isinstance(array, CupyOps.xp.ndarray)
            assert max_difference(to_numpy(array), getattr(cpu._, name)) <= 1e-5
    assert nlp.get_pipe("elmo").bilm.device.type == "cuda"


# Precisions

precisions = pytest.mark.parametrize(
    "precision, least", [("float32", 0.999999), ("tf32", 0.9999), ("bfloat16", 0.99)]
)


@precisions
def test_embed_in_every_precision(precision: str, least: float):
    bilm = random_bilm()
    sentences = [text.split() for text in TEXTS]
    exact = current_session(bilm).embed(sentences)
    session = current_session(bilm.cuda(), Settings(precision))
    for a, b in zip(session.embed(sentences), exact):
        assert a.device.type == "cuda"
        assert (F.cosine_similarity(a.cpu(), b, dim=-1) >= least).all()


def test_no_synchronisation_in_the_time_loop():
    session = current_session(random_bilm().cuda())
    inputs = ["the", "bank"], numpy.array([0, 1, 0, 0, 1, 1]), [3, 2, 1]
    list(session.batches(*inputs))
    torch.cuda.set_sync_debug_mode("error")
    try:
        list(session.batches(*inputs))
    finally:
        torch.cuda.set_sync_debug_mode("default")


# Training


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("mixed_precision", [False, True])
def test_training(weights_folder: Path, frozen: bool, mixed_precision: bool):
    model = {"mixed_precision": mixed_precision}
    nlp = elmo_pipeline(weights_folder, frozen=frozen, model=model)
    add_tagger(nlp)
    examples = tagged(nlp)
    optimizer = nlp.initialize(lambda: examples, sgd=Adam(0.01))
    before = [weight.detach().clone() for weight in nlp.get_pipe("elmo").bilm.parameters()]
    losses = [nlp.update(examples, sgd=optimizer)["tagger"] for _ in range(20)]
    assert losses[-1] < losses[0]
    after = list(nlp.get_pipe("elmo").bilm.parameters())
    assert all(weight.device.type == "cuda" for weight in after)
    assert all(torch.equal(a, b) for a, b in zip(before, after)) == frozen


def test_gradients_are_the_cpus(weights_folder: Path):
    gradients = []
    for ops in ("cupy", "numpy"):
        with use_ops(ops):
            nlp = elmo_pipeline(weights_folder, frozen=False)
            nlp.initialize()
            elmo = nlp.get_pipe("elmo")
            outputs, backprop = elmo.model.begin_update([nlp.make_doc(text) for text in TEXTS])
            d_layers = numpy.random.default_rng(0).normal(size=outputs.layers.shape)
            backprop(elmo.model.ops.asarray3f(d_layers))
            gradients.append({name: p.grad.cpu() for name, p in elmo.bilm.named_parameters()})
    for name, expected in gradients[1].items():
        difference = max_difference(gradients[0][name], expected)
        assert difference <= 1e-4 * expected.abs().max(), name


# Kernels. `kernels.test_cells` compares their values, on a GPU if there is one.


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_tritons_kernels_are_taken(dtype: torch.dtype):
    pytest.importorskip("triton", reason="Triton is not installed")
    assert load_kernels("triton", torch.device("cuda", 0), dtype, torch.float32)
