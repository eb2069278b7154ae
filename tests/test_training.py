"""What `spacy train` and loops like it use of ours: the log of the mixes, and a new beginning."""

from __future__ import annotations

import io

import pytest
from spacy.util import fix_random_seed, registry

from spacy_elmo.formats import safetensors_format
from spacy_elmo.layers.encoder import get_session

from .conftest import add_tagger, elmo_pipeline, max_difference, random_bilm, tagged


def test_the_log(weights_folder):
    """Another logger gets the mixes, too, and they are below what it prints."""
    nlp = elmo_pipeline(weights_folder)
    add_tagger(nlp)
    nlp.initialize(lambda: tagged(nlp))
    infos, output = [], io.StringIO()

    def inner(nlp, stdout, stderr):
        return lambda info: infos.append(info) or print("inner", file=stdout), lambda: None

    log_step, finalize = registry.loggers.get("spacy-elmo.MixLogger.v1")(inner)(nlp, output, output)
    log_step(None)
    log_step({"other_scores": {"tag_acc": 0.5}})
    finalize()
    line = "  tagger: scalar_mix 0.333 0.333 0.333, gamma 1.000"
    assert output.getvalue().splitlines() == ["inner", "inner", line]
    assert infos[1]["other_scores"].keys() == {
        "tag_acc",
        *(f"elmo_tagger_layer{number}" for number in range(3)),
        "elmo_tagger_gamma",
    }


def train(nlp):
    """RETURNS (tuple): The losses of a training, and the vectors before and after it."""
    fix_random_seed(0)
    sgd = nlp.initialize(lambda: tagged(nlp))
    before = nlp("The bank")._.elmo_layers
    losses = [nlp.update(tagged(nlp), sgd=sgd)["tagger"] for _ in range(4)]
    return losses, before, nlp("The bank")._.elmo_layers


WARMUP = {"@schedules": "warmup_linear.v1", "warmup_steps": 2, "total_steps": 5}
OPTIMIZER = {"@optimizers": "Adam.v1", "learn_rate": {**WARMUP, "initial_rate": 0.01}}


def shared(folder, **config):
    nlp = elmo_pipeline(folder, **config)
    add_tagger(nlp)
    return nlp


def loaded(folder, **config):
    """A saved pipeline, whose file of weights is gone, and was another one."""
    nlp = shared(folder, **config)
    nlp.initialize(lambda: tagged(nlp))
    safetensors_format.write(random_bilm(seed=1), folder)
    return shared(folder, **config).from_bytes(nlp.to_bytes())


def own_copy(folder, **config):
    nlp = shared(folder, **config)
    nlp.replace_listeners("elmo", "tagger", ["model.tok2vec"])
    return nlp


def other_weights(folder, **config):
    nlp = shared(folder, **config)
    safetensors_format.write(random_bilm(seed=1), folder.parent / "other")
    nlp.get_pipe("elmo").load_weights(folder.parent / "other")
    return nlp


@pytest.mark.parametrize(
    "make, optimizer",
    [(shared, None), (own_copy, None), (loaded, OPTIMIZER), (other_weights, OPTIMIZER)],
)
def test_initialize_undoes_fine_tuning(weights_folder, make, optimizer):
    """So that the folds of a cross-validation do not know each other's data."""
    nlp = make(weights_folder, frozen=False, optimizer=optimizer)
    losses, before, after = train(nlp)
    assert losses[-1] < losses[0]
    assert (max_difference(before, after) > 1e-3) == (make is not own_copy)
    again, before_again, after_again = train(nlp)
    assert again == pytest.approx(losses, rel=1e-5)
    assert max_difference(before_again, before) <= 1e-5
    assert max_difference(after_again, after) <= 1e-5


def test_what_a_frozen_bilm_computed_is_kept_for_the_next_fold(weights_folder):
    nlp = shared(weights_folder)
    train(nlp)
    elmo = nlp.get_pipe("elmo")
    session, n_cached = get_session(elmo.model), len(elmo.activation_cache)
    train(nlp)
    assert get_session(elmo.model) is session and len(elmo.activation_cache) >= n_cached > 0
