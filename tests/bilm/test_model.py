"""The biLM against a plain float64 reference, and the contracts of its forward pass."""

import copy
import dataclasses
import functools
import pickle
import random
from typing import NamedTuple

import numpy
import pytest
import torch
from torch.func import functional_call

from spacy_elmo.bilm import BiLM, BiLMConfig, CharCNNConfig, LSTMConfig

from ..conftest import TINY, TINY_WORDS, WORDS, max_difference, random_bilm
from ..reference import Reference, reference_layers

# One token, none, every kind of script, boundaries as tokens, a repeat, longer than any limit.
SENTENCES = (
    ("The", "bank", "of", "the", "river", "."),
    ("money",),
    (),
    ("naïve", "e\u0301", "漢字", "שלום", "😀👩‍👧", "\ud800", "\0"),
    ("<S>", "", "</S>", "bank", "bank"),
    ("Donaudampfschifffahrtselektrizitätenhauptbetriebswerk" * 2, "x"),
)
SEEDS = range(36)


class Case(NamedTuple):
    bilm: BiLM
    references: list[Reference]

    @property
    def cell_clips(self):
        return sum(reference.cell_clips for reference in self.references)

    @property
    def projection_clips(self):
        return sum(reference.projection_clips for reference in self.references)


@functools.cache
def random_case(seed: int) -> Case:
    """A random architecture; the seeds together go through every choice."""
    choose = random.Random(seed)
    dim = choose.randint(3, 16)
    clips = (None, 3.0, 0.3, 0.05)
    lstm = LSTMConfig(
        dim=dim,
        projection_dim=dim if seed % 4 == 0 else choose.randint(2, dim - 1),
        n_layers=1 + seed % 3,
        cell_clip=clips[seed % 4] if seed % 8 < 6 else choose.choice(clips),
        proj_clip=clips[seed // 4 % 4],
        use_skip_connections=seed % 5 < 3,
    )
    if seed % 6 == 5:
        config = BiLMConfig(lstm, n_tokens_vocab=len(WORDS))
    else:
        filters = [(choose.randint(1, 7), choose.randint(1, 9)) for _ in range(1 + seed % 4)]
        config = BiLMConfig(
            lstm,
            CharCNNConfig(
                filters=tuple(filters),
                activation=("relu", "tanh")[seed // 2 % 2],
                n_highway=seed // 3 % 3,
                embedding_dim=choose.randint(1, 6),
                max_characters_per_token=choose.choice((7, 20, 50)),
            ),
        )
    bilm = random_bilm(config, seed, scale=choose.choice((1.0, 2.0)))
    return Case(bilm, [reference_layers(bilm, tokens) for tokens in SENTENCES])


def arguments(sentences):
    """What `BiLM.forward` takes, from sentences as lists of tokens."""
    types = list(dict.fromkeys(token for tokens in sentences for token in tokens))
    index = numpy.array([types.index(token) for tokens in sentences for token in tokens], dtype=int)
    return types, index, [len(tokens) for tokens in sentences]


def assert_equals_reference(bilm):
    for tokens, layers in zip(SENTENCES, bilm.embed(SENTENCES)):
        assert max_difference(layers, reference_layers(bilm, tokens).layers) <= 1e-5


# ------------------------------------------------------------------------- equality with reference


@pytest.mark.parametrize("seed", SEEDS)
def test_all_layers_equal_the_reference(seed):
    case = random_case(seed)
    result = case.bilm.embed(SENTENCES)
    for layers, reference in zip(result, case.references):
        assert max_difference(layers, reference.layers) <= 1e-5


@pytest.mark.parametrize("seed", SEEDS)
def test_autograd_path_equals_the_inference_path(seed):
    bilm = random_case(seed).bilm
    trained, _ = bilm(*arguments(SENTENCES))
    with torch.no_grad():
        inferred, _ = bilm(*arguments(SENTENCES))
    assert trained.requires_grad and not inferred.requires_grad
    assert max_difference(trained.detach(), inferred) <= 1e-5


def test_the_random_cases_cover_what_they_should():
    cases = [random_case(seed) for seed in SEEDS]
    lstms = [case.bilm.config.lstm for case in cases]
    encoders = [case.bilm.config.char_cnn for case in cases]
    assert sum(case.cell_clips > 0 for case in cases) >= 5
    assert sum(case.projection_clips > 0 for case in cases) >= 5
    assert sum(not case.cell_clips and not case.projection_clips for case in cases) >= 5
    assert {lstm.n_layers for lstm in lstms} == {1, 2, 3}
    assert {lstm.has_projection for lstm in lstms} == {True, False}
    assert any(lstm.use_skip_connections and lstm.n_layers > 1 for lstm in lstms)
    assert any(not lstm.use_skip_connections and lstm.n_layers > 1 for lstm in lstms)
    assert any(lstm.cell_clip is None for lstm in lstms)
    assert any(lstm.proj_clip is None for lstm in lstms)
    assert {encoder and encoder.activation for encoder in encoders} == {None, "relu", "tanh"}
    assert {encoder.n_highway for encoder in encoders if encoder} == {0, 1, 2}


def test_weights_that_saturate_the_published_clips():
    bilm = random_bilm()
    with torch.no_grad():
        for layer in (*bilm.lstm.forward_layers, *bilm.lstm.backward_layers):
            layer.gate_weight *= 2
            layer.gate_bias += 2  # Gates that are open nearly always let the cells grow.
            layer.projection_weight *= 3
    tokens = ["the", "bank", "of", "the", "river", "by", "the", "bank", "of", "money"] * 4
    reference = reference_layers(bilm, tokens)
    assert bilm.config.lstm.cell_clip == bilm.config.lstm.proj_clip == 3.0
    assert reference.cell_clips and reference.projection_clips
    assert max_difference(bilm.embed([tokens])[0], reference.layers) <= 1e-4


@pytest.mark.parametrize("name", ["cell_clip", "proj_clip"])
def test_clips_bound_what_they_clip(name):
    clips = {"cell_clip": None, "proj_clip": None, name: 0.02}
    config = BiLMConfig(LSTMConfig(12, 6, 1, **clips), TINY.char_cnn)
    bilm = random_bilm(config, scale=3.0)
    [layers] = bilm.embed(SENTENCES[:1])
    projections = [layer.projection_weight for layer in bilm.lstm.forward_layers]
    widest = 0.02 if name == "proj_clip" else 0.02 * projections[0].abs().sum(1).max().item()
    assert layers[1, :, :6].abs().max() <= widest * (1 + 1e-6)


def test_no_sentences_and_only_empty_ones():
    bilm = random_bilm()
    assert bilm.embed([]) == []
    assert [tuple(layers.shape) for layers in bilm.embed([[], []])] == [(3, 0, 12)] * 2


def test_layer_0_is_the_token_encoder_twice():
    bilm = random_bilm()
    [layers] = bilm.embed([["the", "bank"]])
    encoded = bilm.token_encoder(["the", "bank"]).detach()
    assert max_difference(layers[0], torch.cat((encoded, encoded), dim=1)) <= 1e-6


def test_tokens_spelled_like_boundaries_are_boundaries():
    [layers] = random_bilm().embed([["<S>", "x", "</S>"]])
    plain = random_bilm().embed([["< S >", "x", "</ S >"]])[0]
    assert max_difference(layers[0, 1], plain[0, 1]) <= 1e-6
    assert max_difference(layers[0, 0], plain[0, 0]) > 1e-3


def test_unknown_words_share_one_vector():
    [layers] = random_bilm(TINY_WORDS).embed([["never", "<UNK>", "the"]])
    assert torch.equal(layers[0, 0], layers[0, 1])
    assert not torch.equal(layers[0, 1], layers[0, 2])


# ---------------------------------------------------------------------------------------- gradients


@pytest.mark.parametrize("config", [TINY, TINY_WORDS], ids=["characters", "words"])
def test_gradients_equal_finite_differences(config):
    bilm = random_bilm(config).double()
    inputs = arguments([["the", "bank", "x"], ["<S>"], [], ["bank", "."]])
    names, parameters = zip(*bilm.named_parameters())
    weights = torch.randn(3, 6, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def loss(*values):
        layers, _ = functional_call(bilm, dict(zip(names, values)), inputs)
        return (layers * weights).sum()

    generator = torch.Generator().manual_seed(2)
    gradients = torch.autograd.grad(loss(*parameters), parameters)
    for i, (name, parameter) in enumerate(zip(names, parameters)):
        step = torch.randn(parameter.shape, dtype=torch.float64, generator=generator) * 1e-6
        moved = [
            loss(*parameters[:i], parameter + sign * step, *parameters[i + 1 :]) for sign in (1, -1)
        ]
        numerical = (moved[0] - moved[1]).item() / 2e-6
        analytical = (gradients[i] * step).sum().item() / 1e-6
        assert numerical == pytest.approx(analytical, rel=1e-5, abs=1e-6), name


def test_every_parameter_gets_a_gradient():
    bilm = random_bilm()
    layers, _ = bilm(*arguments(SENTENCES))
    layers.square().sum().backward()
    for name, parameter in bilm.named_parameters():
        assert parameter.grad.abs().max() > 0, name


def test_clipped_values_pass_no_gradient():
    config = BiLMConfig(LSTMConfig(12, 6, 1, None, 1e-4), TINY.char_cnn)
    bilm = random_bilm(config)
    layers, _ = bilm(*arguments([["bank"]]))
    clipped = (layers[1].abs() >= 1e-4).all()
    layers[1].sum().backward()
    assert clipped
    assert all(not layer.gate_weight.grad.any() for layer in bilm.lstm.forward_layers)


# --------------------------------------------------------------------------- what depends on what


@pytest.mark.parametrize("seed", [1, 2, 3, 7])
@pytest.mark.parametrize("k", [0, 2, 4])
def test_directions_are_uncoupled(seed, k):
    bilm = random_case(seed).bilm
    tokens = ["the", "bank", "of", "the", "river"]
    other = [*tokens[:k], "money", *tokens[k + 1 :]]
    before, after = bilm.embed([tokens])[0], bilm.embed([other])[0]
    p = bilm.config.projection_dim
    changed = (before - after).abs().amax(2) > 1e-6
    assert changed[0].tolist() == [i == k for i in range(5)]
    forward, backward = (before - after).abs().split(p, dim=2)
    assert forward[1:, :k].sum() == 0
    assert backward[1:, k + 1 :].sum() == 0
    # Farther away the influence may be less than float32 can tell.
    assert forward[1:, k : k + 2].amax(2).min() > 0
    assert backward[1:, max(k - 1, 0) : k + 1].amax(2).min() > 0


# ----------------------------------------------------------------------------- forward's arguments


@pytest.fixture(params=["inference", "autograd"])
def mode(request):
    with torch.set_grad_enabled(request.param == "autograd"):
        yield request.param


def test_targets_place_the_tokens(mode):
    bilm = random_bilm()
    types, index, lengths = arguments(SENTENCES[:2])
    plain, _ = bilm(types, index, lengths)
    targets = numpy.array([8, 0, 7, 2, 5, 3, 6])
    placed, _ = bilm(types, index, lengths, targets=targets, n_rows=10)
    assert placed.shape == (3, 10, 12)
    assert max_difference(placed[:, targets].detach(), plain.detach()) <= 1e-6
    assert not placed[:, [1, 4, 9]].any()


def test_a_target_of_minus_one_drops_a_token_from_the_result_but_not_from_the_context(mode):
    bilm = random_bilm()
    types, index, lengths = arguments([["the", "bank", "."]])
    plain, _ = bilm(types, index, lengths)
    kept, _ = bilm(types, index, lengths, targets=numpy.array([0, -1, 1]), n_rows=2)
    assert max_difference(kept.detach(), plain[:, [0, 2]].detach()) <= 1e-6


def test_all_tokens_may_be_dropped(mode):
    layers, _ = random_bilm()(["x"], numpy.array([0]), [1], targets=numpy.array([-1]), n_rows=2)
    assert layers.shape == (3, 2, 12)
    assert not layers.any()


def test_reduce_is_applied_to_the_activations(mode):
    bilm = random_bilm()
    bilm.max_tokens = 6
    inputs = arguments(SENTENCES)

    def reduce(layers):
        return layers.mean(0)[:, :5]

    layers, features = bilm(*inputs, reduce=reduce)
    assert max_difference(features.detach(), reduce(layers).detach()) <= 1e-6


def test_reduce_goes_to_the_targets_too(mode):
    bilm = random_bilm()
    types, index, lengths = arguments([["the", "bank", "."]])
    layers, features = bilm(
        types, index, lengths, targets=numpy.array([3, -1, 0]), n_rows=4, reduce=lambda x: x[2]
    )
    assert max_difference(features.detach(), layers[2].detach()) <= 1e-6
    assert not features[1:3].any() and features[0].any() and features[3].any()


def test_layers_are_returned_only_if_kept(mode):
    bilm = random_bilm()
    inputs = arguments(SENTENCES)
    layers, features = bilm(*inputs, keep_layers=False, reduce=lambda x: x[1])
    kept, nothing = bilm(*inputs)
    assert layers is None and nothing is None
    assert max_difference(features.detach(), kept[1].detach()) <= 1e-6


def test_reduce_sees_no_empty_tensors():
    """Libraries that take tensors over disagree about empty ones."""
    bilm = random_bilm()
    bilm.max_tokens = 4
    sizes = []

    def reduce(layers):
        sizes.append(layers.shape[1])
        return layers[0]

    for sentences, targets in ([], []), ([["the"], ["bank"]], [-1, 0]), ([["x"]], [-1]):
        with torch.no_grad():
            types, index, lengths = arguments(sentences)
            targets = numpy.array(targets, dtype=int)
            _, features = bilm(types, index, lengths, targets=targets, n_rows=3, reduce=reduce)
        assert features.shape == (3, 12)
    assert min(sizes) > 0


def test_no_tokens_still_have_a_width(mode):
    layers, features = random_bilm()([], numpy.array([], dtype=int), [], reduce=lambda x: x[0])
    assert layers.shape == (3, 0, 12)
    assert features.shape == (0, 12)


# ----------------------------------------------------------------------------------------- stateful


@pytest.fixture
def stateful():
    bilm = random_bilm(scale=2.0)
    bilm.stateful = True
    return bilm


CALLS = (
    (("the", "bank"), ("money", "is", "time", "."), ("x",)),
    (("one", "more", "time", "again"), ("a",), ("b", "c")),
    (("d",), (), ("e", "f", "g")),
    (("h", "i"), ("j",)),
)


def history(row, n_calls):
    """The sentences that a row has seen; an empty one leaves its state alone."""
    return [call[row] for call in CALLS[:n_calls] if row < len(call) and call[row]]


def test_a_row_goes_on_from_the_same_row_of_the_last_call(stateful):
    for n_calls, sentences in enumerate(CALLS):
        for row, layers in enumerate(stateful.embed(sentences)):
            reference = reference_layers(stateful, sentences[row], before=history(row, n_calls))
            assert max_difference(layers, reference.layers) <= 1e-5


def test_a_row_that_is_missing_from_a_call_keeps_its_state(stateful):
    for sentences in CALLS:
        stateful.embed(sentences)
    layers = stateful.embed([["y"], ["y"], ["y"]])[2]
    reference = reference_layers(stateful, ["y"], before=history(2, len(CALLS)))
    assert max_difference(layers, reference.layers) <= 1e-5


def test_a_new_row_starts_from_zero(stateful):
    stateful.embed([["the", "bank"]])
    layers = stateful.embed([["a"], ["b"]])[1]
    assert max_difference(layers, reference_layers(stateful, ["b"]).layers) <= 1e-5


def test_reset_states_starts_again(stateful):
    first = stateful.embed(CALLS[0])
    second = stateful.embed(CALLS[0])
    stateful.reset_states()
    third = stateful.embed(CALLS[0])
    assert max_difference(first[0], second[0]) > 1e-3
    assert all(max_difference(x, y) <= 1e-6 for x, y in zip(first, third))


def test_stateful_rows_are_the_same_whatever_the_budget(stateful):
    stateful.max_tokens = 3
    for n_calls, sentences in enumerate(CALLS[:2]):
        result = stateful.embed(sentences)
        reference = reference_layers(stateful, sentences[1], before=history(1, n_calls))
        assert max_difference(result[1], reference.layers) <= 1e-5


def test_the_stateless_model_has_no_memory():
    bilm = random_bilm()
    first = bilm.embed(CALLS[0])
    bilm.embed(CALLS[1])
    assert all(torch.equal(x, y) for x, y in zip(first, bilm.embed(CALLS[0])))


# ---------------------------------------------------------------------------------------- precision

WIDER = BiLMConfig(
    LSTMConfig(dim=64, projection_dim=32),
    CharCNNConfig(filters=((1, 8), (2, 16), (3, 32)), n_highway=1, embedding_dim=8),
)


def test_float16_is_exact_for_weights_stored_in_half_precision():
    bilm = random_bilm(WIDER)
    with torch.no_grad():
        for parameter in bilm.parameters():
            parameter.copy_(parameter.half())
    exact = bilm.embed(SENTENCES)
    bilm.precision = "float16"
    for layers, other in zip(exact, bilm.embed(SENTENCES)):
        assert max_difference(layers, other) <= 1e-5
    assert_equals_reference(bilm)


def test_float16_is_close_for_other_weights():
    bilm = random_bilm(WIDER)
    exact = bilm.embed(SENTENCES)
    bilm.precision = "float16"
    differences = [max_difference(x, y) for x, y in zip(exact, bilm.embed(SENTENCES))]
    assert 0 < max(differences) <= 1e-2


def test_int8_points_the_same_way():
    bilm = random_bilm(WIDER)
    exact = bilm.embed(SENTENCES)
    bilm.precision = "int8"
    for layers, other in zip(exact, bilm.embed(SENTENCES)):
        cosine = torch.cosine_similarity(layers, other, dim=-1)
        assert (cosine >= 0.99).all()
        assert not len(layers[0]) or not torch.equal(layers, other)


@pytest.mark.parametrize("precision", ["float16", "int8", "float32"])
def test_changing_the_precision_changes_all_of_the_arithmetic(precision):
    bilm, fresh = random_bilm(WIDER), random_bilm(WIDER)
    for other in ("float16", "float32", "int8"):
        bilm.precision = other
        bilm.embed(SENTENCES)
    bilm.precision = fresh.precision = precision
    for layers, expected in zip(bilm.embed(SENTENCES), fresh.embed(SENTENCES)):
        assert torch.equal(layers, expected)


@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
@pytest.mark.parametrize("n_highway", [0, 1])
def test_autocast_around_inference_changes_nothing(precision, n_highway):
    config = dataclasses.replace(
        WIDER, char_cnn=dataclasses.replace(WIDER.char_cnn, n_highway=n_highway)
    )
    bilm, fresh = random_bilm(config), random_bilm(config)
    bilm.precision = fresh.precision = precision
    expected = fresh.embed(SENTENCES)
    with torch.autocast("cpu", torch.bfloat16):
        inside = bilm.embed(SENTENCES)
        assert torch.is_autocast_enabled("cpu")
    for found in (inside, bilm.embed(SENTENCES)):
        assert all(torch.equal(x, y) for x, y in zip(found, expected))


def test_in_int8_the_token_encoder_does_not_depend_on_what_came_before():
    """The type cache keeps what it computes: a dependence would last."""
    bilm, fresh = random_bilm(WIDER), random_bilm(WIDER)
    bilm.precision = fresh.precision = "int8"
    # The widest values that there are set the scale of what is encoded with them.
    bilm.embed([["bank", *(letter * 49 for letter in "abcdefghijklmnop")]])
    [layers], [expected] = bilm.embed([["the", "bank"]]), fresh.embed([["the", "bank"]])
    assert max_difference(layers[0], expected[0]) <= 1e-6


def test_sentences_may_be_iterators():
    bilm = random_bilm()
    expected = bilm.embed(SENTENCES)
    for sentences in (iter(SENTENCES), (iter(tokens) for tokens in SENTENCES)):
        found = bilm.embed(sentences)
        assert len(found) == len(expected)
        assert all(torch.equal(x, y) for x, y in zip(found, expected))


@pytest.mark.parametrize("sentences", [SENTENCES, SENTENCES[:1], SENTENCES[2:3]])
@pytest.mark.parametrize("inference_mode", [False, True])
def test_each_sentence_has_memory_of_its_own(sentences, inference_mode):
    with torch.inference_mode(inference_mode):
        result = random_bilm().embed(sentences)
    for layers in result:
        assert layers.is_contiguous() and not layers.is_inference()
        assert layers.untyped_storage().nbytes() == layers.numel() * layers.element_size()


def test_sentences_must_be_cut_into_tokens():
    with pytest.raises(ValueError, match=r"sentence 1 is a string \('The bank'\)"):
        random_bilm(TINY).embed([["The", "bank"], "The bank"])


@pytest.mark.parametrize("precision", ["float64", "half", "", None])
def test_unknown_precisions_are_refused_with_the_known_ones(precision):
    bilm = random_bilm()
    bilm.precision = precision
    with pytest.raises(ValueError, match=r"unknown precision .*float32.*int8.*bfloat16"):
        bilm.embed([["the"]])


@pytest.mark.parametrize("precision", ["tf32", "bfloat16"])
def test_precisions_of_a_gpu_are_refused_on_a_cpu(precision):
    bilm = random_bilm()
    bilm.precision = precision
    with pytest.raises(ValueError, match=rf"{precision}.*'cpu'.*float32, float16, int8"):
        bilm.embed([["the"]])


# ----------------------------------------------------------------------------------- weight changes


def step(bilm):
    optimizer = torch.optim.SGD(bilm.parameters(), lr=0.1)
    layers, _ = bilm(*arguments(SENTENCES))
    layers.square().mean().backward()
    bilm.embed(SENTENCES)  # Fills the caches between gradient and step.
    optimizer.step()


def load_in_place(bilm):
    bilm.load_state_dict(random_bilm(bilm.config, seed=1).state_dict())


def load_assigned(bilm):
    bilm.load_state_dict(random_bilm(bilm.config, seed=1).state_dict(), assign=True)


def write_through_data(bilm):
    for parameter in bilm.parameters():
        parameter.data *= 1.1
    bilm.invalidate()


def write_in_place(bilm):
    with torch.no_grad():
        for parameter in bilm.parameters():
            parameter.mul_(1.1)


@pytest.mark.parametrize(
    "change", [step, load_in_place, load_assigned, write_through_data, write_in_place]
)
@pytest.mark.parametrize("config", [TINY, TINY_WORDS], ids=["characters", "words"])
def test_changed_weights_change_the_output(change, config):
    bilm = random_bilm(config)
    before = bilm.embed(SENTENCES)
    change(bilm)
    assert_equals_reference(bilm)
    assert max_difference(before[0][0], bilm.embed(SENTENCES)[0][0]) > 1e-4


def test_a_change_of_inference_tensors_is_noticed():
    """PyTorch does not count the changes of weights that were made in inference mode."""
    with torch.inference_mode():
        bilm = random_bilm()
    bilm.embed(SENTENCES)
    with torch.inference_mode():
        write_in_place(bilm)
    assert_equals_reference(bilm)


def test_a_parameter_that_replaces_another_in_the_same_memory_is_noticed():
    bilm = random_bilm()
    layer = bilm.lstm.forward_layers[0]
    memory = layer.gate_weight.detach().numpy().copy()
    for _ in range(2):
        memory *= 1.1
        layer.gate_weight = torch.nn.Parameter(torch.from_numpy(memory))
        assert_equals_reference(bilm)


@pytest.mark.parametrize("part", ["token_encoder", "lstm"])
def test_a_change_of_either_part_is_noticed(part):
    bilm = random_bilm()
    bilm.embed(SENTENCES)
    with torch.no_grad():
        for parameter in getattr(bilm, part).parameters():
            parameter.mul_(1.1)
    assert_equals_reference(bilm)


# ------------------------------------------------------------------------------------------- copies


def pickled(bilm):
    return pickle.loads(pickle.dumps(bilm))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickled])
@pytest.mark.parametrize("config", [TINY, TINY_WORDS], ids=["characters", "words"])
def test_a_copy_gives_the_same_output(duplicate, config):
    bilm = random_bilm(config)
    bilm.max_tokens = 7
    original = bilm.embed(SENTENCES)
    other = duplicate(bilm)
    assert len(other.type_cache) == 0
    assert (other.config, other.vocabulary, other.max_tokens) == (config, bilm.vocabulary, 7)
    assert all(torch.equal(x, y) for x, y in zip(original, other.embed(SENTENCES)))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickled])
def test_a_copy_goes_its_own_way(duplicate):
    bilm = random_bilm()
    original = bilm.embed(SENTENCES)
    other = duplicate(bilm)
    write_in_place(other)
    assert_equals_reference(other)
    assert all(torch.equal(x, y) for x, y in zip(original, bilm.embed(SENTENCES)))


def test_caches_and_packed_weights_are_not_pickled():
    bilm = random_bilm()
    before = len(pickle.dumps(bilm))
    bilm.embed(SENTENCES)
    assert len(bilm.type_cache) > 0
    assert len(pickle.dumps(bilm)) == before


def test_settings_are_no_part_of_the_state_dict():
    bilm = random_bilm()
    names = dict(bilm.named_parameters())
    bilm.embed(SENTENCES)
    assert set(bilm.state_dict()) == set(names)
