"""Pretraining that starts from a model of ELMoForManyLangs."""

import numpy
import pytest

from spacy_elmo.formats import load
from spacy_elmo.inference import current_session
from spacy_elmo.pretraining.batches import SentenceBatches
from spacy_elmo.pretraining.config import LossConfig
from spacy_elmo.pretraining.corpus import Corpus
from spacy_elmo.pretraining.language_model import LanguageModel

from ..conftest import max_difference
from ..families import manylangs
from ..families.network import random_model


@pytest.fixture
def folder(tmp_path):
    architecture, weights, _ = random_model(manylangs)
    assert architecture["word_dim"]
    return manylangs.write(tmp_path / "xx", architecture, weights)


def test_sentences_have_the_boundaries_of_the_model(folder, corpus: Corpus):
    bilm = load(folder)
    model = LanguageModel(bilm, len(corpus.words), LossConfig("sampled")).eval()
    words = [corpus.train.types[i] for i in corpus.train.ids[: corpus.train.ends[0]]]
    batch = SentenceBatches(corpus.train, [numpy.array([0])]).read(0)
    top = model.top(batch).detach()[0]
    assert len(top) == len(words) + 1
    [layers] = current_session(bilm).embed([words])
    assert max_difference(top[1:], layers[-1, :, : top.shape[1]]) <= 1e-5
