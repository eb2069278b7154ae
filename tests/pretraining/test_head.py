"""The output layer that is kept beside a model."""

import json
import re

import pytest
import torch

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
