"""Pages to look at vectors: what they show is what the docs have, whatever the texts are."""

from __future__ import annotations

import base64
import json
import re
import sys
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy
import pytest
import spacy
from spacy.tokens import Doc, Token
from spacy.training import Example

from spacy_elmo import ScoreTokens, render
from spacy_elmo.extensions import get_layers
from spacy_elmo.mix_logger import find_mixes

from .conftest import add_tagger, elmo_pipeline

TEXTS = [
    "The bank of the river.  The bank \n\n gave me <script>alert('x')</script> & \"more\"!",
    "",
    " \n ",
    "هذا البنك قريب من النهر .",
    "銀行 🙂 👩‍👩‍👧 e\u0301 </script><!-- {{ x }} </div>",
    "A BANK",
]


class Page(HTMLParser):
    """What a browser reads of a page: its words, with their cells and notes, its groups, its text,
    and the data of its script."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.words: list[SimpleNamespace] = []
        self.groups: list[dict] = []
        self.tags: list[str] = []
        self.text, self.scripts = "", []
        self.feed(html)
        self.data = json.loads(self.scripts[0])
        assert not self.tags, "all tags are closed"

    def handle_starttag(self, tag, attributes):
        self.tags += [] if tag in ("meta", "link", "br") else [tag]
        attributes = dict(attributes)
        if tag in ("img", "iframe", "link") or "src" in attributes or "href" in attributes:
            raise AssertionError(f"the page needs {tag} {attributes}")
        if attributes.get("role") == "group":
            self.groups.append(attributes)
        elif attributes.get("role") == "option":
            self.words.append(SimpleNamespace(text="", cells=[], quote="", **attributes))
            self.words[-1].note = attributes.get("data-note")
        elif tag == "script":
            self.scripts.append("")
        elif tag == "i" and self.words:
            self.words[-1].cells.append("")

    def handle_endtag(self, tag):
        assert self.tags.pop() == tag

    def handle_data(self, data):
        if self.tags[-1:] == ["script"]:
            self.scripts[-1] += data
        elif self.tags[-1:] == ["i"] and self.words:
            self.words[-1].cells[-1] += data
        elif self.tags[-1:] in (["b"], ["mark"]) and self.words:
            self.words[-1].text += data
        self.text += "" if self.tags[-1:] in (["script"], ["style"]) else data
        if "q" in self.tags:
            self.words[-1].quote += data

    def cosines(self) -> numpy.ndarray:
        """What the script computes."""
        codes = numpy.frombuffer(base64.b64decode(self.data["vectors"]), "int8").astype("float64")
        vectors = codes.reshape(-1, self.data["width"])[: len(self.words)]
        return vectors @ vectors.T * self.data["scale"]


def nearest(vectors, tokens, n: int, is_alone: bool = False) -> list[list[int]]:
    """Cosines in per cent with the nearest words of other sentences, best first."""
    found = []
    for i, row in enumerate(cosines(vectors)):
        others = [
            100 * cosine
            for j, (cosine, other) in enumerate(zip(row, tokens))
            if (i != j if is_alone else other.sent != tokens[i].sent) and not other.is_punct
        ]
        found.append(sorted(others, reverse=True)[:n])
    return found


def check_nearest(page: Page, vectors, tokens, n: int, layer: int = 0, **settings) -> None:
    expected = nearest(vectors, tokens, n, **settings)
    for row, (found, best) in enumerate(zip(page.data["nearest"][layer], expected, strict=True)):
        assert [percent for _, percent in found] == pytest.approx(best, abs=0.51)
        own = cosines(vectors)[row]
        assert [percent / 100 for _, percent in found] == pytest.approx(
            [own[j] for j, _ in found], abs=0.006
        )


def show(docs, *arguments, **settings) -> Page:
    return Page(render(docs, *arguments, jupyter=False, **settings))


@pytest.fixture
def nlp(weights_folder):
    nlp = elmo_pipeline(weights_folder)
    nlp.add_pipe("sentencizer", first=True)
    return nlp


@pytest.fixture
def docs(nlp) -> list[Doc]:
    return list(nlp.pipe(TEXTS))


def words_of(docs) -> list[Token]:
    return [token for doc in docs for token in doc if not token.is_space]


def cosines(vectors) -> numpy.ndarray:
    units = vectors / numpy.linalg.norm(vectors, axis=-1, keepdims=True)
    return units @ units.swapaxes(-1, -2)


@pytest.mark.parametrize("layer", [None, 0, -1])
def test_similarity_is_that_of_the_vectors(docs, layer):
    page = show(docs, layer=layer)
    tokens = words_of(docs)
    assert [word.text for word in page.words] == [token.text for token in tokens]
    vectors = [
        token._.elmo if layer is None else get_layers(token.doc)[layer, token.i] for token in tokens
    ]
    assert page.cosines() == pytest.approx(cosines(numpy.stack(vectors)), abs=0.01)
    check_nearest(page, numpy.stack(vectors), tokens, 8)
    # A word that other sentences have, too.
    assert page.words[page.data["start"]].text == "bank"
    assert len(page.groups) == sum(len([s for s in doc.sents if s.text.strip()]) for doc in docs)


def test_layers_have_their_lengths_and_neighbours(docs):
    page = show(docs, "layers")
    layers = numpy.concatenate(
        [get_layers(doc)[:, [not token.is_space for token in doc]] for doc in docs], axis=1
    )
    lengths = numpy.linalg.norm(layers, axis=-1)
    assert [word.cells for word in page.words] == [[f"{x:.1f}" for x in row] for row in lengths.T]
    for number, layer in enumerate(layers):
        check_nearest(page, layer, words_of(docs), 3, number)


def test_a_large_page_stays_small():
    """Colours come from principal directions, the nearest words from the vectors."""
    generator = numpy.random.default_rng(0)
    vectors = generator.normal(size=(6000, 300)) * 0.98 ** numpy.arange(300)
    doc = Doc(spacy.blank("en").vocab, words=[f"w{i}" for i in range(6000)])
    doc._.elmo_tokens = vectors @ numpy.linalg.qr(generator.normal(size=(300, 300))).Q
    html = render(doc, jupyter=False)
    page = Page(html)
    assert len(html) < 4_000_000 and page.data["width"] == 250
    page.words = page.words[:500]
    error = numpy.abs(page.cosines() - cosines(vectors[:500])).max()
    assert error < 0.02
    found = numpy.array(page.data["nearest"][0][7])
    own = cosines(vectors[[7, *found[:, 0]]])[0, 1:]
    assert found[:, 1] == pytest.approx(100 * own, abs=0.51)
    units = vectors / numpy.linalg.norm(vectors, axis=1, keepdims=True)
    assert sorted(units @ units[7])[-9:-1] == pytest.approx(own[::-1], abs=1e-6)
    doc = Doc(doc.vocab, words=["w"] * 20_001)
    doc._.elmo_tokens = numpy.zeros((20_001, 1), "float32")
    with pytest.raises(ValueError, match="20,000 words"):
        render([doc], jupyter=False)


def test_surprisal_is_that_of_score_tokens(docs):
    page = show(docs[0], "surprisal")
    sentences = [[x.text for x in s if not x.is_space] for s in docs[0].sents]
    scores = ScoreTokens(unit="bits")(sentences)
    expected = [pair for x in scores for pair in zip(-x.forward, -x.backward)]
    assert [word.cells for word in page.words] == [[f"{x:.1f}" for x in row] for row in expected]
    unknown = [word.text for word in page.words if word.note]
    assert unknown == [
        token for x in scores for token, is_unknown in zip(x.tokens, x.unknown) if is_unknown
    ]
    assert unknown and "vectors" not in page.data


def test_mixes_are_those_of_the_pipeline(nlp):
    add_tagger(nlp)
    example = Example.from_dict(nlp.make_doc("a b"), {"tags": ["A", "B"]})
    assert "no layer weights" in show(nlp, "mix").words[0].note
    nlp.initialize(lambda: [example])
    nlp.update([example])
    [word] = show(nlp, "mix").words
    [(task, mix)] = find_mixes(nlp)
    names = ["token encoder", "layer 1", "layer 2", "γ"]
    values = [*mix.weights, mix.gamma]
    assert word.text == task and word.note == "scalar_mix"
    assert word.cells == [f"{name} {value:.3f}" for name, value in zip(names, values)]


def test_a_map_shows_two_principal_components(docs):
    html = render(docs, "senses", words=["bank", "The"], jupyter=False)
    page, aspect = Page(html), float(re.search(r"aspect-ratio: ([\d.]+)", html)[1])
    tokens = [token for token in words_of(docs) if token.lower_ in ("bank", "the")]
    vectors = numpy.stack([token._.elmo for token in tokens]).astype("float64")
    values, directions = numpy.linalg.eigh(numpy.cov(vectors.T))
    assert f"{100 * values[-2:].sum() / values.sum():.0f} % of the variance" in page.text
    quotes = {(token.text, token.sent.text.strip()): i for i, token in enumerate(tokens)}
    order = [quotes[word.text, word.quote.strip()] for word in page.words]
    assert sorted(order) == list(range(len(tokens)))
    expected = (vectors @ directions[:, :-3:-1])[order]
    drawn = numpy.array([re.findall(r"[\d.]+(?=%)", word.style) for word in page.words], float)
    assert (drawn > 0).all() and (drawn < 100).all() and (numpy.diff(drawn[:, 0]) >= 0).all()
    drawn *= aspect, 1

    def distances(places):
        found = numpy.linalg.norm(places[:, None] - places, axis=-1)
        return found / found.max()

    assert distances(drawn) == pytest.approx(distances(expected), abs=0.005)
    check_nearest(page, vectors[order], [tokens[i] for i in order], 5, is_alone=True)
    assert "bank 3" in page.text and "the 3" in page.text


def test_labels_colour_a_map(docs):
    if not Token.has_extension("place"):
        Token.set_extension("place", getter=lambda token: token.doc[0].text if token.i < 5 else "")
    for label in ("_.place", lambda token: token._.place or None):
        page = show(docs, "senses", words="bank", label=label)
        assert sorted(word.note for word in page.words) == ["A", "The", "no label"]
    words = sorted({token.lower_ for token in words_of(docs)})
    page = show(docs, "senses", words=words)
    shapes = {*re.findall(r"shape shape(\d)", render(docs, "senses", words=words, jupyter=False))}
    assert shapes == {*"01234567"} and f"{len(words) - 7} others" in page.text
    assert {word.note for word in page.words} == {*words}


@pytest.mark.parametrize("style", ["similarity", "layers", "surprisal", "senses"])
def test_texts_cannot_change_a_page(docs, style):
    settings = {"words": ["river", "alert('x')</script"], "label": lambda x: "<b>\"'</b>"}
    settings = settings if style == "senses" else {}
    html = render(docs, style, page=True, jupyter=False, **settings)
    page = Page(html)
    assert len(page.scripts) == 2 and html.count("alert(") == html.count("alert(&#39;x&#39;)")
    assert html.startswith("<!doctype html>") and 'name="viewport"' in html
    assert "<html" not in render(docs, style, jupyter=False, **settings)
    assert any("<" in (word.text + word.quote) for word in page.words)


def test_one_word_alone(nlp):
    doc = nlp("alone")
    assert show(doc).words[0].text == "alone"
    assert "100 % of the variance" in show(doc, "senses", words="Alone").text
    [word] = show(doc, "layers").words
    assert len(word.cells) == 3


def test_what_cannot_be_shown(nlp, docs):
    def check(problem, docs, *arguments, error=ValueError, **settings):
        with pytest.raises(error, match=problem):
            render(docs, *arguments, jupyter=False, **settings)

    check("unknown style 'ent': choose one of similarity, ", docs, "ent")
    check("no words", docs[1:3])
    check("no words", [])
    check("no Doc, but str", ["a"])
    check("a trained pipeline, not list", docs, "mix")
    check("a Doc or a list of them, not English", nlp)
    check("listens to ELMo", nlp, "mix")
    check("name them", docs, "senses")
    check("no token of the docs is 'money'", docs, "senses", words=["bank", "money"])
    check("sense", docs, "senses", words=["bank"], label="_.sense", error=AttributeError)
    check("words: it has no meaning with style 'layers'", docs, "layers", words=["bank"])
    check("no layer 3: the docs have layers 0 to 2", docs, layer=3)
    check("no ELMo vectors in the doc 'a b'", [docs[0], nlp.make_doc("a b")])
    nlp.get_pipe("elmo").keep_layers = False
    bare = nlp("a b")
    check("no ELMo layers in the doc 'a b': .* keep_layers = true", bare, "layers")
    assert show(bare).words
    bare._.elmo_tokens = bare._.elmo_tokens[:, :5]
    check("several widths", [docs[0], bare])
    with docs[0].retokenize() as retokenizer:
        retokenizer.merge(docs[0][0:2])
    check("retokenised", docs)


def test_in_a_notebook_it_is_displayed(docs, monkeypatch):
    shown = []
    display = SimpleNamespace(HTML=lambda html: html, display=shown.append)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(display=display))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    assert render(docs, jupyter=True) is None
    assert shown == [render(docs)]
