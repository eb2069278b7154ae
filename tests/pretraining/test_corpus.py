"""What `prepare` writes, against plain Python."""

from __future__ import annotations

import multiprocessing
import shutil
import warnings
from collections import Counter

import pytest
import spacy

from spacy_elmo.pretraining.corpus import open_corpus, prepare
from spacy_elmo.pretraining.tokenize import TokenizationConfig, make_pipeline, tokenize
from spacy_elmo.tools.texts import find_files

from .conftest import SENTENCE_PER_LINE, WORDS, contents, run_config, sentences, train


def read(corpus, split):
    """The sentences of a part, as texts."""
    types = (corpus.folder / "types.txt").read_text(encoding="utf8").split("\n")[:-1]
    ends = split.ends.tolist()
    return [
        " ".join(types[i] for i in split.ids[start:end]) for start, end in zip([0, *ends], ends)
    ]


def test_every_sentence_is_in_one_part(corpus):
    texts = read(corpus, corpus.train) + read(corpus, corpus.dev)
    assert Counter(texts) == Counter(sentences())
    assert not set(read(corpus, corpus.train)) & set(read(corpus, corpus.dev))
    assert 0.02 < len(corpus.dev) / len(texts) < 0.3


def test_types_are_sorted_by_frequency(corpus):
    types = (corpus.folder / "types.txt").read_text(encoding="utf8").split("\n")[:-1]
    assert types[:3] == ["<S>", "</S>", "<UNK>"]
    counts = corpus.counts
    expected = Counter(" ".join(read(corpus, corpus.train)).split())
    assert [expected[word] for word in types] == counts.tolist()
    assert counts[3:].tolist() == sorted(counts[3:], reverse=True)
    assert corpus.words == types[:18] and corpus.train.types == types
    assert corpus.manifest["n_unknown"] == counts[18:].sum()


def test_processes_do_not_matter(tmp_path, monkeypatch):
    """Byte by byte. The chunks are small, so that several processes get some."""
    settings = TokenizationConfig("de")
    monkeypatch.setattr("spacy_elmo.pretraining.tokenize.CHUNK_CHARACTERS", 500)
    corpora = []
    for n_process in (1, 2):
        folder = tmp_path / str(n_process)
        prepare(
            sentences(), folder, settings, dev_fraction=0.1,
            n_process=n_process,
        )  # fmt: skip
        corpora.append(contents(folder))
    assert corpora[0] == corpora[1]


def test_vocabulary_of_the_tokenizer_is_bounded(monkeypatch):
    settings = TokenizationConfig("fr")
    strings = make_pipeline(settings).vocab.strings
    most = len(strings) + 300
    monkeypatch.setattr("spacy_elmo.pretraining.tokenize.CHUNK_CHARACTERS", 500)
    monkeypatch.setattr("spacy_elmo.strings.MAX_STRINGS", most)
    texts = [f"L'homme{i} arrive. Qu'est-ce-qu'il voit, m{i}?" for i in range(1000)]
    results = list(tokenize(texts, settings))
    nlp = spacy.blank("fr")
    nlp.add_pipe("sentencizer")
    sentences = [[[word.text for word in sentence] for sentence in nlp(x).sents] for x in texts]
    assert results == list(zip(texts, sentences))
    assert len(strings) < most + 100 < len(nlp.vocab.strings)


def test_long_sentences_are_cut(tmp_path):
    settings = TokenizationConfig(whitespace=True, one_per_line=True, max_length=4)
    lines = [" ".join(f"w{i}" for i in range(n)) for n in range(1, 40)]
    prepare(lines, tmp_path / "c", settings, dev_fraction=0.3)
    corpus = open_corpus(tmp_path / "c")
    assert max(corpus.train.lengths.max(), corpus.dev.lengths.max()) == 4
    assert sum(corpus.manifest["n_tokens"].values()) == sum(range(1, 40))


def test_a_process_that_dies(monkeypatch):
    """The parent raises an error, rather than wait for ever."""
    monkeypatch.setattr("spacy_elmo.pretraining.tokenize.CHUNK_CHARACTERS", 500)
    iterator = tokenize(sentences(), SENTENCE_PER_LINE, n_process=2)
    next(iterator)
    workers = multiprocessing.active_children()
    assert len(workers) == 2
    for worker in workers:
        worker.kill()
    with pytest.raises(ValueError, match=r"has died.*--n-process"):
        list(iterator)
    assert not multiprocessing.active_children()


# Bad input


@pytest.mark.parametrize("texts", [[], ["", " "]])
def test_empty_corpus(tmp_path, texts):
    with pytest.raises(ValueError, match="no sentence of"):
        prepare(texts, tmp_path / "c", SENTENCE_PER_LINE)
    assert not (tmp_path / "c").exists() and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words, message",
    [
        (["the", "bank"], "must be <S>, </S>, <UNK>"),
        (["<S>", "</S>", "<UNK>", "a", "a"], "'a' twice"),
    ],
)
def test_bad_vocabulary(tmp_path, words, message):
    with pytest.raises(ValueError, match=message):
        prepare(sentences(), tmp_path / "c", SENTENCE_PER_LINE, vocabulary=words)


def test_changed_corpus(tmp_path):
    prepare(sentences(), tmp_path / "c", SENTENCE_PER_LINE, dev_fraction=0.1)
    path = tmp_path / "c" / "train.ids.bin"
    data = bytearray(path.read_bytes())
    data[8] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"train\.ids\.bin has changed.*prepare"):
        open_corpus(tmp_path / "c")
    path.unlink()
    with pytest.raises(ValueError, match=r"train\.ids\.bin.*prepare"):
        open_corpus(tmp_path / "c")


def test_a_vocabulary_that_is_not_sorted_by_frequency(tmp_path):
    """A sampled and an adaptive softmax take a word's rank for its frequency."""
    lines = [" ".join(f"w{i}" for i in range(30) if n % (i + 1) == 0) for n in range(200)]
    specials = ["<S>", "</S>", "<UNK>"]
    by_frequency = [f"w{i}" for i in range(30)]
    about = [by_frequency[i ^ 3] for i in range(28)]  # As that of another text is.
    for number, words in enumerate((by_frequency, about, by_frequency[::-1])):
        settings = {"vocabulary": [*specials, *words], "dev_fraction": 0.3}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            prepare(lines, tmp_path / str(number), SENTENCE_PER_LINE, **settings)
        assert [("not sorted" in str(x.message)) for x in caught] == [True] * (number == 2)


def test_what_was_made_of_texts_is_not_read_as_text(tmp_path, corpus):
    (tmp_path / "text.txt").write_text("A text .\n")
    (tmp_path / "manifest.json").write_text("{}")  # A user's own makes no corpus.
    shutil.copytree(corpus.folder, tmp_path / "corpus")
    train(run_config(corpus, WORDS, max_steps=1), tmp_path / "run", export=True)
    for argument in (tmp_path, tmp_path / "**" / "*.txt"):
        skipped = []
        found = find_files([argument], skipped.append)
        assert [path.name for path in found if path.suffix == ".txt"] == ["text.txt"]
        assert {"corpus", "run"} <= {path.name for path in skipped}
