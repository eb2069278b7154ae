"""Token lists in, arrays out."""

import shutil
import warnings

import pytest

from spacy_elmo.tools.embedder import EmbedTokens

from ..conftest import assert_close, max_difference
from ..reference import reference_layers

SENTENCES = [["The", "bank", "of", "the", "river"], ["money"], [], ["é", "<S>"]]


@pytest.fixture
def embedder(weights_folder):
    return EmbedTokens(weights_folder)


def test_embed_batch(embedder, bilm):
    expected = [reference_layers(bilm, tokens).layers for tokens in SENTENCES]
    assert_close(embedder.embed_batch(SENTENCES), expected)


def test_embed_batch_of_nothing(embedder):
    assert embedder.embed_batch([]) == []
    assert embedder.embed_sentence([]).shape == (3, 0, 12)


@pytest.mark.parametrize("batch_size", [0, 2, 64])
def test_embed_sentences_gives_a_stream_in_order(embedder, batch_size):
    result = embedder.embed_sentences(iter(SENTENCES), batch_size)
    assert_close(result, embedder.embed_batch(SENTENCES), 1e-6)


def test_embed_sentences_reads_no_more_than_a_batch_ahead(embedder):
    read = []

    def stream():
        for tokens in SENTENCES:
            read.append(tokens)
            yield tokens

    result = embedder.embed_sentences(stream(), batch_size=2)
    assert read == []
    next(result)
    assert read == SENTENCES[:2]


@pytest.mark.parametrize(
    "batch, problem",
    [
        ([["fine"], "The bank"], "sentence 1: 'The bank' is a str, .*give a list of lists"),
        ([["fine"], ["the", None]], "sentence 1 has a token that is no string: None"),
        ("The bank", "^sentences: .* is a str, not a batch: give a list"),
        (3, "^sentences: 3 is a int, not a batch: give a list"),
    ],
)
def test_what_is_no_batch_of_tokens(embedder, batch, problem):
    with pytest.raises(ValueError, match=problem):
        embedder.embed_batch(batch)


EMPTY_TOKEN = ["there is an empty token (''"]


@pytest.mark.parametrize("padding", ["", "<pad>"])
def test_padding_is_read_as_words(embedder, bilm, padding):
    tokens = ["the", "bank", padding, padding]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        layers = embedder.embed_sentence(tokens)
    assert [str(warning.message)[:27] for warning in caught] == EMPTY_TOKEN * (not padding)
    assert max_difference(layers, reference_layers(bilm, tokens).layers) <= 1e-5


def test_kept_arrays_keep_no_others(embedder):
    """Of many batches, a small array each."""
    kept = [embedder.embed_batch([["a"], ["b"] * 200])[0] for _ in range(3)]
    assert all(array.flags.c_contiguous and array.flags.owndata for array in kept)


def test_options_file_and_weight_file(hdf5_folder, embedder, tmp_path):
    for name in ("options.json", "weights.hdf5"):  # Not beside each other.
        (tmp_path / name).mkdir()
        shutil.copy(hdf5_folder / name, tmp_path / name / "file")
    files = {
        "options_file": tmp_path / "options.json" / "file",
        "weight_file": str(tmp_path / "weights.hdf5" / "file"),
    }
    actual = EmbedTokens(**files).embed_sentence(SENTENCES[0])
    assert max_difference(actual, embedder.embed_sentence(SENTENCES[0])) <= 1e-6
    for name, file in files.items():
        with pytest.raises(ValueError, match="together"):
            EmbedTokens(**{name: file})


def test_weights_have_a_default():
    assert EmbedTokens().embed_sentence(["The", "bank"]).shape == (3, 2, 512)


def test_stateful(weights_folder, bilm):
    embedder = EmbedTokens(weights_folder, stateful=True)
    embedder.embed_batch([["The", "bank"], ["x"]])
    second = embedder.embed_batch([["money"], ["y"]])[0]
    reference = reference_layers(bilm, ["money"], before=[["The", "bank"]])
    assert max_difference(second, reference.layers) <= 1e-5


def test_precision(weights_folder, embedder):
    exact = embedder.embed_sentence(SENTENCES[0])
    other = EmbedTokens(weights_folder, precision="float16").embed_sentence(SENTENCES[0])
    assert 0 < max_difference(exact, other) <= 1e-2


@pytest.mark.parametrize(
    "precision, message",
    [("float12", "unknown precision 'float12'"), ("tf32", "not for the .*cpu")],
)
def test_wrong_precision(weights_folder, precision, message):
    with pytest.raises(ValueError, match=message):
        EmbedTokens(weights_folder, precision=precision)


def test_its_repr_says_what_it_is(weights_folder):
    for precision in ("float32", "int8"):
        shown = repr(EmbedTokens(weights_folder, precision=precision))
        assert shown.startswith(f"EmbedTokens({str(weights_folder)!r}: ")
        assert shown.endswith(f" parameters, 3 layers of width 12, cpu, {precision})")
