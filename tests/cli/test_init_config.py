"""spacy elmo init-config, and the help."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import typer
from spacy.util import load_config, load_model_from_config

from spacy_elmo.cli import app
from spacy_elmo.cli.init_config import FOLDER
from spacy_elmo.pretraining.config import read_config

from .conftest import fail, succeed

TASKS = sorted(path.stem for path in FOLDER.glob("*.cfg"))
SIZES = sorted(path.stem for path in (FOLDER / "pretraining").glob("*.cfg"))


@pytest.mark.parametrize("task", TASKS)
def test_a_task(task: str, tmp_path: Path):
    assert "spacy train" in succeed("init-config", task, tmp_path / "new" / "a.cfg")
    assert load_config(tmp_path / "new" / "a.cfg") == load_config(FOLDER / f"{task}.cfg")


@pytest.mark.parametrize("size", SIZES)
def test_a_size(size: str, tmp_path: Path):
    out = tmp_path / "a.cfg"
    assert "spacy elmo pretrain" in succeed("init-config", "--pretraining", size, out)
    config = read_config(out)
    assert config == read_config(FOLDER / "pretraining" / f"{size}.cfg")
    assert config.bilm and (config.bilm.char_cnn is None) == (size in ("tiny-words", "ag-news"))
    assert config.pretraining.max_epochs or config.pretraining.max_minutes


def test_another_language(tmp_path: Path):
    assert "no weights for 'zh'" in succeed("init-config", "ner", tmp_path / "a.cfg", "-l", "zh")
    nlp = load_model_from_config(load_config(tmp_path / "a.cfg"), auto_fill=True)
    assert nlp.lang == "zh" and len(nlp.make_doc("銀行")) == 2
    with pytest.raises(ValueError, match="no weights yet"):
        nlp("銀行")


def test_other_weights(tmp_path: Path, weights_folder: Path):
    options = ("--lang", "de", "--weights", weights_folder)
    output = succeed("init-config", "tagger", tmp_path / "a.cfg", *options)
    assert "no weights for" not in output
    nlp = load_model_from_config(load_config(tmp_path / "a.cfg"), auto_fill=True)
    assert nlp.lang == "de" and nlp.get_pipe("elmo").bilm.config.lstm.dim == 12


@pytest.mark.parametrize("task", ["ner", "tagger", "spancat", "multitask", "textcat_tok2vec"])
def test_static_vectors(task: str, tmp_path: Path):
    """The task's own layers read the table, and nothing else changes where they have an embed."""
    succeed("init-config", task, tmp_path / "a.cfg", "--vectors", "table")
    config, before = load_config(tmp_path / "a.cfg"), load_config(FOLDER / f"{task}.cfg")
    nlp = load_model_from_config(config, auto_fill=True)
    tasks = [nlp.get_pipe(x) for x in nlp.pipe_names if x not in ("elmo", "doc_cleaner")]
    assert tasks and config["paths"].pop("vectors") == "table"
    for one in (x for x in tasks if hasattr(x, "model")):
        assert [node.name for node in one.model.walk()].count("static_vectors") == 1
        embed = config["components"][one.name]["model"]["tok2vec"]["embed"]
        assert embed.pop("include_static_vectors") is True
        embed["include_static_vectors"] = False
    config["paths"]["vectors"] = None
    assert config == before or task == "spancat"
    assert "textcat_tok2vec" in fail("init-config", "textcat", tmp_path / "b.cfg", "-v", "table")


def test_what_is_wrong(tmp_path: Path):
    out = tmp_path / "a.cfg"
    assert "choose one of morphologizer, multitask, ner," in fail("init-config", "tager", out)
    message = fail("init-config", "--pretraining", "tagger", out)
    assert "medium" in message and "tiny-words" in message
    assert "language qqq" in fail("init-config", "tagger", out, "-l", "qqq")
    assert "--paths.init_from" in fail("init-config", "--pretraining", "tiny", out, "-l", "de")
    assert not out.exists()
    out.write_text("mine")
    assert "--force" in fail("init-config", "tagger", out)
    assert out.read_text() == "mine"
    succeed("init-config", "tagger", out, "--force")
    assert load_config(out)["nlp"]["pipeline"][:2] == ["elmo", "tagger"]


def test_configs_are_part_of_the_package():
    tomllib = pytest.importorskip("tomllib")
    file = Path(__file__).parents[2] / "pyproject.toml"
    settings = tomllib.loads(file.read_text(encoding="utf8"))
    patterns = settings["tool"]["setuptools"]["package-data"]["spacy_elmo"]
    packaged = {path for pattern in patterns for path in FOLDER.parent.glob(pattern)}
    assert packaged >= set(FOLDER.rglob("*.cfg")) and len(TASKS) >= 9 and len(SIZES) >= 5


def test_the_list_of_commands_is_not_cut():
    """The first sentence of each command's help fits beside its name."""
    commands = typer.main.get_command(app).commands
    for name, command in commands.items():
        first = command.help.strip().split("\n\n")[0]
        assert first.endswith(".") and len(first) < 60, name
    assert "IN... OUT" in " ".join(succeed("prepare", "--help").split())


def test_a_gpu_without_cupy(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr("thinc.util.has_cupy", False)
    monkeypatch.setattr("thinc.util.has_cupy_gpu", False)
    (tmp_path / "a.txt").write_text("text")
    arguments = (tmp_path / "a.txt", tmp_path / "out.npz", "--model", "en_elmo_sm")
    assert "CuPy is not installed" in fail("embed", *arguments, "--gpu-id", 0)
