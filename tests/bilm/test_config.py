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
    assert (config.lstm.projection_dim, config.output_dim, config.n_activations) == (16, 32, 3)


@pytest.mark.parametrize("config", CONFIGS)
def test_options_round_trip(config):
    assert BiLMConfig.from_options(json.loads(json.dumps(config.to_options()))) == config


def test_training_options_are_accepted_and_their_other_keys_ignored():
    options = {**changed("char_cnn.n_characters", 261), "n_epochs": 10, "bidirectional": True}
    config = BiLMConfig.from_options(options)
    assert config == BiLMConfig.from_options(OPTIONS)
    assert config.to_options()["char_cnn"]["n_characters"] == 262


def test_bilm_tf_defaults_hold_for_absent_settings():
    config = BiLMConfig.from_options({"lstm": {"dim": 8}, "n_tokens_vocab": 9})
    assert config == BiLMConfig(LSTMConfig(8, 8, 1, None, None, False), n_tokens_vocab=9)


@pytest.mark.parametrize(
    "n_filters, stored, expected",
    [(4, None, False), (5, None, True), (4, True, True), (4, False, False), (5, False, False)],
)
def test_character_projection_follows_bilm_tf_unless_said_otherwise(n_filters, stored, expected):
    char_cnn = CharCNNConfig(((1, n_filters),), projection=stored)
    assert BiLMConfig(LSTMConfig(8, 4), char_cnn).has_char_projection is expected


@pytest.mark.parametrize(
    "path, value, words",
    [
        ("lstm", [1], ["lstm must be a section, found [1]"]),
        ("lstm.dim", ..., ["the setting lstm.dim is missing"]),
        ("lstm.dim", 0, ["lstm.dim must be 1 or more, found 0"]),
        ("lstm.dim", 6.5, ["lstm.dim must be a whole number, found 6.5"]),
        ("lstm.projection_dim", 65, ["lstm.projection_dim is 65, and lstm.dim 64"]),
        ("lstm.cell_clip", 0, ["lstm.cell_clip must be 1e-30 or more, found 0"]),
        ("lstm.proj_clip", float("nan"), ["lstm.proj_clip", "nan"]),
        ("char_cnn", ..., ["n_tokens_vocab", "missing"]),
        ("char_cnn.embedding", {}, ["the setting char_cnn.embedding.dim is missing"]),
        ("char_cnn.filters", [], ["char_cnn.filters must have 1 or more items"]),
        ("char_cnn.filters", [[1, 2, 3]], ["char_cnn.filters.0", "at most 2 items", "[1, 2, 3]"]),
        ("char_cnn.filters", [[51, 4]], ["max_characters_per_token", "50", "51"]),
        ("char_cnn.activation", "gelu", ["char_cnn.activation", "'relu' or 'tanh'", "'gelu'"]),
        ("char_cnn.max_characters_per_token", 2, ["max_characters_per_token", "2"]),
    ],
)
def test_bad_values_are_named(path, value, words):
    with pytest.raises(ValueError) as error:
        BiLMConfig.from_options(changed(path, value))
    for word in words:
        assert word in str(error.value)
