"""Listeners in pipelines: training, prediction, and every way to put them together."""

from __future__ import annotations

import copy
import itertools
import pickle

import numpy
import pytest
import spacy
import torch
from spacy.tokens import Doc, DocBin
from spacy.training import Example
from thinc.api import SGD, Adam

from spacy_elmo.bilm import BiLMConfig, CharCNNConfig, LSTMConfig
from spacy_elmo.extensions import get_layers
from spacy_elmo.formats import safetensors_format
from spacy_elmo.layers.encoder import get_bilm
from spacy_elmo.mix_logger import find_mixes

from ..conftest import (
    SCALAR_MIX,
    TINY,
    add_tagger,
    arguments,
    assert_close,
    elmo_pipeline,
    listener,
    max_difference,
    random_bilm,
    tagged,
    tok2vec,
)

SOURCES = {
    "listener": listener(),
    "by name": listener(upstream="elmo"),
    "input": tok2vec(SCALAR_MIX, None),
    "output": tok2vec(None, SCALAR_MIX),
    "both ends": tok2vec(SCALAR_MIX, {"@layers": "spacy-elmo.ConcatLayers.v1"}),
    "learned": listener({"@layers": "spacy-elmo.LearnedMix.v1", "width": 7}),
}
every_source = pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
both_ways = pytest.mark.parametrize("frozen", [True, False], ids=["frozen", "fine-tuned"])
# Every source, with a frozen biLM and a fine-tuned one in turn.
every_source_one_way = pytest.mark.parametrize(
    "source, frozen", [*zip(SOURCES.values(), itertools.cycle([True, False]))], ids=SOURCES
)
TEXTS = ["The bank flows .", "", "Money flows slowly", "\n", "to the river"]


def weights_of(nlp, name="elmo"):
    return {key: value.clone() for key, value in nlp.get_pipe(name).bilm.state_dict().items()}


def differ(first, second):
    return {key for key, value in first.items() if not torch.equal(value, second[key])}


def train(nlp, steps=40, learn_rate=0.05, **settings):
    """RETURNS: The task's first and last loss."""
    examples = tagged(nlp)
    optimizer = nlp.initialize(lambda: examples, sgd=Adam(learn_rate))
    recorded = []
    for _ in range(steps):
        losses = {}
        nlp.update(examples, sgd=optimizer, losses=losses, **settings)
        recorded.append(losses)
    return recorded[0], recorded[-1]


def tags(nlp, texts=TEXTS):
    return [[token.tag_ for token in doc] for doc in nlp.pipe(texts)]


@every_source
def test_no_docs(weights_folder, source):
    nlp = elmo_pipeline(weights_folder)
    add_tagger(nlp, source)
    train(nlp, steps=1)
    model = nlp.get_pipe("tagger").model.get_ref("tok2vec")
    # A pickle has no upstream, which knows the number of layers.
    for tok2vec_model in (model, model.copy(), pickle.loads(pickle.dumps(model))):
        assert tok2vec_model.predict([]) == []
        vectors, backprop = tok2vec_model.begin_update([])
        assert vectors == []
        backprop([])


@every_source
@both_ways
def test_training_learns_the_task(weights_folder, source, frozen):
    nlp = elmo_pipeline(weights_folder, frozen=frozen)
    add_tagger(nlp, source)
    before = weights_of(nlp)
    first, last = train(nlp)
    assert last["tagger"] < 0.3 * first["tagger"]
    # Every weight changes, or none does: bit for bit.
    assert differ(before, weights_of(nlp)) == (set() if frozen else set(before))
    assert all(p.grad is None for p in nlp.get_pipe("elmo").bilm.parameters()) == frozen
    assert ("elmo" in last) != frozen


@every_source_one_way
def test_saved_pipelines_predict_the_same(tmp_path, weights_folder, source, frozen):
    nlp = elmo_pipeline(weights_folder, frozen=frozen)
    add_tagger(nlp, source)
    train(nlp, steps=5)
    nlp.to_disk(tmp_path / "saved")
    loaded = spacy.load(tmp_path / "saved")
    blank = spacy.blank("en").from_config(nlp.config).from_bytes(nlp.to_bytes())
    for other in (loaded, blank, pickle.loads(pickle.dumps(nlp))):
        scores = (x.get_pipe("tagger").model.predict(list(x.pipe(TEXTS))) for x in (other, nlp))
        assert_close(*scores)


def test_an_annotating_task_between(weights_folder):
    """A listener predicts during training, though the upstream does not annotate."""
    nlp = elmo_pipeline(weights_folder)
    add_tagger(nlp, name="first")
    add_tagger(nlp, name="second")
    first, last = train(nlp, annotates=["first"])
    assert last["second"] < 0.3 * first["second"]


# Gradients


def double_pipeline(tmp_path, mixes):
    """A fine-tuned biLM in float64 under one tagger per mix."""
    bilm = random_bilm()
    safetensors_format.write(bilm, tmp_path / "bilm")
    nlp = elmo_pipeline(tmp_path / "bilm", frozen=False)
    for number, mix in enumerate(mixes):
        add_tagger(nlp, listener(mix, grad_factor=1.0 + number), name=f"task{number}")
    nlp.initialize(lambda: tagged(nlp))
    nlp.get_pipe("elmo").bilm.double()
    return nlp


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_gradients_of_listeners_and_sub_batches_are_summed(tmp_path, order):
    """Two listeners and four sub-batches, against plain PyTorch in float64. The listeners' models
    are left out: known gradients go into their mixes, in either order."""
    mixes = [SCALAR_MIX, {"@layers": "spacy-elmo.FrozenMix.v1", "weights": [0.1, 0.7, 0.5]}]
    nlp = double_pipeline(tmp_path, mixes)
    elmo = nlp.get_pipe("elmo")
    plain = random_bilm().double()
    weights = [
        torch.full((3,), 1 / 3, dtype=torch.float64),
        torch.tensor(mixes[1]["weights"], dtype=torch.float64),
    ]
    generator = numpy.random.default_rng(0)
    texts = [["The bank", "flows"], ["Money"], ["", "to the river bank"], ["slowly \n flows"]]
    for batch in texts:
        docs = [nlp.make_doc(text) for text in batch]
        elmo.update([Example.from_dict(doc, {}) for doc in docs])
        pending = []
        for number in (0, 1):
            source = nlp.get_pipe(f"task{number}").model.layers[0]
            for node in source.walk():
                for name in node.param_names:
                    node.set_param(name, node.get_param(name).astype("float64"))
            Y, backprop = source.begin_update(docs)
            dY = [generator.normal(size=y.shape) for y in Y]
            pending.append((backprop, dY))
            words = [[token.text for token in doc if not token.is_space] for doc in docs]
            loss = torch.zeros((), dtype=torch.float64)
            for doc, tokens, d in zip(docs, words, dY):
                if tokens:
                    layers = plain(*arguments([tokens]))
                    kept = [token.i for token in doc if not token.is_space]
                    mixed = torch.tensordot(weights[number], layers, dims=1)
                    loss = loss + (mixed * torch.from_numpy(d[kept])).sum()
            ((1.0 + number) * loss).backward()
        for number in order:
            backprop, dY = pending[number]
            backprop(dY)
    expected = dict(plain.named_parameters())
    for name, parameter in elmo.bilm.named_parameters():
        scale = expected[name].grad.abs().max()
        assert scale > 0
        assert max_difference(parameter.grad, expected[name].grad) < 1e-12 * max(scale, 1), name


@pytest.mark.parametrize("frozen_task", ["one", "two"])
def test_other_tasks_do_not_wait_for_a_task_that_is_not_updated(weights_folder, frozen_task):
    """Whichever listener is missing: the gradients of the others reach the biLM."""
    nlp = elmo_pipeline(weights_folder, frozen=False)
    for name in ("one", "two"):
        add_tagger(nlp, name=name)
    train(nlp, steps=1)
    before = weights_of(nlp)
    examples = tagged(nlp)
    for _ in range(2):
        nlp.update(examples, sgd=False, exclude=[frozen_task])
        for name, component in nlp.pipeline:
            if name != frozen_task:
                component.finish_update(SGD(0.1))
    assert differ(before, weights_of(nlp)) == set(before)


def test_the_last_update_of_a_training_counts_without_all_listeners(weights_folder):
    nlp = elmo_pipeline(weights_folder, frozen=False)
    for name in ("one", "two"):
        add_tagger(nlp, name=name)
    train(nlp, steps=2)
    before = weights_of(nlp)
    nlp.update(tagged(nlp), sgd=Adam(0.01), exclude=["two"])
    nlp.get_pipe("elmo").end_training()
    assert differ(before, weights_of(nlp)) == set(before)


def test_mixed_precision(weights_folder, with_bfloat16):
    nlp = elmo_pipeline(weights_folder, frozen=False, model={"mixed_precision": True})
    add_tagger(nlp)
    before = weights_of(nlp)
    first, last = train(nlp)
    assert last["tagger"] < 0.3 * first["tagger"]
    assert differ(before, weights_of(nlp)) == set(before)
    elmo = nlp.get_pipe("elmo")
    assert {weight.dtype for weight in elmo.bilm.parameters()} == {torch.float32}
    elmo.bilm.load_state_dict(random_bilm().state_dict())
    docs = [Doc(nlp.vocab, words=["bank", "river"])]
    rounded, exact = elmo.model.begin_update(docs)[0].layers, elmo.model.predict(docs).layers
    assert rounded.dtype == "float32"
    assert 1e-6 < max_difference(rounded, exact) < 0.1


def test_mixed_precision_without_bfloat16(weights_folder, without_bfloat16):
    """Emulated, it would be many times slower."""
    nlp = elmo_pipeline(weights_folder, frozen=False, model={"mixed_precision": True})
    add_tagger(nlp)
    with pytest.warns(UserWarning, match="mixed_precision.*float32"):
        train(nlp, steps=1)


# Putting pipelines together


def own_bilm(nlp, name):
    """The copy of the biLM that a component has."""
    [encoder] = [n for n in nlp.get_pipe(name).model.walk() if n.name == "elmo_encoder"]
    return get_bilm(encoder)


@every_source_one_way
def test_replace_listeners(tmp_path, weights_folder, source, frozen):
    nlp = elmo_pipeline(weights_folder, frozen=frozen)
    add_tagger(nlp, source)
    train(nlp, steps=5)
    expected = tags(nlp)
    nlp.replace_listeners("elmo", "tagger", ["model.tok2vec"])
    assert nlp.get_pipe("elmo").listeners == []
    nlp.remove_pipe("elmo")
    assert tags(nlp) == expected
    nlp.to_disk(tmp_path / "alone")
    tagger_only = spacy.load(tmp_path / "alone")
    assert tagger_only.pipe_names == ["tagger"]
    assert tags(tagger_only) == expected
    # Further training trains the copy, unless it was frozen.
    bilm = own_bilm(tagger_only, "tagger")
    before = {key: value.clone() for key, value in bilm.state_dict().items()}
    tagger_only.update(tagged(tagger_only), sgd=Adam(0.01))
    changed = differ(before, bilm.state_dict())
    assert changed == (set() if frozen else set(before))


def test_replaced_listeners_share_no_moments(tmp_path, weights_folder):
    """An optimizer must not take the copies of a biLM for one: they train as they would alone."""
    nlp = elmo_pipeline(weights_folder, frozen=False)
    for name in ("one", "two"):
        add_tagger(nlp, name=name)
    train(nlp, steps=2)
    for name in ("one", "two"):
        nlp.replace_listeners("elmo", name, ["model.tok2vec"])
    nlp.remove_pipe("elmo")
    nlp.to_disk(tmp_path / "both")
    alone = spacy.load(tmp_path / "both", exclude=["one"])
    for pipeline in (nlp, alone):
        optimizer = Adam(0.01)
        for _ in range(5):
            pipeline.update(tagged(pipeline), sgd=optimizer)
    assert not differ(*(own_bilm(x, "two").state_dict() for x in (nlp, alone)))


@both_ways
@pytest.mark.parametrize("duplicate", [lambda x: pickle.loads(pickle.dumps(x)), copy.deepcopy])
def test_copies_of_a_pipeline_train_on(weights_folder, frozen, duplicate):
    nlp = trained_pipeline(weights_folder, frozen=frozen)
    before = weights_of(nlp)
    again = duplicate(nlp)
    assert tags(again) == tags(nlp)
    for pipeline in (nlp, again):
        optimizer = Adam(0.01)
        for step in range(3):
            exclude = ["elmo"] if frozen and step == 1 else []
            pipeline.update(tagged(pipeline), sgd=optimizer, exclude=exclude)
        assert bool(differ(before, weights_of(pipeline))) != frozen
        if pipeline is nlp:
            assert not differ(before, weights_of(again))  # It is apart.
    assert not differ(weights_of(nlp), weights_of(again))
    assert tags(again) == tags(nlp)


def test_sourcing(tmp_path, weights_folder):
    """A trained task from another pipeline, with and without its biLM."""
    trained = elmo_pipeline(weights_folder)
    add_tagger(trained)
    train(trained, steps=5)
    together = spacy.blank("en")
    for name in ("elmo", "tagger"):
        together.add_pipe(name, source=trained)
    assert tags(together) == tags(trained)
    trained.to_disk(tmp_path / "trained")
    config = {
        "nlp": {"lang": "en", "pipeline": ["tagger"]},
        "components": {"tagger": {"source": str(tmp_path / "trained")}},
    }
    config["components"]["tagger"]["replace_listeners"] = ["model.tok2vec"]
    tagger_only = spacy.util.load_model_from_config(config, auto_fill=True)
    assert tagger_only.pipe_names == ["tagger"]
    assert tags(tagger_only) == tags(trained)


def test_several_upstreams(tmp_path):
    """Each task reads the biLM it names, whichever ran last."""
    other = BiLMConfig(LSTMConfig(10, 5, n_layers=1), CharCNNConfig(((1, 5),), embedding_dim=3))
    safetensors_format.write(random_bilm(TINY), tmp_path / "one")
    safetensors_format.write(random_bilm(other), tmp_path / "two")
    nlp = spacy.blank("en")
    for name in ("one", "two"):
        model = {"weights": str(tmp_path / name)}
        nlp.add_pipe("elmo", name=name, config={"model": model, "frozen": False})
    for name in ("one", "two"):
        add_tagger(nlp, listener(upstream=name), name=f"tagger_{name}")
    add_tagger(nlp, listener(), name="tagger_any")
    before = [weights_of(nlp, name) for name in ("one", "two")]
    train(nlp)
    for name, weights in zip(("one", "two"), before):
        assert differ(weights, weights_of(nlp, name)) == set(weights)
    layers = {task: len(mix.weights) for task, mix in find_mixes(nlp)}
    assert layers == {"tagger_one": 3, "tagger_two": 2, "tagger_any": 2}
    doc = nlp("The bank flows")
    for name in ("one", "two"):
        [expected] = nlp.get_pipe(name).predict([doc])
        assert max_difference(get_layers(doc, name), expected.layers) < 1e-6


# Whose layers are on a doc


def trained_pipeline(folder, **settings):
    nlp = elmo_pipeline(folder, **settings)
    add_tagger(nlp, listener(upstream="elmo"))
    train(nlp, steps=10)
    return nlp


def stored(nlp, docs):
    """The same docs, as another process would read them."""
    data = DocBin(docs=docs, store_user_data=True).to_bytes()
    return list(DocBin(store_user_data=True).from_bytes(data).get_docs(nlp.vocab))


@pytest.fixture
def trained(weights_folder):
    return trained_pipeline(weights_folder)


@pytest.fixture
def other(tmp_path):
    """A pipeline like `trained`, of another biLM of the same shape."""
    safetensors_format.write(random_bilm(seed=1), tmp_path / "other")
    return trained_pipeline(tmp_path / "other")


def test_renaming_the_upstream(trained, tmp_path):
    expected = tags(trained)
    trained.rename_pipe("elmo", "renamed")
    assert tags(trained) == expected
    assert trained.update(tagged(trained), sgd=trained.resume_training())["tagger"] > 0
    trained.to_disk(tmp_path / "renamed")
    again = spacy.load(tmp_path / "renamed")
    assert tags(again) == tags(trained)
    again.replace_listeners("renamed", "tagger", ["model.tok2vec"])
    again.remove_pipe("renamed")
    again.to_disk(tmp_path / "alone")
    assert tags(spacy.load(tmp_path / "alone")) == tags(again)


def test_rehearsal(weights_folder):
    """On new docs and on those that elmo has annotated: the same."""
    losses = []
    for annotates in (False, True):
        spacy.util.fix_random_seed(0)
        nlp = trained_pipeline(weights_folder)
        sgd = nlp.resume_training(sgd=Adam(0.01))
        nlp.update(tagged(nlp), sgd=sgd)
        examples = tagged(nlp)
        if annotates:
            list(nlp.get_pipe("elmo").pipe(example.predicted for example in examples))
        losses.append(nlp.rehearse(examples, sgd=sgd)["tagger"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert losses[0] > 0


def test_rehearsal_of_a_fine_tuned_bilm(weights_folder):
    nlp = trained_pipeline(weights_folder, frozen=False)
    sgd = nlp.resume_training(sgd=Adam(0.01))
    nlp.update(tagged(nlp), sgd=sgd)
    message = r"'elmo' is to be fine-tuned .* nlp.rehearse .* nlp.replace"
    with pytest.raises(ValueError, match=message):
        nlp.rehearse(tagged(nlp), sgd=sgd)
    nlp.replace_listeners("elmo", "tagger", ["model.tok2vec"])
    nlp.resume_training()
    nlp.update(tagged(nlp), sgd=sgd)
    assert nlp.rehearse(tagged(nlp), sgd=sgd)["tagger"] > 0


def test_layers_of_other_weights_are_not_read(trained, other, weights_folder):
    """Neither those of another pipeline, nor those from before a step of fine-tuning."""
    doc = other.get_pipe("elmo")(other.make_doc("The bank flows"))
    assert retag(trained, [doc]) == tags(trained, [doc.text])
    nlp = trained_pipeline(weights_folder, frozen=False)
    doc = nlp("The bank flows")
    nlp.update(tagged(nlp), sgd=Adam(0.5))
    scores = (nlp.get_pipe("tagger").model.predict([x])[0] for x in (doc, nlp(doc.text)))
    assert max_difference(*scores) < 1e-5


def test_layers_of_another_component_with_the_same_weights_are_not_read(weights_folder):
    """It may cut docs in another way."""
    nlp = elmo_pipeline(weights_folder)
    nlp.add_pipe("sentencizer", first=True)
    model = {"weights": str(weights_folder), "segmenter": {"@misc": "spacy-elmo.docs.v1"}}
    nlp.add_pipe("elmo", name="whole", config={"model": model})
    add_tagger(nlp, listener(upstream="elmo"))
    nlp.initialize(lambda: tagged(nlp))
    source, text = nlp.get_pipe("tagger").model.layers[0], "The bank . The river"
    [expected] = source.predict([nlp(text)])
    with nlp.select_pipes(disable=["elmo"]):
        [found] = source.predict([nlp(text)])
    assert max_difference(found, expected) < 1e-6


def test_a_task_over_other_weights_than_its_own(trained, other, tmp_path):
    """In another pipeline, in place of its upstream, and loaded from files."""
    trained.to_disk(tmp_path / "trained")
    loaded = spacy.load(tmp_path / "trained", exclude=["elmo"])
    loaded.add_pipe("elmo", source=copy.deepcopy(other), first=True)
    other.remove_pipe("tagger")
    other.add_pipe("tagger", source=trained)
    for nlp in (loaded, other):
        with pytest.warns(UserWarning, match="'tagger' was trained with other weights"):
            nlp("The bank flows")
        nlp("The bank flows")  # Once.


def test_sentence_boundaries_that_are_set_after_elmo(weights_folder):
    nlp = elmo_pipeline(weights_folder)
    nlp.add_pipe("sentencizer")
    add_tagger(nlp, listener(upstream="elmo"))
    train(nlp, steps=1)
    nlp("The bank . The river")
    with (
        nlp.select_pipes(disable=["elmo"]),
        pytest.warns(UserWarning, match="does not see: they are set after it, by sentencizer"),
    ):
        nlp("The bank . The river")
    with pytest.warns(UserWarning, match="the copy of 'elmo' runs after sentencizer"):
        nlp.replace_listeners("elmo", "tagger", ["model.tok2vec"])


def retag(nlp, docs):
    """What the tagger says about docs that may have been tagged before."""
    for doc in docs:
        for token in doc:
            token.tag_ = ""
    with nlp.select_pipes(enable=["tagger"]):
        return [[token.tag_ for token in doc] for doc in nlp.pipe(docs)]


def test_stored_layers_serve_a_pipeline_without_its_bilm(trained, other, tmp_path):
    trained.to_disk(tmp_path / "trained")
    whole = spacy.load(tmp_path / "trained")
    tagger_only = spacy.load(tmp_path / "trained", exclude=["elmo"])
    docs = stored(whole, whole.pipe(TEXTS, n_process=2))
    again = pickle.loads(pickle.dumps(tagger_only))
    for nlp in (tagger_only, again, whole):
        assert retag(nlp, docs) == tags(trained)
    [foreign] = stored(other, [other("The bank flows")])
    for nlp in (tagger_only, again):
        with pytest.raises(ValueError, match="'elmo', which is not before it"):
            nlp(foreign)
    # And once more after it was saved without its biLM.
    tagger_only.to_disk(tmp_path / "alone")
    tagger_only = spacy.load(tmp_path / "alone")
    assert retag(tagger_only, docs) == tags(trained)
    with pytest.raises(ValueError, match="'elmo', which is not before it"):
        tagger_only(foreign)


@both_ways
def test_docs_that_elmo_has_not_seen(weights_folder, frozen):
    """The listener asks for their layers, and not for those of the initialisation or of the last
    batch, also if the words are the same."""
    nlp = trained_pipeline(weights_folder, frozen=frozen)
    expected = tags(nlp, ["The bank flows ."])
    with nlp.select_pipes(disable=["elmo"]):
        assert tags(nlp, ["The bank flows ."]) == expected
    nlp.remove_pipe("elmo")
    assert tags(nlp, ["The bank flows ."]) == expected


def test_fine_tuning_with_annotations(weights_folder):
    """The layers on the docs are of the weights before the step, which the annotating task sees."""
    nlp = elmo_pipeline(weights_folder, frozen=False)
    add_tagger(nlp)
    first, last = train(nlp, annotates=["elmo", "tagger"])
    assert last["tagger"] < 0.3 * first["tagger"]


# Activations of the training data


def test_cached_activations_train_the_same(weights_folder):
    """Also when the batches are put together in another way, and if not all fit."""
    states = []
    block = {"@misc": "spacy-elmo.ActivationCache.v1"}
    for cache in (None, block, {**block, "memory_mb": 0.001}):
        nlp = elmo_pipeline(weights_folder, activation_cache=cache)
        spacy.util.fix_random_seed(0)
        add_tagger(nlp)
        examples = tagged(nlp)
        optimizer = nlp.initialize(lambda examples=examples: examples, sgd=Adam(0.01))
        for step in range(6):
            batch = examples[step % 3 :] + examples[: step % 3]
            nlp.update(batch[: 2 + step % 3], sgd=optimizer)
        scores = nlp.get_pipe("tagger").model.predict(list(nlp.pipe(TEXTS)))
        states.append(numpy.concatenate(scores))
    for state in states[1:]:
        assert max_difference(state, states[0]) < 1e-4


# Bad input


def initialized(folder, source=None, **settings):
    nlp = elmo_pipeline(folder, **settings)
    add_tagger(nlp, source)
    nlp.initialize(lambda: tagged(nlp))
    return nlp


def test_no_upstream():
    nlp = spacy.blank("en")
    add_tagger(nlp)
    with pytest.raises(ValueError, match="a listener needs the layers of the elmo component"):
        nlp.initialize(lambda: tagged(nlp))


def test_frozen_without_annotating(weights_folder):
    """As `spacy train` does it: a component in `training.frozen_components` is not initialised."""
    losses = []
    for annotates in ([], ["elmo"]):
        nlp = elmo_pipeline(weights_folder)
        spacy.util.fix_random_seed(0)
        add_tagger(nlp)
        with nlp.select_pipes(disable=["elmo"]):
            sgd = nlp.initialize(lambda nlp=nlp: tagged(nlp), sgd=Adam(0.05))
        for _ in range(5):
            loss = nlp.update(tagged(nlp), sgd=sgd, exclude=["elmo"], annotates=annotates)
        losses.append(loss["tagger"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_fine_tuning_a_frozen_component(weights_folder):
    nlp = initialized(weights_folder, frozen=False)
    for annotates in ([], ["elmo"]):
        with pytest.raises(ValueError, match=r"'elmo' is to be fine-tuned .* training.frozen_comp"):
            nlp.update(tagged(nlp), exclude=["elmo"], annotates=annotates)


def test_listeners_need_kept_layers(weights_folder):
    """It is said when the listener is used. Until then the pipeline can be put together."""
    nlp = elmo_pipeline(weights_folder, keep_layers=False)
    add_tagger(nlp)
    nlp.add_pipe("sentencizer", first=True)
    for use in (lambda: nlp.initialize(lambda: tagged(nlp)), lambda: nlp("The bank")):
        with pytest.raises(ValueError, match=r"of 'tagger' needs .* 'elmo', which has keep_layers"):
            use()
    nlp.remove_pipe("tagger")
    assert nlp("The bank")._.elmo is not None


def test_a_mix_that_would_never_be_trained(weights_folder):
    with pytest.raises(ValueError, match="nothing would train a scalar_mix"):
        elmo_pipeline(weights_folder, mix=SCALAR_MIX)


def test_upstream_of_another_shape(tmp_path, weights_folder):
    nlp = initialized(weights_folder)
    other = BiLMConfig(LSTMConfig(12, 8), TINY.char_cnn)
    safetensors_format.write(random_bilm(other), tmp_path / "other")
    nlp.get_pipe("elmo").load_weights(tmp_path / "other")
    for use in (lambda: nlp("The bank"), lambda: nlp.update(tagged(nlp))):
        with pytest.raises(ValueError, match="width 12, but its upstream's biLM gives 16"):
            use()


@pytest.mark.parametrize("value, frozen", [(float("nan"), True), (float("inf"), False)])
def test_bad_gradients(weights_folder, value, frozen):
    nlp = initialized(weights_folder, frozen=frozen)
    source = nlp.get_pipe("tagger").model.layers[0]
    docs = [example.x for example in tagged(nlp)]
    nlp.get_pipe("elmo").update(tagged(nlp))
    Y, backprop = source.begin_update(docs)
    dY = [numpy.ones_like(y) for y in Y]
    dY[0][0, 0] = value
    with pytest.raises(ValueError, match=r"gradient of the ELMo vectors .* is NaN or infinite"):
        backprop(dY)


def test_a_task_that_an_update_left_out(weights_folder):
    """The batch that waits for it is not that of a later update."""
    nlp = initialized(weights_folder)
    first, second, *_ = tagged(nlp)
    nlp.update([first], exclude=["tagger"])
    assert nlp.update([second], exclude=["elmo"])["tagger"] > 0


def test_docs_changed_between(weights_folder):
    """Docs that are retokenised between the upstream and the listener, with and without
    annotations."""
    nlp = initialized(weights_folder)
    [example, *_] = tagged(nlp)
    nlp.get_pipe("elmo").update([example])
    with example.x.retokenize() as retokenizer:
        retokenizer.merge(example.x[:2])
    with pytest.raises(ValueError, match="docs that differ from those that the elmo component"):
        nlp.get_pipe("tagger").update([example])
    doc = nlp.get_pipe("elmo")(nlp.make_doc("The bank flows"))
    with doc.retokenize() as retokenizer:
        retokenizer.merge(doc[:2])
    with pytest.raises(ValueError, match="2 tokens, but ELMo vectors of 3"):
        nlp.get_pipe("tagger")(doc)
