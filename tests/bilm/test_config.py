"""Hyper-parameters and options.json."""

import copy
import json

import pytest

from spacy_elmo.bilm import BiLMConfig, CharCNNConfig, LSTMConfig

OPTIONS = {
    "lstm": {
        "cell_clip": 3,
        "use_skip_connections": True,
        "n_layers": 2,
        "proj_clip": 3,
        "projection_dim": 16,
        "dim": 64,
    },
    "char_cnn": {
        "embedding": {"dim": 4},
        "filters": [[1, 4], [2, 8]],
        "n_highway": 2,
        "n_characters": 262,
        "max_characters_per_token": 50,
        "activation": "relu",
    },
}
CONFIGS = [
    BiLMConfig(LSTMConfig(8, 8, 1, None, None, False), n_tokens_vocab=5),
    BiLMConfig(LSTMConfig(8, 4), CharCNNConfig(((1, 4),))),
    BiLMConfig(LSTMConfig(8, 4, 3, 1.5, 0.25), CharCNNConfig(((1, 4),), "tanh", 2, 8, 30, True)),
    BiLMConfig(LSTMConfig(8, 4), CharCNNConfig(((3, 4),), projection=False)),
]


def changed(path, value):
    """The options with one setting replaced, or removed if value is `...`."""
    options = copy.deepcopy(OPTIONS)
    *sections, name = path.split(".")
    section = options
    for key in sections:
        section = section[key]
    section[name] = value
    if value is ...:
        del section[name]
    return options


def test_published_options():
    config = BiLMConfig.from_options(OPTIONS)
    assert config == BiLMConfig(
        LSTMConfig(64, 16, 2, 3.0, 3.0, True), CharCNNConfig(((1, 4), (2, 8)), "relu", 2, 4, 50)
    )
    assert (config.projection_dim, config.output_dim, config.n_activations) == (16, 32, 3)


@pytest.mark.parametrize("config", CONFIGS)
def test_options_round_trip(config):
    assert BiLMConfig.from_options(json.loads(json.dumps(config.to_options()))) == config


def test_training_options_are_accepted_and_their_other_keys_ignored():
    options = {**changed("char_cnn.n_characters", 261), "n_epochs": 10, "bidirectional": True}
    config = BiLMConfig.from_options(options)
    assert config == BiLMConfig.from_options(OPTIONS)
    assert config.char_cnn.n_characters == 261
    assert config.to_options()["char_cnn"]["n_characters"] == 262


def test_bilm_tf_defaults_hold_for_absent_settings():
    config = BiLMConfig.from_options({"lstm": {"dim": 8}, "n_tokens_vocab": 9})
    assert config == BiLMConfig(LSTMConfig(8, 8, 1, None, None, False), n_tokens_vocab=9)


def test_no_lstm_projection_where_widths_agree():
    assert LSTMConfig(8, 4).has_projection
    assert not LSTMConfig(8, 8).has_projection


@pytest.mark.parametrize(
    "n_filters, stored, expected",
    [(4, None, False), (5, None, True), (4, True, True), (4, False, False), (5, False, False)],
)
def test_character_projection_follows_bilm_tf_unless_said_otherwise(n_filters, stored, expected):
    char_cnn = CharCNNConfig(((1, n_filters),), projection=stored)
    assert BiLMConfig(LSTMConfig(8, 4), char_cnn).has_char_projection is expected


def test_word_input_has_no_character_projection():
    assert not BiLMConfig(LSTMConfig(8, 4), n_tokens_vocab=5).has_char_projection


def test_counts_of_filters():
    char_cnn = CharCNNConfig(((1, 4), (7, 2), (3, 5)))
    assert (char_cnn.n_filters, char_cnn.max_width) == (11, 7)


@pytest.mark.parametrize(
    "path, value, words",
    [
        ("lstm", ..., ["lstm", "missing"]),
        ("lstm", [1], ["lstm", "must be a section", "[1]"]),
        ("lstm.dim", ..., ["lstm.dim", "missing"]),
        ("lstm.dim", 0, ["lstm.dim", "1 or more", "0"]),
        ("lstm.dim", 6.5, ["lstm.dim", "whole number", "6.5"]),
        ("lstm.dim", True, ["lstm.dim", "True"]),
        ("lstm.dim", "64", ["lstm.dim", "'64'"]),
        ("lstm.n_layers", 0, ["lstm.n_layers", "1 or more"]),
        ("lstm.n_layers", None, ["lstm.n_layers", "None"]),
        ("lstm.projection_dim", -1, ["lstm.projection_dim", "-1"]),
        ("lstm.projection_dim", 65, ["lstm.projection_dim is 65, more than lstm.dim (64)"]),
        ("lstm.cell_clip", 0, ["lstm.cell_clip", "positive", "0"]),
        ("lstm.cell_clip", "3", ["lstm.cell_clip", "'3'"]),
        ("lstm.proj_clip", -3.0, ["lstm.proj_clip", "-3.0"]),
        ("lstm.proj_clip", float("nan"), ["lstm.proj_clip", "nan"]),
        ("char_cnn", ..., ["n_tokens_vocab", "missing"]),
        ("char_cnn", "yes", ["char_cnn", "must be a section", "'yes'"]),
        ("char_cnn.embedding", ..., ["the setting char_cnn.embedding.dim is missing"]),
        ("char_cnn.embedding", {}, ["the setting char_cnn.embedding.dim is missing"]),
        (
            "char_cnn.embedding.dim",
            None,
            ["char_cnn.embedding.dim must be a whole number, found None"],
        ),
        ("char_cnn.embedding.dim", "embedding_x", ["found 'embedding_x'"]),
        ("char_cnn.embedding.dim", 0, ["char_cnn.embedding.dim", "1 or more"]),
        ("char_cnn.filters", ..., ["char_cnn.filters", "missing"]),
        ("char_cnn.filters", [], ["char_cnn.filters", "empty"]),
        ("char_cnn.filters", 3, ["char_cnn.filters", "must be a list", "3"]),
        ("char_cnn.filters", [1, 2], ["char_cnn.filters.0", "must be a list", "1"]),
        ("char_cnn.filters", [[1, 2, 3]], ["char_cnn.filters.0", "at most 2 items", "[1, 2, 3]"]),
        ("char_cnn.filters", [[0, 4]], ["char_cnn.filters.0.0", "1 or more", "0"]),
        ("char_cnn.filters", [[1, "4"]], ["char_cnn.filters", "'4'"]),
        ("char_cnn.filters", [[51, 4]], ["max_characters_per_token", "50", "51"]),
        ("char_cnn.activation", "gelu", ["char_cnn.activation", "'relu' or 'tanh'", "'gelu'"]),
        ("char_cnn.n_highway", -1, ["char_cnn.n_highway", "-1"]),
        ("char_cnn.n_highway", None, ["char_cnn.n_highway", "None"]),
        ("char_cnn.n_characters", 128, ["char_cnn.n_characters", "128", "261", "262"]),
        ("char_cnn.max_characters_per_token", 2, ["max_characters_per_token", "2"]),
        ("lstm.dim", 10**18, ["lstm.dim", "at most 65536", str(10**18)]),
        ("lstm.dim", 10**30, ["lstm.dim", "at most 65536", str(10**30)]),
        ("lstm.dim", 2**16 + 1, ["lstm.dim", "at most 65536", "65537"]),
        ("lstm.projection_dim", 2**40, ["lstm.projection_dim", "at most 65536"]),
        ("lstm.n_layers", 10**9, ["lstm.n_layers", "at most 256", "1000000000"]),
        ("lstm.cell_clip", 1e308, ["lstm.cell_clip", "1e+30", "1e+308"]),
        ("lstm.cell_clip", float("inf"), ["lstm.cell_clip", "inf"]),
        ("lstm.cell_clip", 10**400, ["lstm.cell_clip", "1e+30"]),
        ("lstm.proj_clip", 1e-300, ["lstm.proj_clip", "1e-30", "1e-300"]),
        ("char_cnn.embedding.dim", 10**17, ["char_cnn.embedding.dim", "at most 65536"]),
        ("char_cnn.filters", [[1, 10**18]], ["char_cnn.filters", "at most 65536"]),
        ("char_cnn.filters", [[10**30, 4]], ["char_cnn.filters", "at most 65536"]),
        ("char_cnn.filters", [[1, 2**15]] * 3, ["total", "char_cnn.filters", "98304"]),
        ("char_cnn.filters", [[1, 1]] * 257, ["char_cnn.filters", "at most 256 items"]),
        ("char_cnn.n_highway", 10**9, ["char_cnn.n_highway", "at most 256"]),
        ("char_cnn.max_characters_per_token", 10**12, ["max_characters_per_token", "65536"]),
    ],
)
def test_bad_values_are_named(path, value, words):
    with pytest.raises(ValueError) as error:
        BiLMConfig.from_options(changed(path, value))
    for word in words:
        assert word in str(error.value)


def test_all_bad_values_are_named_at_once():
    options = changed("lstm.dim", 0)
    options["lstm"]["cell_clip"] = "x"
    del options["char_cnn"]["filters"]
    with pytest.raises(ValueError) as error:
        BiLMConfig.from_options(options)
    assert str(error.value).splitlines() == [
        "lstm.dim must be 1 or more, found 0",
        "lstm.cell_clip must be a positive number from 1e-30 to 1e+30, or null for no clipping, "
        "found 'x'",
        "the setting char_cnn.filters is missing",
    ]


@pytest.mark.parametrize("options", [[], "lstm", None, 3])
def test_options_must_be_an_object(options):
    with pytest.raises(ValueError, match="JSON object"):
        BiLMConfig.from_options(options)


def test_the_largest_values_are_accepted():
    config = BiLMConfig(
        LSTMConfig(2**16, 2**16, 256, 1e30, 1e-30),
        CharCNNConfig(((2**16, 2**16),), "relu", 256, 2**16, 2**16),
    )
    assert BiLMConfig.from_options(json.loads(json.dumps(config.to_options()))) == config


@pytest.mark.parametrize("size", [0, -1, 2.5, "7", True, 10**9, 10**30])
def test_bad_vocabulary_sizes(size):
    with pytest.raises(ValueError, match="n_tokens_vocab"):
        BiLMConfig.from_options({"lstm": {"dim": 8}, "n_tokens_vocab": size})


def test_a_bilm_needs_one_kind_of_input():
    with pytest.raises(ValueError, match=r"char_cnn.*n_tokens_vocab"):
        BiLMConfig(LSTMConfig(8, 4))
