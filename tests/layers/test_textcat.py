"""The text classifier that adds the scores of a bag of words and of the mean vector."""

from __future__ import annotations

import numpy
import pytest
from spacy.training import Example
from spacy.util import registry
from thinc.api import fix_random_seed

from ..conftest import elmo_pipeline, listener, max_difference

TEXTS = {
    "the bank pays money": "money",
    "money flows to the bank": "money",
    "the river flows": "water",
    "a bank of the river": "water",
    "": "water",
}
LABELS = ["money", "water"]


def train(folder, name, n_updates):
    fix_random_seed(0)
    nlp = elmo_pipeline(folder)
    model = {
        "@architectures": "spacy-elmo.TextCatSum.v1",
        "tok2vec": listener(),
        "exclusive_classes": name == "textcat",
    }
    nlp.add_pipe(name, config={"model": model})
    examples = []
    for text, label in TEXTS.items():
        cats = {x: float(x == label) for x in LABELS}
        examples.append(Example.from_dict(nlp.make_doc(text), {"cats": cats}))
    optimizer = nlp.initialize(lambda: examples)
    optimizer.learn_rate = 0.02
    for _ in range(n_updates):
        nlp.update(examples, sgd=optimizer)
    return nlp


def cats(nlp):
    return numpy.array([[d.cats[x] for x in LABELS] for d in nlp.pipe(TEXTS)])


def test_it_learns_by_both(weights_folder):
    nlp = train(weights_folder, "textcat", 60)
    assert [LABELS[i] for i in cats(nlp).argmax(axis=1)] == list(TEXTS.values())
    model = nlp.get_pipe("textcat").model
    assert abs(model.get_ref("output_layer").get_param("W")).max() > 0.01
    assert numpy.ptp(model.get_ref("bag_of_words").predict([nlp.make_doc("money")])) > 0.1


@pytest.mark.parametrize("name", ["textcat", "textcat_multilabel"])
def test_scores_are_the_formula(weights_folder, name):
    """With the parameters of spaCy's own bag of words, and NumPy for the rest."""
    nlp = train(weights_folder, name, 5)
    model = nlp.get_pipe(name).model
    nodes = {node.name: node for node in model.walk()}
    linear = registry.architectures.get("spacy.TextCatBOW.v3")(
        exclusive_classes=True, ngram_size=1, no_output_layer=True, nO=2
    )
    linear.initialize()
    linear.from_dict(model.get_ref("bag_of_words").to_dict())
    mix, norm, output = nodes["scalar_mix"], nodes["layernorm"], model.get_ref("output_layer")
    raw = numpy.exp(mix.get_param("weights"))
    expected = []
    for doc in nlp.pipe(TEXTS):
        width = output.get_dim("nI")
        layers = doc._.elmo_layers if len(doc) else numpy.zeros((len(raw), 1, width), "f")
        mean = mix.get_param("gamma") * numpy.tensordot(raw / raw.sum(), layers, 1).mean(axis=0)
        x = (mean - mean.mean()) / numpy.sqrt(mean.var() + 1e-8)
        x = x * norm.get_param("G") + norm.get_param("b")
        logits = linear.predict([doc])[0] + output.get_param("W") @ x + output.get_param("b")
        p = numpy.exp(logits)
        expected.append(p / p.sum() if name == "textcat" else p / (1 + p))
    assert numpy.abs(numpy.diff(expected)).min() > 0.01
    assert max_difference(cats(nlp), expected) < 1e-5
