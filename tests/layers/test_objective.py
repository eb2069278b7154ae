"""`spacy pretrain` with our objective."""

from __future__ import annotations

import numpy
import pytest
import spacy
import srsly
import torch
from spacy.cli import app
from spacy.cli.init_config import fill_config
from spacy.tokens import Doc, DocBin
from spacy.training.initialize import init_nlp
from spacy.vocab import Vocab
from thinc.api import NumpyOps, Ops
from typer.testing import CliRunner

from spacy_elmo.inference import Settings
from spacy_elmo.layers.encoder import ElmoEncoder, get_bilm
from spacy_elmo.layers.objective import BiLMObjective, loss
from spacy_elmo.segmenters import sentences

from ..conftest import max_difference, random_bilm
from ..pretraining.conftest import sentences as lines

CONFIG = """
[paths]
train = null
dev = null
raw = null
init_tok2vec = null
[nlp]
lang = "en"
pipeline = ["elmo"]
[components]
[components.elmo]
factory = "elmo"
[components.elmo.model]
@architectures = "spacy-elmo.BiLM.v1"
dim = 16
projection_dim = 8
filters = [[1, 4], [2, 8]]
[corpora]
[corpora.pretrain]
@readers = "spacy.JsonlCorpus.v1"
path = ${paths.raw}
[pretraining]
component = "elmo"
layer = ""
max_epochs = 6
corpus = "corpora.pretrain"
[pretraining.batcher]
@batchers = "spacy.batch_by_words.v1"
size = 200
[pretraining.optimizer]
@optimizers = "Adam.v1"
learn_rate = 0.01
[pretraining.objective]
@architectures = "spacy-elmo.BiLMObjective.v1"
rows = 200
[training]
[initialize]
init_tok2vec = ${paths.init_tok2vec}
"""


def test_spacy_pretrain(tmp_path):
    """The loss falls, and the weights load through `init_tok2vec`."""
    config = tmp_path / "config.cfg"
    bare = tmp_path / "bare.cfg"
    bare.write_text(CONFIG)
    fill_config(config, bare, pretraining=True, silent=True)
    srsly.write_jsonl(tmp_path / "raw.jsonl", [{"text": line} for line in lines()])
    run = ["pretrain", config, tmp_path / "out", "--paths.raw", tmp_path / "raw.jsonl"]
    result = CliRunner().invoke(app, [str(argument) for argument in run])
    assert result.exit_code == 0, (result.output, result.exception)
    log = list(srsly.read_jsonl(tmp_path / "out" / "log.jsonl"))
    losses = [record["epoch_loss"] for record in log if record["epoch"] < 6]
    assert losses[5] < 0.7 * losses[0]
    docs = [Doc(spacy.blank("en").vocab, words=["The", "bank"])]
    DocBin(docs=docs).to_disk(tmp_path / "train.spacy")
    overrides = {
        "paths.train": str(tmp_path / "train.spacy"),
        "paths.dev": str(tmp_path / "train.spacy"),
        "paths.raw": str(tmp_path / "raw.jsonl"),
        "paths.init_tok2vec": str(tmp_path / "out" / "model-last.bin"),
    }
    nlp = init_nlp(spacy.util.load_config(config, overrides=overrides))
    again = init_nlp(spacy.util.load_config(config, overrides=overrides))
    first, second = (n.get_pipe("elmo").bilm.state_dict() for n in (nlp, again))
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    assert nlp("Anna likes the river")._.elmo_layers.shape == (3, 4, 16)


def test_gradient():
    """Through the output layer, against small differences of the loss."""
    encoder = ElmoEncoder(random_bilm, sentences(), Settings())
    get_bilm(encoder).double()
    model = BiLMObjective(30)(Vocab(), encoder)
    vocab = spacy.blank("en").vocab
    docs = [Doc(vocab, words=words) for words in (["The", "bank", "\n", "flows"], [], ["a", "b"])]
    model.initialize(X=docs)
    head = model.get_ref("head")
    head.ops = Ops()  # NumpyOps multiplies float32 matrices only.
    head.set_param("W", numpy.random.default_rng(0).normal(size=head.get_param("W").shape))
    ops = NumpyOps()
    scores, backprop = model.begin_update(docs)
    _, gradient = loss(ops, docs, scores)
    backprop(gradient)
    n = 2 * (2 + 1)  # Three words and two words, in both directions.
    parameter = get_bilm(encoder).lstm.backward_layers[1].projection_weight
    actual = parameter.grad.clone()
    for index in ((0, 0), (3, 5)):
        values = []
        for step in (1e-3, -1e-3):
            with torch.no_grad():
                parameter[index] += step
            values.append(loss(ops, docs, model.predict(docs))[0] / n)
            with torch.no_grad():
                parameter[index] -= step
        assert actual[index] == pytest.approx((values[0] - values[1]) / 2e-3, rel=0.02, abs=1e-5)


def test_targets():
    """Each word predicts its neighbours in the doc; whitespace is not there."""
    vocab = spacy.blank("en").vocab
    doc = Doc(vocab, words=["a", "\n", "b"])
    rows = [vocab.strings[word] % 7 for word in ("a", "b")]
    scores = numpy.full((6, 7), 1 / 7, dtype="float32")
    total, gradient = loss(NumpyOps(), [doc], scores)
    assert total == pytest.approx(2 * numpy.log(7), rel=1e-5)
    expected = numpy.zeros((6, 7))
    expected[0] = expected[5] = 1 / 14
    expected[0, rows[1]] -= 0.5  # a reads forward, and predicts b.
    expected[5, rows[0]] -= 0.5  # b reads backward, and predicts a.
    assert max_difference(gradient, expected) < 1e-6


def test_wrong_component():
    with pytest.raises(ValueError, match="trains an elmo component"):
        BiLMObjective(10)(Vocab(), spacy.blank("en").add_pipe("tok2vec").model)
