"""Every component of spaCy that reads a tok2vec, over each of ours."""

from __future__ import annotations

import inspect

import numpy
import pytest
import spacy
from spacy.kb import InMemoryLookupKB
from spacy.language import Language
from spacy.pipeline import EntityLinker
from spacy.tokens import Doc
from spacy.training import Example
from spacy.util import registry
from thinc.api import Adam

from ..conftest import SCALAR_MIX, elmo_pipeline, listener, tok2vec

# The architectures that take a tok2vec, and the factories whose components can have them.
TAGGERS = ("tagger", "morphologizer", "senter", "trainable_lemmatizer")
PARSERS = ("parser", "ner", "beam_parser", "beam_ner")
ARCHITECTURES = {
    "spacy.Tagger.v2": TAGGERS,
    "spacy-legacy.Tagger.v1": ("tagger",),
    "spacy.TransitionBasedParser.v2": PARSERS,
    "spacy-legacy.TransitionBasedParser.v1": ("ner",),
    "spacy.TextCatEnsemble.v2": ("textcat", "textcat_multilabel"),
    "spacy.TextCatReduce.v1": ("textcat",),
    "spacy.TextCatParametricAttention.v1": ("textcat",),
    "spacy.TextCatCNN.v2": ("textcat",),
    "spacy-legacy.TextCatCNN.v1": ("textcat",),
    "spacy-elmo.TextCatSum.v1": ("textcat", "textcat_multilabel"),
    "spacy.SpanCategorizer.v1": ("spancat", "spancat_singlelabel"),
    "spacy.SpanFinder.v1": ("span_finder",),
    "spacy.EntityLinker.v2": ("entity_linker",),
}
# Makes docs of sentences and trains on them: no listener works in it, spaCy's own neither (E953).
OTHER_ARCHITECTURES = {"spacy-legacy.EntityLinker.v1"}
# The morphologizer with another default, for a language whose tokenizer is another package; and one
# whose architecture, spacy.MultiTask.v1, is not in spaCy 3.8.
OTHER_FACTORIES = {"ja.morphologizer", "nn_labeller"}
SOURCES = {"listener": listener(), "tok2vec": tok2vec(SCALAR_MIX, SCALAR_MIX)}
CASES = [
    (factory, architecture) for architecture, names in ARCHITECTURES.items() for factory in names
]
each_component = pytest.mark.parametrize(
    "factory, architecture", CASES, ids=[f"{name}-{block}" for name, block in CASES]
)
each_source = pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
WORDS = ["Anna", "lives", "in", "Rome", ".", "She", "likes", "it", "."]


def test_no_component_is_left_out():
    spacy.blank("en")  # Registers them.
    architectures = {
        name
        for name, function in registry.architectures.get_all().items()
        if "tok2vec" in inspect.signature(function).parameters
    }
    assert architectures == set(ARCHITECTURES) | OTHER_ARCHITECTURES
    factories = {
        name
        for name in registry.factories.get_all()
        if "tok2vec" in (Language.get_factory_meta(name).default_config.get("model") or {})
    }
    assert factories == {factory for factory, _ in CASES} | OTHER_FACTORIES


def examples(nlp):
    """Two sentences with all annotations, of which each component takes its own."""
    reference = {
        "words": WORDS,
        "tags": ["N", "V", "P", "N", ".", "N", "V", "N", "."],
        "pos": ["PROPN", "VERB", "ADP", "PROPN", "PUNCT", "PRON", "VERB", "PRON", "PUNCT"],
        "lemmas": ["Anna", "live", "in", "Rome", ".", "she", "like", "it", "."],
        "heads": [1, 1, 1, 2, 1, 6, 6, 6, 6],
        "deps": ["nsubj", "ROOT", "prep", "pobj", "punct", "nsubj", "ROOT", "dobj", "punct"],
        "sent_starts": [True, False, False, False, False, True, False, False, False],
        "entities": [(0, 4, "PERSON"), (14, 18, "PLACE")],
        "links": {(0, 4): {"Q1": 1.0, "Q2": 0.0}},
        "spans": {"sc": [(0, 4, "PERSON"), (14, 18, "PLACE")]},
        "cats": {"good": 1.0, "bad": 0.0},
    }
    return [Example.from_dict(Doc(nlp.vocab, words=WORDS), reference)]


def add_component(nlp, factory, architecture, source):
    """With the defaults of the component, but for the tok2vec."""
    model = Language.get_factory_meta(factory).default_config["model"]
    parameters = inspect.signature(registry.architectures.get(architecture)).parameters
    settings = {key: value for key, value in model.items() if key in parameters}
    settings |= {"@architectures": architecture, "tok2vec": source}
    if "exclusive_classes" in parameters:
        settings["exclusive_classes"] = factory == "textcat"
    if "length" in parameters:
        settings["length"] = 256
    if "linear_model" in settings:
        settings["linear_model"] = {**settings["linear_model"], "length": 256}
    if architecture == "spacy.TextCatReduce.v1":
        settings |= {f"use_reduce_{name}": True for name in ("first", "last", "max", "mean")}
    config = {"model": settings}
    if factory.startswith("beam"):
        config["beam_width"] = 2
    if factory.startswith("spancat"):
        config["suggester"] = {"@misc": "spacy.ngram_suggester.v1", "sizes": [1, 2]}
    if factory in ("spancat", "span_finder"):
        config["threshold"] = 0.0
    if factory in ("parser", "beam_parser"):
        config["min_action_freq"] = 1
    if factory == "trainable_lemmatizer":
        config["min_tree_freq"] = 1
    component = nlp.add_pipe(factory, name="task", config=config)
    if factory == "entity_linker":
        component.set_kb(make_kb)


def make_kb(vocab):
    kb = InMemoryLookupKB(vocab, entity_vector_length=5)
    for number, entity in enumerate(("Q1", "Q2")):
        kb.add_entity(entity, freq=3, entity_vector=numpy.eye(5)[number])
    kb.add_alias("Anna", ["Q1", "Q2"], [0.5, 0.5])
    return kb


def predictions(nlp):
    """What the component writes to a doc, and the scores behind it."""
    doc = Doc(nlp.vocab, words=WORDS)
    if isinstance(nlp.get_pipe("task"), EntityLinker):
        doc = examples(nlp)[0].reference.copy()
    spacy.util.fix_random_seed(0)  # The entity linker shuffles the candidates.
    doc = nlp(doc)
    result = doc.to_json()
    for key, spans in doc.spans.items():
        result[key] = [str(span) for span in spans], list(spans.attrs.get("scores", ()))
    result["kb"] = [ent.kb_id_ for ent in doc.ents]
    return result


@each_source
@each_component
def test_it_runs(tmp_path, tiny_folders, factory, architecture, source):
    nlp = elmo_pipeline(tiny_folders / "weights", lang="xx")
    add_component(nlp, factory, architecture, source)
    optimizer = nlp.initialize(lambda: examples(nlp), sgd=Adam(0.1))
    losses = {}
    for _ in range(10):
        nlp.update(examples(nlp), sgd=optimizer, losses=losses)
    assert losses["task"] > 0
    expected = predictions(nlp)
    nlp.to_disk(tmp_path / "saved")
    again = spacy.load(tmp_path / "saved")
    assert predictions(again) == expected
    if hasattr(again.get_pipe("task"), "_rehearsal_model"):
        sgd = again.resume_training(sgd=Adam(0.1))
        again.update(examples(again), sgd=sgd)
        assert again.rehearse(examples(again), sgd=sgd)["task"] >= 0
    nlp.replace_listeners("elmo", "task", ["model.tok2vec"])
    nlp.remove_pipe("elmo")
    assert predictions(nlp) == expected


@pytest.mark.parametrize(
    "block, width",
    [
        (listener({"@layers": "spacy-elmo.LearnedMix.v1", "width": 7}), 7),
        (tok2vec(SCALAR_MIX, None), 8),
        (tok2vec(SCALAR_MIX, {"@layers": "spacy-elmo.LearnedMix.v1", "width": 7}), 15),
        (tok2vec(None, SCALAR_MIX), None),
        (listener(), None),
    ],
)
def test_a_width_is_known_as_soon_as_it_can_be(block, width):
    """Other packages may ask for it when they make a model."""
    model = registry.resolve({"tok2vec": block})["tok2vec"]
    assert model.maybe_get_dim("nO") == width
