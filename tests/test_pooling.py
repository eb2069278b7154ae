"""How docs and spans are pooled, against the formula in NumPy."""

from __future__ import annotations

from collections import Counter

import numpy
import pytest
import spacy
from spacy.tokens import Doc, DocBin
from spacy.util import registry

from spacy_elmo import EmbedColumns
from spacy_elmo.formats import load
from spacy_elmo.pooling import FILE, WordPooling
from spacy_elmo.tools.fit_pooling import fit_pooling

from .cli.conftest import fail, succeed
from .conftest import elmo_pipeline

TEXTS = ["The bank of the river.", "Money flows, and THE bank\n lends it!", "  ", ""]
WIDTH = 5  # Of the pooling. Vectors of tokens are 2P = 12 wide.
FREQUENT = {"the": 0.25, "of": 0.5, ".": 0.75}


@pytest.fixture
def nlp(weights_folder):
    """A pipeline whose weights have a random pooling."""
    nlp = elmo_pipeline(weights_folder)
    n_layers, width = nlp.get_pipe("elmo").layer_shape
    rng = numpy.random.default_rng(0)
    hashes = numpy.array(sorted(nlp.vocab.strings.add(w) for w in FREQUENT), dtype=numpy.uint64)
    weights = [FREQUENT[nlp.vocab.strings[int(x)]] for x in hashes]
    arrays = (rng.normal(size=x).astype("float32") for x in (n_layers, width, (width, WIDTH)))
    pooling = WordPooling(hashes, numpy.array(weights, dtype="float32"), *arrays)
    nlp.get_pipe("elmo").bilm.pooling = pooling
    return nlp


def expected(span, pooling):
    """The formula, word by word, in float64."""
    words = [token for token in span if not token.is_space]
    rows = numpy.zeros((1, WIDTH))
    for token in words:
        x = sum(s * h for s, h in zip(pooling.shares, token.doc._.elmo_layers[:, token.i]))
        y = FREQUENT.get(token.text.lower(), 1.0) * x.astype("float64") - pooling.mean
        rows += y @ pooling.matrix.astype("float64")
    return rows[0] / max(len(words), 1)


def test_the_formula(nlp):
    pooling = nlp.get_pipe("elmo").bilm.pooling
    for doc in (*nlp.pipe(TEXTS), *map(nlp, TEXTS)):
        assert doc._.elmo.shape == (WIDTH,) and doc._.elmo.dtype == numpy.float32
        for span in (doc, doc[1:4], doc[2:]):
            assert numpy.allclose(span._.elmo, expected(span, pooling), atol=1e-5)
        assert all(token._.elmo.shape == (len(pooling.mean),) for token in doc)


def test_the_same_wherever_it_goes(nlp, tmp_path):
    want = [doc._.elmo for doc in nlp.pipe(TEXTS)]
    nlp.to_disk(tmp_path / "a")
    for _ in range(2):
        succeed("export", tmp_path / "a", tmp_path / "w", "--format", "safetensors", "--force")
    assert (tmp_path / "w" / FILE).is_file() and load(tmp_path / "w").pooling is not None
    succeed("convert", tmp_path / "w", tmp_path / "b", "--sentencizer")
    succeed("quantize", tmp_path / "a", tmp_path / "c", "--precision", "float16")
    for name in "abc":
        again = spacy.load(tmp_path / name)
        for n_process in (1, 2):
            docs = DocBin(docs=again.pipe(TEXTS, n_process=n_process), store_user_data=True)
            for doc, vector in zip(docs.get_docs(again.vocab), want):
                assert numpy.allclose(doc._.elmo, vector, atol=1e-2 if name == "c" else 1e-5)
    (tmp_path / "t.txt").write_text(TEXTS[0])
    for layers in ("all", "mix"):
        succeed(
            "embed",
            tmp_path / "t.txt",
            tmp_path / "t.spacy",
            "-m",
            tmp_path / "a",
            "-F",
            "--layers",
            layers,
        )
        [doc] = DocBin().from_disk(tmp_path / "t.spacy").get_docs(nlp.vocab)
        assert numpy.allclose(doc._.elmo, want[0], atol=1e-5)
    columns = EmbedColumns(tmp_path / "a", dtype="float32")
    assert numpy.allclose(columns.embed(TEXTS), want, atol=1e-5)
    means = EmbedColumns(tmp_path / "a", dtype="float32", pool="mean").embed(TEXTS)
    assert means.shape == (4, 12) and numpy.allclose(means[0], nlp(TEXTS[0])._.elmo_tokens.mean(0))


def test_the_mean(nlp, tmp_path):
    """By name, and for a pipeline or docs from before there was a pooling."""
    doc = nlp(TEXTS[0])
    elmo = nlp.get_pipe("elmo")
    elmo.pooling = registry.misc.get("spacy-elmo.MeanPooling.v1")()
    mean = nlp(TEXTS[0])._.elmo
    assert numpy.allclose(mean, doc._.elmo_tokens.mean(0), atol=1e-6)
    elmo.pooling, elmo.bilm.pooling = None, None
    assert numpy.allclose(nlp(TEXTS[0])._.elmo, mean, atol=1e-6)
    elmo.pooling = registry.misc.get("spacy-elmo.WeightedPooling.v1")()
    with pytest.raises(ValueError, match="weights have no pooling"):
        nlp(TEXTS[0])


def test_similarity(nlp):
    elmo = nlp.get_pipe("elmo")
    elmo.set_vectors = elmo.keep_layers = True
    first, second = nlp.pipe(TEXTS[:2])
    a, b = (expected(x, elmo.bilm.pooling) for x in (first, second[2:5]))
    cosine = a @ b / numpy.linalg.norm(a) / numpy.linalg.norm(b)
    assert first.similarity(second[2:5]) == pytest.approx(cosine, abs=1e-5)
    assert first[1].similarity(second) == pytest.approx(first[1:2].similarity(second))
    assert second.similarity(first[1]) == pytest.approx(first[1:2].similarity(second))


def test_fitting(nlp):
    """Sentences get the mean 0, and components whose variances are powers of what they were."""
    elmo = nlp.get_pipe("elmo")
    rng = numpy.random.default_rng(0)
    words = ["bank", "river", "money", "play", "rain", "the", "of", "Zoë", "left", "mines"]
    texts = [" ".join(rng.choice(words, size=6)) for _ in range(400)]
    fitted = fit_pooling(nlp, elmo, map(nlp.make_doc, texts))
    assert fitted is elmo.bilm.pooling and fitted.matrix.shape == (12, 12)
    docs = list(nlp.pipe(texts))
    counts = Counter(" ".join(texts).lower().split())
    weights = {word: 1e-4 / (1e-4 + n / counts.total()) for word, n in counts.items()}
    stored = zip(map(int, fitted.words), fitted.word_weights)
    assert {nlp.vocab.strings[x]: w for x, w in stored} == pytest.approx(weights, rel=1e-5)
    rows = numpy.stack([doc._.elmo for doc in docs]).astype("float64")
    assert abs(rows.mean(axis=0)).max() < 1e-4 and (rows**2).sum(1).mean() == pytest.approx(1)
    plain = []
    for doc in docs:
        x = numpy.tensordot([0.7, 0.15, 0.15], doc._.elmo_layers.astype("float64"), 1)
        plain.append(numpy.mean([weights[t.lower_] * row for t, row in zip(doc, x)], axis=0))
    before = numpy.linalg.eigvalsh(numpy.cov(numpy.stack(plain).T))[::-1]
    after = rows.var(axis=0)
    ratios = after / before**0.3  # Variances to the power of 1 - 2 * 0.35.
    assert ratios == pytest.approx(ratios[0], rel=0.01)


def test_fitting_to_what_tells_nothing(nlp):
    elmo = nlp.get_pipe("elmo")
    before = elmo.bilm.pooling
    with pytest.raises(ValueError, match="all 60 sentences have the same vector"):
        fit_pooling(nlp, elmo, map(nlp.make_doc, ["the bank"] * 60))
    with pytest.raises(ValueError, match="the texts have no words"):
        fit_pooling(nlp, elmo, map(nlp.make_doc, [" ", "\n"] * 60))
    elmo.pooling = registry.misc.get("spacy-elmo.MeanPooling.v1")()
    with pytest.raises(ValueError, match="its setting `pooling` says otherwise"):
        fit_pooling(nlp, elmo, map(nlp.make_doc, TEXTS))
    assert elmo.bilm.pooling is before


def test_the_sample_is_of_all_texts(nlp, monkeypatch):
    """Also where the first docs alone have as many sentences as are read."""
    monkeypatch.setattr("spacy_elmo.tools.fit_pooling.MAX_SENTENCES", 60)
    words = ["bank"] * 30 + ["money"] * 30  # The same words in all sentences are an error.
    docs = (Doc(nlp.vocab, [word] * 10, sent_starts=[1] * 10) for word in words)
    fit_pooling(nlp, nlp.get_pipe("elmo"), docs)


def test_the_command(nlp, tmp_path):
    nlp.to_disk(tmp_path / "a")
    (tmp_path / "few.txt").write_text("The bank of the river.\n" * 3)
    assert "3 sentences are too few" in fail(
        "fit-pooling", tmp_path / "a", tmp_path / "few.txt", tmp_path / "b"
    )
    lines = [f"The {x} bank of {y} rivers." for x in range(8) for y in range(9)]
    (tmp_path / "texts.txt").write_text("\n".join(lines))
    succeed("fit-pooling", tmp_path / "a", tmp_path / "texts.txt", tmp_path / "b")
    fitted = spacy.load(tmp_path / "b")
    assert fitted(lines[0])._.elmo.shape == (12,)
    assert "TEXTS... OUT" in fail("fit-pooling", tmp_path / "a", tmp_path / "b")


def test_files_that_are_wrong(nlp, tmp_path):
    pooling = nlp.get_pipe("elmo").bilm.pooling
    data = pooling.to_bytes()
    with pytest.raises(ValueError, match="not for a biLM of 2 layers"):
        WordPooling.from_bytes(data, 2, 12)
    with pytest.raises(ValueError, match="cannot be read"):
        WordPooling.from_bytes(data[: len(data) // 2], 3, 12)
    pooling.mean[0] = numpy.inf
    with pytest.raises(ValueError, match="damaged"):
        WordPooling.from_bytes(pooling.to_bytes(), 3, 12)
    nlp.to_disk(tmp_path / "a")
    with pytest.raises(ValueError, match="the pooling is damaged"):
        spacy.load(tmp_path / "a")
