"""The ready-made configs, and spaCy's own commands on them."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import numpy
import pytest
import spacy
from spacy.tokens import Doc, DocBin
from spacy.training.initialize import init_nlp
from spacy.training.loop import train
from spacy.util import load_config, load_config_from_str

from spacy_elmo.formats import safetensors_format
from spacy_elmo.mix_logger import find_mixes

from .conftest import random_bilm, run_spacy

FOLDER = Path(__file__).parents[1] / "spacy_elmo" / "configs"
CONFIGS = sorted(path.stem for path in FOLDER.glob("*.cfg"))
every_config = pytest.mark.parametrize("name", CONFIGS)
SHORT = {
    "training.max_steps": 4,
    "training.eval_frequency": 2,
    "training.patience": 0,
    "training.batcher.size": 200,
}


def small(name: str, corpus: dict[str, str], **settings) -> dict:
    """Overrides that make a config small enough for a test: few steps, and narrow layers."""
    overrides = {**corpus, **SHORT, **settings}
    for component, block in load_config(FOLDER / f"{name}.cfg")["components"].items():
        if "embed" in block.get("model", {}).get("tok2vec", {}):
            prefix = f"components.{component}.model.tok2vec"
            overrides[f"{prefix}.embed.width"] = overrides[f"{prefix}.encode.width"] = 16
            overrides[f"{prefix}.embed.rows"] = [100, 50, 50, 50]
            overrides[f"{prefix}.encode.depth"] = 1
    return overrides


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> dict[str, str]:
    """Docs with every annotation the configs train, and a biLM."""
    folder = tmp_path_factory.mktemp("corpus")
    nlp = spacy.blank("en")
    docs = []
    for number in range(104):
        place = "London" if number % 2 else "Paris"
        words = ["The", "bank", "moved", "to", place, "."] * 2
        docs.append(
            Doc(
                nlp.vocab,
                words=words,
                tags=["DT", "NN", "VBD", "IN", "NNP", "."] * 2,
                pos=["DET", "NOUN", "VERB", "ADP", "PROPN", "PUNCT"] * 2,
                morphs=["", "Number=Sing", "Tense=Past", "", "Number=Sing", ""] * 2,
                heads=[1, 2, 2, 2, 3, 2, 7, 8, 8, 8, 9, 8],
                deps=["det", "nsubj", "ROOT", "prep", "pobj", "punct"] * 2,
                ents=["O", "O", "O", "O", "B-GPE", "O"] * 2,
            )
        )
        docs[-1].cats = {"english": float(number % 2), "french": float(1 - number % 2)}
        docs[-1].spans["sc"] = [spacy.tokens.Span(docs[-1], 4, 5, "GPE")]
    DocBin(docs=docs, store_user_data=True).to_disk(folder / "train.spacy")
    DocBin(docs=docs[:6], store_user_data=True).to_disk(folder / "dev.spacy")
    safetensors_format.write(random_bilm(), folder / "bilm")
    return {
        "paths.train": str(folder / "train.spacy"),
        "paths.dev": str(folder / "dev.spacy"),
        "paths.weights": str(folder / "bilm"),
    }


def options(settings: dict) -> list[str]:
    return [word for key, value in settings.items() for word in (f"--{key}", str(value))]


def run(*arguments: str) -> str:
    result = run_spacy(*arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


@every_config
def test_it_trains(name, corpus, tmp_path):
    """From the file to a saved pipeline: everything predicts what the trainer's predicts."""
    # spaCy saves the parameters' averages, where it keeps them, and returns the last ones.
    settings = {"training.optimizer.use_averages": False}
    config = load_config(FOLDER / f"{name}.cfg", overrides=small(name, corpus, **settings))
    nlp = init_nlp(config)
    before = {k: v.clone() for k, v in nlp.get_pipe("elmo").bilm.state_dict().items()}
    nlp, _ = train(nlp, tmp_path)
    after = nlp.get_pipe("elmo").bilm.state_dict()
    assert all(numpy.array_equal(value, after[key]) for key, value in before.items())
    mixes = {task.split("/")[0]: mix for task, mix in find_mixes(nlp)}
    assert set(mixes) == set(nlp.pipe_names) - {"elmo", "sentencizer", "doc_cleaner"}
    assert all(state.weights != pytest.approx([1 / 3] * 3, abs=1e-6) for state in mixes.values())
    assert len(set(map(str, mixes.values()))) == len(mixes)
    assert len(nlp.get_pipe("elmo").activation_cache) == 0  # The logger has freed it.
    loaded = spacy.load(tmp_path / "model-last")
    texts = [doc.text for doc in DocBin().from_disk(corpus["paths.dev"]).get_docs(nlp.vocab)]
    for doc, expected in zip(loaded.pipe(texts), nlp.pipe(texts)):
        assert annotations(doc) == annotations(expected)


def annotations(doc: Doc) -> dict:
    json = doc.to_json()
    json["cats"] = {label: pytest.approx(score, abs=1e-6) for label, score in doc.cats.items()}
    return json


# spaCy's commands


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory) -> Path:
    """`spacy train` on the multi-task config."""
    folder = tmp_path_factory.mktemp("trained")
    settings = options(small("multitask", corpus))
    output = run("train", FOLDER / "multitask.cfg", "--output", folder, *settings)
    for task, end in product(("tagger", "morphologizer", "parser"), ("input", "output")):
        assert output.count(f"  {task}/{end}: scalar_mix ") == 3  # Steps 0, 2 and 4.
    return folder / "model-last"


def test_apply_stores_no_vectors(corpus, trained, tmp_path):
    run("apply", trained, corpus["paths.dev"], tmp_path / "out.spacy")
    nlp = spacy.load(trained)
    docs = list(DocBin().from_disk(tmp_path / "out.spacy").get_docs(nlp.vocab))
    assert all(doc.has_annotation("TAG") and doc._.elmo_layers is None for doc in docs)
    assert max(len(doc.to_bytes()) for doc in docs) < 3000
    nlp.remove_pipe("doc_cleaner")
    assert nlp("The bank .")._.elmo_layers.shape == (3, 3, 12)


# Fine-tuning


def test_the_documented_gradual_unfreezing(corpus):
    """The top layer learns from the start, the token encoder last."""
    page = (FOLDER.parents[1] / "docs" / "training.md").read_text(encoding="utf8")
    code = re.search(r"```python\n([^`]*gradual_unfreezing.*?)```", page, re.DOTALL)[1]
    block = re.search(r"```ini\n([^`]*gradual_unfreezing.*?)```", page, re.DOTALL)[1]
    exec(code, {})
    changed = {}
    for n_steps in (1, 3, 5):
        settings = {"training.max_steps": n_steps, "training.eval_frequency": 100}
        config = load_config(FOLDER / "tagger.cfg", overrides=small("tagger", corpus, **settings))
        config["components"]["elmo"]["frozen"] = False
        callback = load_config_from_str(f"[training]\n{block}")["training"]["before_update"]
        config["training"]["before_update"] = {**callback, "every": 2}
        nlp = init_nlp(config)
        before = {k: v.clone() for k, v in nlp.get_pipe("elmo").bilm.state_dict().items()}
        nlp, _ = train(nlp)
        after = nlp.get_pipe("elmo").bilm.state_dict()
        changed[n_steps] = {k for k, v in before.items() if not numpy.array_equal(v, after[k])}
    top = {name for name in before if "layers.1." in name}
    bottom = {name for name in before if "layers.0." in name}
    assert changed == {1: top, 3: top | bottom, 5: set(before)}
    # The next training begins with all of it.
    nlp.get_pipe("elmo").bilm.unfreeze(1)
    nlp.initialize()
    assert all(weight.requires_grad for weight in nlp.get_pipe("elmo").bilm.parameters())
