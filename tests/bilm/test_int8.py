"""Weights in 8 bits: rounding, files, and biLMs whose LSTMs have no other weights in memory."""

from __future__ import annotations

import warnings
from copy import deepcopy
from pathlib import Path

import numpy
import pytest
import safetensors.torch
import torch

from spacy_elmo.bilm import BiLM, BiLMConfig
from spacy_elmo.bilm.int8 import Int8Weight
from spacy_elmo.formats import (
    fits_half,
    fits_int8,
    hdf5,
    load,
    round_to_int8,
    safetensors_format,
)
from spacy_elmo.inference import Settings, current_session

from ..conftest import TINY, random_bilm
from ..formats.test_formats import CONFIGS, SENTENCES, assert_refused, assert_same, change_tensors

INT8 = Settings("int8")
GATES = "lstm.forward_layers.1.gate_weight"


def rounded(config: BiLMConfig = TINY) -> BiLM:
    bilm = random_bilm(config)
    round_to_int8(bilm)
    return bilm


def in_8_bits(config: BiLMConfig = TINY) -> BiLM:
    bilm = safetensors_format.from_bytes(
        safetensors_format.to_bytes(rounded(config)), keep_int8=True
    )
    assert bilm.is_int8
    return bilm


def embed(bilm: BiLM, settings: Settings = INT8) -> torch.Tensor:
    return torch.cat(current_session(bilm, settings).embed(SENTENCES), dim=1)


def test_weights_in_8_bits_have_no_gradients():
    bilm = in_8_bits()
    with pytest.raises(ValueError, match=r"8 bits.*dequantize\(\)"):
        bilm(["a"], numpy.array([0]), [1], mixed_precision=True)
    bilm.dequantize()
    assert bilm(["a"], numpy.array([0]), [1]).shape[1] == 1


# ----------------------------------------------------------------------------------------- rounding


@pytest.mark.parametrize("scale", [1e-20, 0.05, 1.0, 1e20])
def test_numbers_and_scales_are_those_of_pytorch(scale: float):
    torch.manual_seed(0)
    weight = torch.randn(500, 300) * scale * torch.rand(500, 1)
    scales = weight.abs().amax(1) / 127
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        zeros = torch.zeros(500, dtype=torch.int64)
        expected = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
    int8 = Int8Weight.quantize(weight)
    assert torch.equal(int8.values, expected.int_repr())
    assert torch.equal(int8.scales, scales[None])
    assert torch.equal(int8.dequantize(), expected.dequantize())


@pytest.mark.parametrize("scale", [1e-25, 1e-3, 1.0, 3e38])
def test_quantising_again_changes_nothing(scale: float):
    generator = numpy.random.default_rng(0)
    weight = torch.from_numpy(generator.uniform(-1, 1, (20000, 9)).astype("float32")) * scale
    weight[5], weight[6, :3] = 0.0, 0.0
    first = Int8Weight.quantize(weight, (3, 6))
    second = Int8Weight.quantize(first.dequantize(), (3, 6))
    assert torch.equal(first.values, second.values)
    assert torch.equal(first.scales, second.scales)


def test_products_side_by_side_have_scales_of_their_own():
    torch.manual_seed(0)
    weight = torch.randn(8, 10)
    weight[:, :4] *= 1000
    whole = Int8Weight.quantize(weight, (4, 6))
    for part, columns in zip(whole.split(), weight.split((4, 6), dim=1)):
        assert torch.equal(part.dequantize(), Int8Weight.quantize(columns).dequantize())
    assert (whole.dequantize() - weight)[:, 4:].abs().max() <= 4 / 254


def test_what_is_rounded():
    """Embeddings and biases are not."""
    exact, low = random_bilm(), rounded()
    for name, weight in low.named_parameters():
        half = exact.get_parameter(name).half().float()
        if "convolutions" in name and name.endswith("weight"):
            assert torch.equal(weight, half), name
        elif name.endswith("bias") or "embedding" in name:
            assert torch.equal(weight, exact.get_parameter(name)), name
        else:
            assert not torch.equal(weight, exact.get_parameter(name)), name
    assert fits_int8(low) and not fits_int8(exact)
    assert not fits_half(low)


@pytest.mark.parametrize("name", CONFIGS)
def test_rounded_weights_run_in_int8_as_the_exact_ones_do(name: str):
    """The precision computes with just these weights."""
    exact, low = random_bilm(CONFIGS[name]), rounded(CONFIGS[name])
    assert torch.equal(embed(exact), embed(low))
    assert not torch.equal(embed(low), embed(exact, Settings()))


# -------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("name", CONFIGS)
def test_round_trips(name: str, tmp_path: Path):
    low = rounded(CONFIGS[name])
    safetensors_format.write(low, tmp_path / "native")
    hdf5.write(low, tmp_path / "hdf5")
    assert_same(low, load(tmp_path / "native"))
    assert_same(low, load(tmp_path / "hdf5"))
    assert_same(low, safetensors_format.from_bytes(safetensors_format.to_bytes(low)))
    safetensors_format.write(load(tmp_path / "hdf5"), tmp_path / "again")
    data = [(tmp_path / x / "weights.safetensors").read_bytes() for x in ("native", "again")]
    assert data[0] == data[1] == safetensors_format.to_bytes(low)


def test_what_is_stored(tmp_path: Path):
    safetensors_format.write(rounded(), tmp_path / "weights")
    stored = safetensors.torch.load_file(tmp_path / "weights" / "weights.safetensors")
    kinds = {name: (str(x.dtype)[6:], tuple(x.shape)) for name, x in stored.items()}
    assert kinds[GATES] == ("int8", (48, 12))
    assert kinds[f"{GATES}.scales"] == ("float32", (2, 48))
    projection = "lstm.backward_layers.0.projection_weight"
    assert kinds[projection] == ("int8", (6, 12))
    assert kinds[f"{projection}.scales"] == ("float32", (1, 6))
    assert kinds["token_encoder.convolutions.2.weight"] == ("float16", (8, 4, 3))
    assert kinds["token_encoder.char_embedding.weight"] == ("float32", (262, 4))


# -------------------------------------------------------------------------------- 8 bits in memory


@pytest.mark.parametrize("name", CONFIGS)
def test_lstms_run_in_8_bits_without_other_weights(name: str):
    low, bilm = rounded(CONFIGS[name]), in_8_bits(CONFIGS[name])
    assert bilm.get_parameter("lstm.forward_layers.0.gate_weight").is_meta
    session = current_session(bilm, INT8)
    assert torch.equal(embed(bilm), embed(low))
    assert session.checksum == current_session(low, INT8).checksum
    assert session is current_session(bilm, INT8)
    assert bilm.is_int8


def test_an_8_bit_bilm_is_saved_and_copied_as_it_is():
    bilm = in_8_bits()
    assert safetensors_format.to_bytes(bilm) == safetensors_format.to_bytes(rounded())
    copy = deepcopy(bilm)
    copy.dequantize()
    assert bilm.is_int8 and not copy.is_int8
    assert torch.equal(embed(copy), embed(bilm))


def test_dequantised_weights_are_the_rounded_ones():
    bilm = in_8_bits()
    before = embed(bilm)
    bilm.dequantize()
    assert not bilm.is_int8
    assert_same(rounded(), bilm)
    assert torch.equal(embed(bilm), before)
    assert all(parameter.requires_grad for parameter in bilm.parameters())
    bilm.dequantize()
    assert_same(rounded(), bilm)


# ------------------------------------------------------------------------------------------- damage


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    safetensors_format.write(rounded(), tmp_path / "int8")
    return tmp_path / "int8"


def refused(folder: Path, *words: str) -> None:
    assert_refused(folder, str(folder / "weights.safetensors"), *words)
    data = (folder / "weights.safetensors").read_bytes()
    for keep_int8 in (False, True):
        with pytest.raises(ValueError) as error:
            safetensors_format.from_bytes(data, keep_int8=keep_int8)
        assert all(word in str(error.value) for word in words)


@pytest.mark.parametrize("shape", [(1, 48), (48,), (2, 47), (48, 2), (2, 48, 1), (0, 48)])
def test_scales_of_another_shape(shape: tuple[int, ...], folder: Path):
    name = f"{GATES}.scales"
    change_tensors(folder, lambda tensors: tensors.update({name: torch.ones(shape)}))
    refused(folder, name, "do not fit the options")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -1.0, 1e37])
def test_scales_that_are_none(value: float, folder: Path):
    name = f"{GATES}.scales"
    change_tensors(folder, lambda tensors: tensors[name][1, 3:5].fill_(value))
    refused(folder, name)
