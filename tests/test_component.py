"""The "elmo" component in a pipeline: what it writes, in which order, and what it keeps."""

from __future__ import annotations

import itertools
import warnings

import numpy
import pytest
import spacy
from spacy.tokens import Doc, DocBin
from spacy.util import registry
from spacy.vocab import Vocab

from spacy_elmo.extensions import get_layers
from spacy_elmo.formats import round_to_int8, safetensors_format
from spacy_elmo.inference import current_session
from spacy_elmo.layers.encoder import get_shim

from .conftest import TINY, elmo_pipeline, max_difference, random_bilm

N_LAYERS, WIDTH = TINY.n_activations, TINY.output_dim
TEXTS = [
    "The bank of the river was steep.",
    "Money!",
    "",
    "Banks  lend\tmoney , and rivers have banks . \n\n Both flow .",
    " \n ",
    "a " * 70,
]


def words(doc):
    return [token.text for token in doc if not token.is_space]


def expected_layers(bilm, doc):
    """What the biLM says about the doc as one sequence, zeros in the rows of whitespace."""
    layers = numpy.zeros((N_LAYERS, len(doc), WIDTH), dtype="float32")
    kept = [token.i for token in doc if not token.is_space]
    layers[:, kept] = current_session(bilm).embed([words(doc)])[0].numpy()
    return layers


@pytest.mark.parametrize("text", TEXTS)
def test_layers_and_tokens_are_those_of_the_bilm(nlp, bilm, text):
    doc = nlp(text)
    layers, tokens = doc._.elmo_layers, doc._.elmo_tokens
    assert type(layers) is numpy.ndarray and type(tokens) is numpy.ndarray
    assert layers.dtype == tokens.dtype == numpy.float32
    assert layers.shape == (N_LAYERS, len(doc), WIDTH)
    assert tokens.shape == (len(doc), WIDTH)
    assert max_difference(layers, expected_layers(bilm, doc)) < 1e-5
    assert max_difference(tokens, layers.mean(axis=0)) < 1e-6


def test_sentences_are_read_apart(nlp, bilm):
    nlp.add_pipe("sentencizer", before="elmo")
    doc = nlp("The bank . \n Money flows ! River ?")
    sentences = [words(sentence) for sentence in doc.sents]
    assert len(sentences) == 3
    kept = [token.i for token in doc if not token.is_space]
    expected = numpy.concatenate(current_session(bilm).embed(sentences), axis=1)
    assert max_difference(doc._.elmo_layers[:, kept], expected) < 1e-5


def test_batches_do_not_share_memory(nlp):
    """An array that is a view of the whole batch would keep the batch alive, and leak writes."""
    first, second = nlp.pipe(["The bank", "The river"])
    before = second._.elmo_layers.copy()
    first._.elmo_layers[:] = 0
    first._.elmo_tokens[:] = 0
    assert numpy.array_equal(second._.elmo_layers, before)
    for doc in (first, second):
        base = doc._.elmo_layers.base
        assert base is None or base.size == doc._.elmo_layers.size


def endless(nlp, text, pulled):
    for i in itertools.count():
        pulled.append(i)
        yield nlp.make_doc(text)


@pytest.mark.parametrize("component_size, call_size, most", [(4, None, 4), (4, 100, 4), (9, 2, 2)])
def test_pipe_buffers_at_most_a_batch_of_docs(weights_folder, component_size, call_size, most):
    nlp = elmo_pipeline(weights_folder, batch_size=component_size)
    pulled = []
    stream = nlp.get_pipe("elmo").pipe(endless(nlp, "The bank", pulled), batch_size=call_size)
    for n, doc in enumerate(itertools.islice(stream, 20)):
        assert doc._.elmo_tokens is not None
        assert n < len(pulled) <= n + most


def test_keep_layers_false_keeps_the_tokens_only(weights_folder, nlp):
    slim = elmo_pipeline(weights_folder, keep_layers=False)
    for doc, text in zip(slim.pipe(TEXTS), TEXTS):
        assert doc._.elmo_layers is None
        assert max_difference(doc._.elmo_tokens, nlp(text)._.elmo_tokens) < 1e-6
        # Nor do those of an earlier run stay.
        assert slim(nlp(text))._.elmo_layers is None


@pytest.mark.parametrize(
    "mix, expected",
    [
        ({"weights": [0.5, 0.0, -2.0], "gamma": 0.1}, lambda x: 0.1 * (0.5 * x[0] - 2.0 * x[2])),
        ({"@layers": "spacy-elmo.ConcatLayers.v1"}, lambda x: numpy.concatenate(list(x), axis=1)),
    ],
)
def test_the_component_mixes_as_set(weights_folder, mix, expected):
    for doc in elmo_pipeline(weights_folder, mix=mix).pipe(TEXTS):
        tokens = expected(doc._.elmo_layers)
        assert max_difference(doc._.elmo_tokens, tokens) < 1e-5
        # The width of the getters is the width of the mix, for empty docs as well.
        assert doc._.elmo.shape == (tokens.shape[1],)


def test_doc_cleaner_removes_the_arrays(nlp):
    nlp.add_pipe("doc_cleaner", config={"attrs": {"_.elmo_layers": None, "_.elmo_tokens": None}})
    doc = nlp("The bank of the river")
    assert doc._.elmo_layers is None and doc._.elmo_tokens is None
    assert doc._.elmo is None and doc[0]._.elmo is None and doc[:2]._.elmo is None


# Errors


class _Poisoned:
    def __init__(self, segmenter):
        self.segmenter = segmenter

    def __call__(self, doc):
        if "poison" in doc.text:
            raise RuntimeError("poisoned")
        return self.segmenter(doc)


@registry.misc("spacy-elmo-tests.poisoned.v1")
def poisoned():
    return _Poisoned(registry.misc.get("spacy-elmo.sentences.v1")())


@pytest.fixture
def fragile(weights_folder):
    segmenter = {"@misc": "spacy-elmo-tests.poisoned.v1"}
    return elmo_pipeline(weights_folder, model={"segmenter": segmenter})


def test_a_bad_doc_loses_only_itself(fragile, nlp):
    lost = []
    fragile.set_error_handler(lambda name, proc, docs, error: lost.append((name, docs, error)))
    texts = ["The bank", "poison", "Money", "", "more poison", "The river"]
    docs = list(fragile.pipe(texts))
    assert [doc.text for doc in docs] == ["The bank", "Money", "", "The river"]
    for doc in docs:
        assert max_difference(doc._.elmo_layers, nlp(doc.text)._.elmo_layers) < 1e-5
    assert [name for name, _, _ in lost] == ["elmo", "elmo"]
    assert [doc.text for _, docs, _ in lost for doc in docs] == ["poison", "more poison"]
    assert all(isinstance(error, RuntimeError) for _, _, error in lost)


LONG = "The bank of the river was steep . " * 20


def test_a_long_text_without_sentences_is_warned_of_once(nlp):
    nlp.add_pipe("sentencizer", after="elmo")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        list(nlp.pipe(["Short.", LONG, LONG]))
    [message] = [str(warning.message) for warning in caught]
    assert "more than 100 tokens without sentence boundaries" in message
    assert 'nlp.add_pipe("sentencizer", before="elmo")' in message
    assert "spacy-elmo.docs.v1" in message


# Weights


def test_without_weights_the_first_use_says_what_to_do():
    nlp = spacy.blank("en")
    elmo = nlp.add_pipe("elmo", config={"model": {"weights": None}})
    for use in (lambda: nlp("text"), nlp.initialize, lambda: elmo.bilm):
        with pytest.raises(ValueError, match="no weights yet"):
            use()
    assert list(nlp.pipe([])) == []


def test_weights_of_the_initialize_block_go_first(tmp_path, nlp):
    bilm = random_bilm(seed=2)
    safetensors_format.write(bilm, tmp_path / "other")
    nlp.config["initialize"]["components"]["elmo"] = {"weights": str(tmp_path / "other")}
    nlp.initialize()
    [expected] = current_session(bilm).embed([["Money"]])
    assert max_difference(nlp("Money")._.elmo_layers, expected) < 1e-5


def merged(doc):
    with doc.retokenize() as retokenizer:
        retokenizer.merge(doc[:2])
    return doc


OTHER_DOCS = {
    "as_doc": lambda doc: doc[1:3].as_doc(),
    "as_doc with user data": lambda doc: doc[1:3].as_doc(copy_user_data=True),
    "from_docs": lambda doc: Doc.from_docs([doc, doc.copy()], exclude=["user_data"]),
    "without user data": lambda doc: next(DocBin(docs=[doc]).get_docs(doc.vocab)),
    "retokenised": merged,
}


@pytest.mark.parametrize("kind", OTHER_DOCS)
def test_docs_made_of_docs_have_no_vectors_until_the_component_runs(nlp, bilm, kind):
    doc = OTHER_DOCS[kind](nlp("The bank of the river"))
    if kind == "retokenised":
        for name in ("elmo", "elmo_tokens", "elmo_layers"):
            with pytest.raises(ValueError, match="retokenised"):
                getattr(doc._, name)
    else:
        assert doc._.elmo is None and doc._.elmo_layers is None and doc[0]._.elmo is None
    nlp.get_pipe("elmo")(doc)
    sentences = doc.sents if doc.has_annotation("SENT_START") else [doc]  # `from_docs` sets it.
    layers = current_session(bilm).embed([words(sentence) for sentence in sentences])
    assert max_difference(doc._.elmo_layers, numpy.concatenate(layers, axis=1)) <= 1e-5


# Vectors


def test_set_vectors(weights_folder):
    """Vectors are ELMo's, and similarity is their cosine, without warnings."""
    nlp = elmo_pipeline(weights_folder, set_vectors=True)
    doc, other, empty, space = nlp.pipe(["The bank \n of the river", "Money in the bank", "", " "])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for a in (doc, doc[1:5], doc[1]):
            assert numpy.array_equal(a.vector, a._.elmo) and a.has_vector
            for b in (other, other[1:3], other[3]):
                x, y = a._.elmo, b._.elmo
                cosine = float(x @ y / numpy.linalg.norm(x) / numpy.linalg.norm(y))
                assert a.similarity(b) == pytest.approx(cosine, abs=1e-5)
        assert doc.similarity(doc.copy()) == pytest.approx(1, abs=1e-5)
        # No direction, no similarity, and no division by zero.
        assert doc.similarity(empty) == space.similarity(doc) == 0
    assert doc[2].is_space and not doc[2].has_vector and doc[2].vector_norm == 0


def test_weights_that_are_replaced_during_a_call(nlp, tmp_path):
    """As by another thread: layers are those of the weights that computed them."""
    safetensors_format.write(random_bilm(seed=2), tmp_path / "other")
    elmo, doc = nlp.get_pipe("elmo"), nlp.make_doc("The bank")
    checksum, scores = elmo.checksum, elmo.predict([doc])
    elmo.load_weights(tmp_path / "other")
    elmo.set_annotations([doc], scores)
    assert get_layers(doc, "elmo", elmo.checksum) is None
    assert get_layers(doc, "elmo", checksum) is not None


def test_similarity_of_a_span_whose_vector_has_changed(weights_folder):
    """spaCy keeps the norm of a span."""
    nlp = elmo_pipeline(
        weights_folder, set_vectors=True, mix={"@layers": "spacy-elmo.SingleLayer.v1", "layer": 0}
    )
    doc, elmo = nlp("The bank of the river"), nlp.get_pipe("elmo")
    spans = doc[:2], doc[3:]
    for layer in (0, 2):
        elmo.mix.attrs["settings"].layer = layer
        x, y = (span.vector for span in elmo(doc) and spans)
        cosine = float(x @ y / numpy.linalg.norm(x) / numpy.linalg.norm(y))
        assert spans[0].similarity(spans[1]) == pytest.approx(cosine, abs=1e-5)


def test_docs_of_a_bare_vocab_are_refused(nlp):
    """It tells no whitespace, and no lower case."""
    with pytest.raises(ValueError, match="vocab knows neither whitespace nor lower case"):
        nlp.get_pipe("elmo")(Doc(Vocab(), words=["The", " "]))


def test_its_repr_says_what_it_is(weights_folder, bilm):
    """Without reading the weights."""
    elmo = elmo_pipeline(weights_folder).get_pipe("elmo")
    assert repr(elmo) == "Elmo('elmo': weights not read yet, frozen_mix)"
    n = sum(p.numel() for p in bilm.parameters())
    assert repr(elmo.bilm) == f"BiLM({n:,} parameters, 3 layers of width 12, cpu, float32)"
    assert repr(elmo) == f"Elmo('elmo': {repr(elmo.bilm)[5:-1]}, frozen_mix)"
    empty = spacy.blank("en").add_pipe("elmo", config={"model": {"weights": None}})
    assert repr(empty) == "Elmo('elmo': no weights yet, frozen_mix)"


def test_a_repr_does_not_change_how_it_runs(weights_folder, tmp_path):
    """Weights that are stored in 8 bits stay so."""
    nlp = elmo_pipeline(weights_folder, model={"precision": "int8"})
    round_to_int8(nlp.get_pipe("elmo").bilm)
    nlp.to_disk(tmp_path)
    elmo = spacy.load(tmp_path).get_pipe("elmo")
    assert ", cpu, int8, " in repr(elmo)
    assert get_shim(elmo.model).stored_bilm().is_int8
