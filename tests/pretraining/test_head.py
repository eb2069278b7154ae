"""The output layer that is kept beside a model."""

import json
import re

import pytest
import torch
from safetensors.torch import load_file, save_file

from spacy_elmo.pretraining.config import LossConfig
from spacy_elmo.pretraining.head import Head, load_head, load_language_model, write_head
from spacy_elmo.pretraining.language_model import LanguageModel
from spacy_elmo.pretraining.tokenize import TokenizationConfig

from ..conftest import WORDS, random_bilm

LOSS = LossConfig("adaptive", cutoffs=(3,))


@pytest.fixture
def folder(tmp_path):
    model = LanguageModel(random_bilm(), len(WORDS), LOSS)
    folder = tmp_path / "model.head"
    folder.mkdir()
    tokenization = TokenizationConfig(max_length=70)
    write_head(folder, Head(list(WORDS), LOSS, model.output.state_dict(), tokenization))
    return folder


def change(folder, section, name, value):
    path = folder / "head.json"
    about = json.loads(path.read_text(encoding="utf8"))
    (about[section] if section else about)[name] = value
    path.write_text(json.dumps(about), encoding="utf8")


def test_round_trip(folder):
    model, head = load_language_model(random_bilm(), folder.with_name("model"))
    assert head.words == list(WORDS)
    assert (head.loss.name, list(head.loss.cutoffs)) == ("adaptive", [3])
    assert head.tokenization == TokenizationConfig(max_length=70)
    tensors = model.output.state_dict()
    assert tensors.keys() == head.tensors.keys()
    assert all(torch.equal(value, head.tensors[name]) for name, value in tensors.items())


def test_rounded_matrices_are_stored_in_8_bits(folder):
    head = load_head(folder)
    for name, tensor in head.tensors.items():
        if tensor.dim() == 2:
            scale = tensor.abs().amax(1, keepdim=True) / 127
            head.tensors[name] = torch.round(tensor / scale) * scale
    write_head(folder, head)
    stored = load_file(folder / "head.safetensors")
    matrices = {name for name, tensor in head.tensors.items() if tensor.dim() == 2}
    assert {name for name, tensor in stored.items() if tensor.dtype == torch.int8} == matrices
    loaded = load_head(folder).tensors
    assert all(torch.equal(value, head.tensors[name]) for name, value in loaded.items())
    for change in (lambda x: x * float("nan"), lambda x: -x, lambda x: x[:, 1:]):
        name = f"{min(matrices)}.scales"
        save_file(stored | {name: change(stored[name]).contiguous()}, folder / "head.safetensors")
        with pytest.raises(ValueError, match=re.escape(name)):
            load_head(folder)


@pytest.mark.parametrize(
    "section, name, value",
    [
        ("loss", "cutoffs", ["a"]),
        ("loss", "more", 1),
        ("tokenization", "lang", 5),
        ("", "loss", []),
    ],
)
def test_bad_settings_name_the_folder_and_the_setting(folder, section, name, value):
    change(folder, section, name, value)
    with pytest.raises(ValueError, match=rf"{re.escape(str(folder))}.*{name}"):
        load_head(folder)
