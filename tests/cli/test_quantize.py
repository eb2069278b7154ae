from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy
import pytest
import spacy
import torch
from spacy.language import Language

from spacy_elmo import EmbedTokens
from spacy_elmo.bilm import BiLM
from spacy_elmo.formats import fits_half, fits_int8
from spacy_elmo.inference import current_session
from spacy_elmo.layers.encoder import get_shim, set_bilm
from spacy_elmo.weights import load_bilm

from ..conftest import add_tagger, assert_close, elmo_pipeline, max_difference, random_bilm, tagged
from .conftest import fail, succeed

TEXTS = ["The bank of the river.", "Yes", "", "Money flows slowly to the bank . It does ."]


@pytest.fixture(scope="session")
def quantized_once(tmp_path_factory: pytest.TempPathFactory, converted: Path) -> Path:
    out = tmp_path_factory.mktemp("quantized") / "int8"
    succeed("quantize", converted, out, "--precision", "int8")
    return out


@pytest.fixture
def quantized(tmp_path: Path, quantized_once: Path) -> Path:
    """The tiny pipeline in int8, which the test may change."""
    return Path(shutil.copytree(quantized_once, tmp_path / "quantized"))


def load(path: Path, **model: object) -> Language:
    return spacy.load(path, config={"components": {"elmo": {"model": model}}})


def layers(nlp: Language) -> numpy.ndarray:
    return numpy.concatenate([doc._.elmo_layers for doc in nlp.pipe(TEXTS)], axis=1)


def precision_of(path: Path) -> str:
    return spacy.load(path).get_pipe_config("elmo")["model"]["precision"]


def is_int8(nlp: Language) -> bool:
    """Whether the LSTMs are in memory in 8 bits alone."""
    bilm = get_shim(nlp.get_pipe("elmo").model).stored_bilm()
    return bilm.is_int8


def test_int8_gives_the_vectors_of_the_precision_int8(pipeline: Path, quantized: Path):
    nlp = spacy.load(quantized)
    assert precision_of(quantized) == "int8"
    assert max_difference(layers(nlp), layers(load(pipeline, precision="int8"))) <= 1e-6
    assert max_difference(layers(nlp), layers(spacy.load(pipeline))) > 1e-4
    assert is_int8(nlp)
    sizes = [(path / "elmo" / "model").stat().st_size for path in (quantized, pipeline)]
    assert sizes[0] < 0.7 * sizes[1]  # Embeddings and names are a large part of the tiny biLM.


def test_other_uses_of_int8_weights(quantized: Path, tmp_path: Path):
    """They are made float32, the same for all."""
    nlp = spacy.load(quantized)
    before, checksum = layers(nlp), nlp.get_pipe("elmo").checksum
    bilm = nlp.get_pipe("elmo").bilm
    assert not is_int8(nlp) and fits_int8(bilm)
    assert numpy.array_equal(layers(nlp), before)
    assert nlp.get_pipe("elmo").checksum == checksum
    exact = load(quantized, precision="float32")
    assert not is_int8(exact) and exact.get_pipe("elmo").checksum == checksum
    [expected] = current_session(bilm).embed([["Yes"]])
    assert max_difference(exact("Yes")._.elmo_layers, expected) <= 1e-6
    assert max_difference(EmbedTokens(quantized).embed_sentence(["Yes"]), expected) <= 1e-6
    low = EmbedTokens(quantized, precision="int8").embed_sentence(["Yes"])
    assert max_difference(low, nlp("Yes")._.elmo_layers) <= 1e-6
    for options in ((), ("--format", "safetensors")):
        out = tmp_path / f"out{len(options)}"
        succeed("export", quantized, out, *options)
        assert max_difference(current_session(load_bilm(out)).embed([["Yes"]])[0], expected) <= 1e-6
    facts = json.loads(succeed("info", quantized, "--json"))["elmo"]
    assert (facts["exact in"], facts["precision"]) == ("int8", "int8")


@pytest.mark.filterwarnings("ignore:precision 'tf32'")
@pytest.mark.parametrize("precision", ["float32", "auto", "tf32"])
def test_float16(precision: str, pipeline: Path, tmp_path: Path):
    load(pipeline, precision=precision).to_disk(tmp_path / "before")
    output = succeed("quantize", tmp_path / "before", tmp_path / "out", "--precision", "float16")
    assert precision_of(tmp_path / "out") == precision
    assert f"runs in {precision}" in " ".join(output.split())
    nlp = spacy.load(tmp_path / "out")
    bilm = nlp.get_pipe("elmo").bilm
    assert fits_half(bilm)
    for name, weight in load_bilm(pipeline).named_parameters():
        assert torch.equal(bilm.get_parameter(name), weight.half().float())
    assert max_difference(layers(nlp), layers(spacy.load(pipeline))) < 5e-3
    sizes = [(path / "elmo" / "model").stat().st_size for path in (tmp_path / "out", pipeline)]
    n_parameters = sum(weight.numel() for weight in bilm.parameters())
    assert sizes[1] - sizes[0] == pytest.approx(2 * n_parameters, rel=0.2)


@pytest.fixture
def trained(weights_folder: Path, tmp_path: Path) -> Path:
    """A pipeline with a tagger that listens."""
    nlp = elmo_pipeline(weights_folder)
    add_tagger(nlp)
    optimizer = nlp.initialize(lambda: tagged(nlp))
    for _ in range(30):
        nlp.update(tagged(nlp), sgd=optimizer)
    nlp.to_disk(tmp_path / "trained")
    return tmp_path / "trained"


def tags(nlp: Language) -> list[list[str]]:
    docs = nlp.pipe(example.reference.copy() for example in tagged(nlp))
    return [[token.tag_ for token in doc] for doc in docs]


def parameters(nlp: Language) -> list[numpy.ndarray]:
    model = nlp.get_pipe("tagger").model
    return [n.get_param(x) for n in model.walk() for x in n.param_names if n.has_param(x)]


def test_a_trained_component_stays_and_works(trained: Path, tmp_path: Path):
    before = spacy.load(trained)
    succeed("quantize", trained, tmp_path / "out")
    after = spacy.load(tmp_path / "out")
    assert tags(after) == tags(before)
    assert_close(parameters(after), parameters(before), 0)
    assert after.get_pipe("elmo").checksum != before.get_pipe("elmo").checksum


@pytest.mark.parametrize("frozen", [False, True])
def test_an_int8_pipeline_is_trained_further(frozen: bool, trained: Path, tmp_path: Path):
    succeed("quantize", trained, tmp_path / "out")
    nlp = spacy.load(tmp_path / "out", config={"components": {"elmo": {"frozen": frozen}}})
    optimizer = nlp.resume_training()
    before = tmp_path / "out" / "elmo" / "model"
    for _ in range(3):
        nlp.update(tagged(nlp), sgd=optimizer)
    nlp.to_disk(tmp_path / "further")
    after = tmp_path / "further" / "elmo" / "model"
    assert (before.read_bytes() == after.read_bytes()) is frozen
    assert fits_int8(nlp.get_pipe("elmo").bilm) is frozen
    again = spacy.load(tmp_path / "further")
    assert numpy.allclose(layers(again), layers(nlp), atol=1e-6)
    assert tags(again) == tags(nlp)


def test_one_of_several_components(pipeline: Path, tmp_path: Path):
    """They share a biLM in memory: the other keeps its weights."""
    nlp = spacy.load(pipeline)
    second = nlp.add_pipe("elmo", name="second", config={"model": {"weights": None}})
    set_bilm(second.model, nlp.get_pipe("elmo").bilm)
    nlp.to_disk(tmp_path / "two")
    assert "choose one with --name" in fail("quantize", tmp_path / "two", tmp_path / "out")
    succeed("quantize", tmp_path / "two", tmp_path / "out", "--name", "second")
    two, out = (tmp_path / name / "elmo" / "model" for name in ("two", "out"))
    assert two.read_bytes() == out.read_bytes()
    config = spacy.load(tmp_path / "out").config["components"]
    assert [config[x]["model"]["precision"] for x in ("elmo", "second")] == ["float32", "int8"]


def test_cost_on_texts_of_the_user(pipeline: Path, tmp_path: Path):
    (tmp_path / "a.txt").write_text("\n".join(TEXTS))
    nlp = spacy.load(pipeline)
    nlp.add_pipe("sentencizer", before="elmo")
    nlp.to_disk(pipeline)
    output = succeed("quantize", pipeline, tmp_path / "out", "--texts", tmp_path / "a.txt")
    exact, low = layers(spacy.load(pipeline)), layers(spacy.load(tmp_path / "out"))
    cosines = torch.cosine_similarity(torch.tensor(exact), torch.tensor(low), dim=-1)
    assert f"{exact.shape[1]} tokens" in output
    for number, row in enumerate(cosines):
        [line] = [x.split() for x in output.splitlines() if x.split()[:1] == [str(number)]]
        assert float(line[1]) == pytest.approx(float(row.min()), abs=2e-5)
        assert float(line[2]) == pytest.approx(float(row.mean()), abs=2e-5)


@pytest.mark.parametrize("packed", [False, True])
def test_weights_become_a_pipeline(packed: bool, hdf5_folder: Path, bilm: BiLM, tmp_path: Path):
    source = hdf5_folder
    if packed:
        source = Path(shutil.make_archive(str(tmp_path / "packed"), "zip", hdf5_folder))
    output = succeed("quantize", source, tmp_path / "out")
    nlp = spacy.load(tmp_path / "out")
    assert (nlp.lang, nlp.pipe_names) == ("xx", ["sentencizer", "elmo"])
    assert is_int8(nlp)
    before = 4 * sum(parameter.numel() for parameter in bilm.parameters())
    assert f"MB instead of {before / 1e6:.1f}" in " ".join(output.split())


def test_a_folder_inside_the_other(pipeline: Path, tmp_path: Path, monkeypatch):
    (tmp_path / "alias").symlink_to(pipeline)
    monkeypatch.chdir(pipeline)
    for out in (pipeline, pipeline / "out", tmp_path, tmp_path / "alias" / "x", Path("y")):
        before = sorted(tmp_path.rglob("*"))
        assert "one inside the other" in fail("quantize", pipeline, out, "--force")
        assert sorted(tmp_path.rglob("*")) == before


def test_bad_input(pipeline: Path, tmp_path: Path):
    out = tmp_path / "out"
    assert "choose one of int8, float16" in fail("quantize", pipeline, out, "-p", "int4")
    (tmp_path / "empty.txt").write_text("\n \n")
    assert "no words" in fail("quantize", pipeline, out, "--texts", tmp_path / "empty.txt")
    succeed("quantize", pipeline, tmp_path / "half", "--precision", "float16")
    message = fail("quantize", tmp_path / "half", out, "-p", "float16")
    assert "'elmo' are float16 already" in message
    bilm = random_bilm()
    with torch.no_grad():
        bilm.get_parameter("token_encoder.convolutions.0.weight")[0] = 1e5
    nlp = spacy.load(pipeline)
    set_bilm(nlp.get_pipe("elmo").model, bilm)
    nlp.to_disk(tmp_path / "large")
    assert "convolutions.0.weight holds" in fail("quantize", tmp_path / "large", out)
    assert not out.exists()
