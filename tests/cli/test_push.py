"""`spacy elmo push`, with a hub on this machine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import spacy
import srsly
from spacy.language import Language

from ..conftest import add_tagger, elmo_pipeline, max_difference
from ..hub import TOKEN, HubHandler, publish, use_hub
from ..site import site
from .conftest import fail, succeed

TARGET = "hf:owner/name"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A hub without repositories, whose token is at hand."""
    monkeypatch.setenv("SPACY_ELMO_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    HubHandler.repositories, HubHandler.commits, HubHandler.large = {}, [], {}
    with site(HubHandler) as web:
        use_hub(web, monkeypatch)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        HubHandler.site = web
        yield HubHandler


@pytest.fixture
def nlp(tmp_path: Path, weights_folder: Path) -> Language:
    """A pipeline with a tagger, saved as `pipeline`, with hidden files beside it."""
    nlp = elmo_pipeline(weights_folder)
    add_tagger(nlp)
    nlp.get_pipe("tagger").add_label("N")  # type: ignore[attr-defined]
    nlp.initialize()
    nlp.meta.update(
        license="CC BY-SA 4.0",
        description="Tags: words",
        performance={"tag_acc": 0.9, "pos_acc": 0.0},
    )
    nlp.to_disk(tmp_path / "pipeline")
    (tmp_path / "pipeline" / ".cache").mkdir()
    (tmp_path / "pipeline" / ".cache" / "notes").write_text("mine")
    return nlp


def test_download_reads_what_push_writes(hub: type[HubHandler], nlp: Language):
    assert "owner/name" in succeed("push", "pipeline", TARGET, "--quiet")
    assert hub.large  # A file took the way of large ones.
    succeed("download", TARGET, "--quiet")
    succeed("download", TARGET, "--quiet", "--output", "out")
    assert spacy.load("out").pipe_names == nlp.pipe_names
    assert not (Path("out") / "README.md").exists()
    expected = nlp("The bank")._.elmo
    for source in ("out", Path("cache") / "pipelines" / "owner--name"):
        assert max_difference(spacy.load(source)("The bank")._.elmo, expected) <= 1e-6
    named = elmo_pipeline(TARGET)("The bank")  # type: ignore[arg-type]
    assert max_difference(named._.elmo, expected) <= 1e-6
    assert "leave out --half" in fail("download", TARGET, "--output", "half", "--half")
    succeed("download", TARGET, "--quiet", "--output", "out", "--force")


def test_the_card_says_what_the_pipeline_says(hub: type[HubHandler], nlp: Language):
    succeed("push", "pipeline", TARGET, "--quiet")
    _, head, text = hub.repositories["owner/name"]["README.md"].decode().split("---\n", 2)
    facts = srsly.yaml_loads(head)
    assert facts["library_name"] == "spacy" and facts["language"] == ["en"]
    assert facts["tags"] == ["spacy", "elmo", "token-classification"]
    assert facts["license"] == "cc-by-sa-4.0"
    assert "# en_pipeline" in text and "Tags: words" in text
    assert "3 layers × 12" in text and "`TAG_ACC` | 90.00" in text
    assert "POS_ACC" not in text  # Was not measured.
    assert f"spacy elmo download {TARGET} --output en_pipeline" in text


def test_other_licences_and_cards(hub: type[HubHandler], nlp: Language):
    meta = srsly.read_json("pipeline/meta.json")
    srsly.write_json("pipeline/meta.json", {**meta, "license": "Ask us", "performance": {}})
    succeed("push", "pipeline", TARGET, "--quiet")
    card = hub.repositories["owner/name"]["README.md"].decode()
    facts = srsly.yaml_loads(card.split("---\n")[1])
    assert (facts["license"], facts["license_name"]) == ("other", "ask-us")
    del meta["performance"]  # It was never trained.
    names = {"MIT License": "mit", "GPL v3": "other", "Apache License 2.0": "apache-2.0"}
    for licence, short in names.items():
        srsly.write_json("pipeline/meta.json", {**meta, "license": licence})
        succeed("push", "pipeline", TARGET, "--quiet")
        card = hub.repositories["owner/name"]["README.md"].decode()
        assert srsly.yaml_loads(card.split("---\n")[1])["license"] == short
    Path("pipeline/README.md").write_text("My words")
    succeed("push", "pipeline", TARGET, "--quiet")
    assert hub.repositories["owner/name"]["README.md"] == b"My words"


def test_a_second_push_replaces_the_first(hub: type[HubHandler], nlp: Language):
    succeed("push", "pipeline", TARGET, "--quiet", "--private")
    first = set(hub.repositories["owner/name"])
    assert "tagger/model" in first and ".cache/notes" not in first
    nlp.remove_pipe("tagger")
    nlp.to_disk("other")
    succeed("push", "other", TARGET, "--quiet", "--message", "Without a tagger")
    left = first - set(hub.repositories["owner/name"])
    assert left == {"tagger/model", "tagger/cfg"} and ".gitattributes" in first
    created, commit, second = hub.commits
    assert created["create"] == "owner/name"
    assert created.get("visibility") == "private" or created.get("private") is True
    assert (commit["summary"], second["summary"]) == ("Push a pipeline", "Without a tagger")


def test_another_model_is_not_replaced(hub: type[HubHandler], nlp: Language):
    for name, files in (("card", {"README.md": b"soon"}), ("model", {"a.bin": b"", "b.md": b""})):
        hub.repositories[f"owner/{name}"] = {**files}
        publish(hub.site, f"owner/{name}", files)
    succeed("push", "pipeline", "hf:owner/card", "--quiet")
    assert b"soon" not in hub.repositories["owner/card"]["README.md"]
    assert "other files than those of a pipeline: ['a.bin'" in fail(
        "push", "pipeline", "hf:owner/model"
    )
    assert set(hub.repositories["owner/model"]) == {"a.bin", "b.md"}


def test_what_cannot_be_pushed(hub: type[HubHandler], nlp: Language, weights_folder: Path):
    assert "no pipeline and no weights 'none'" in fail("push", "none", TARGET)
    assert "spacy elmo convert" in fail("push", weights_folder, TARGET)
    spacy.blank("en").to_disk("blank")
    assert "no elmo component" in fail("push", "blank", TARGET)
    for target in ("owner/name", "hf:name", "hf:owner/name@v1", "hf:../name", "https://a.b/c"):
        assert "give hf:owner/name" in fail("push", "pipeline", target)
    assert not hub.commits


def test_push_without_a_token_or_the_library(
    hub: type[HubHandler], nlp: Language, monkeypatch: pytest.MonkeyPatch
):
    for token in ("hf_other", None):
        monkeypatch.setenv("HF_TOKEN", token) if token else monkeypatch.delenv("HF_TOKEN")
        assert "run `hf auth login`, or set HF_TOKEN" in fail("push", "pipeline", TARGET)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert 'pip install "spacy-elmo[hub]"' in fail("push", "pipeline", TARGET)
