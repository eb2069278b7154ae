"""The same pipeline on a GPU: CuPy arrays out, the CPU's values."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
import spacy
import torch
from spacy.language import Language
from spacy.tokens import DocBin
from thinc.api import CupyOps, get_current_ops, to_numpy, use_ops
from thinc.compat import has_cupy_gpu
from torch.nn import functional as F

from .conftest import max_difference, random_bilm

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
    nlp = spacy.blank("en")
    nlp.add_pipe("elmo", config={"model": {"weights": str(weights), **model}})
    return nlp


def test_values_are_the_cpus_and_arrays_are_cupys(weights_folder: Path):
    nlp = pipeline(weights_folder)
    assert isinstance(get_current_ops(), CupyOps)
    docs = list(nlp.pipe(TEXTS))
    assert nlp.get_pipe("elmo").bilm.device.type == "cuda"
    with use_ops("numpy"):
        expected = list(pipeline(weights_folder).pipe(TEXTS))
    for doc, cpu in zip(docs, expected):
        assert isinstance(doc._.elmo_layers, CupyOps.xp.ndarray)
        assert max_difference(to_numpy(doc._.elmo_layers), cpu._.elmo_layers) <= 1e-5
        assert max_difference(to_numpy(doc._.elmo), cpu._.elmo) <= 1e-5


def test_gpu_docs_and_pipelines_load_on_a_cpu(weights_folder: Path, tmp_path: Path):
    nlp = pipeline(weights_folder)
    docs = list(nlp.pipe(TEXTS))
    data = DocBin(docs=docs, store_user_data=True).to_bytes()
    nlp.to_disk(tmp_path / "pipeline")
    with use_ops("numpy"):
        for doc in spacy.load(tmp_path / "pipeline").pipe(TEXTS[:4]):
            assert isinstance(doc._.elmo_tokens, numpy.ndarray)
    for doc, loaded in zip(docs, DocBin().from_bytes(data).get_docs(nlp.vocab)):
        assert max_difference(to_numpy(doc._.elmo_tokens), to_numpy(loaded._.elmo_tokens)) == 0


@pytest.mark.parametrize("precision, least", [("tf32", 0.9999), ("bfloat16", 0.99)])
def test_lower_precision_is_close(precision: str, least: float):
    bilm = random_bilm().cuda()
    sentences = [text.split() for text in TEXTS]
    exact = bilm.embed(sentences)
    bilm.precision = precision
    for a, b in zip(bilm.embed(sentences), exact):
        assert (F.cosine_similarity(a, b, dim=-1) >= least).all()


def test_cpu_precision_is_refused():
    bilm = random_bilm().cuda()
    bilm.precision = "int8"
    with pytest.raises(ValueError, match="not for the device"):
        bilm.embed([["the"]])


def test_no_synchronisation_in_the_time_loop():
    bilm = random_bilm().cuda()
    x = torch.randn(2, 6, 6, device="cuda")
    bilm.lstm.infer(x, [3, 2, 1])
    torch.cuda.set_sync_debug_mode("error")
    try:
        bilm.lstm.infer(x, [3, 2, 1])
    finally:
        torch.cuda.set_sync_debug_mode("default")
