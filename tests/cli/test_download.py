"""`spacy elmo download` and `spacy elmo models`, with a server on this machine."""

from __future__ import annotations

import ast
import hashlib
import json
import re
import sys
import threading
from pathlib import Path

import pytest
import spacy
from spacy.util import get_lang_class

import spacy_elmo
from spacy_elmo.bilm import BiLM
from spacy_elmo.catalogue import find_download, home, read_table
from spacy_elmo.inference import current_session
from spacy_elmo.weights import bundled_names, load_bilm, source_language

from ..conftest import elmo_pipeline, max_difference
from ..families import bilm_tf, nlpl
from ..families.network import random_model
from ..hub import publish, use_hub
from ..site import Site, site
from .conftest import fail, succeed

TOKENS = [["the", "bank"]]
PACKAGE = Path(spacy_elmo.__file__).parent
# Modules that talk to other machines.
NETWORK = {"requests", "urllib3", "urllib", "http", "socket", "httpx", "huggingface_hub"}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of downloads, and another working directory."""
    monkeypatch.setenv("SPACY_ELMO_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


@pytest.fixture
def web(cache: Path, hdf5_folder: Path):
    """A site, with the tiny biLM in the published format at /tiny."""
    with site() as running:
        for path in hdf5_folder.iterdir():
            running.add(f"/tiny/{path.name}", path.read_bytes(), ETag='"1"')
        yield running


@pytest.fixture
def table(web: Site, tmp_path: Path) -> Path:
    """A table with the tiny biLM."""
    names = ("options.json", "weights.hdf5")
    collection = {"base": [f"{web.url}/gone/", f"{web.url}/tiny/"], "lang": "de"}
    files = {name: name for name in names}
    models = [
        {"name": "plain", "collection": "c", "licence": "CC0", "id": 7, "files": files},
        {"name": "nowhere", "collection": "c", "notes": "Ask its authors."},
        {"name": "tf", "collection": "c", "readable": False, "files": {"a": "options.json"}},
    ]
    path = tmp_path / "table.json"
    path.write_text(json.dumps({"collections": {"c": collection}, "models": models}))
    return path


@pytest.fixture
def get(table: Path):
    """Run the command, and expect that it succeeds."""
    return lambda *arguments: succeed("download", *arguments, "--table", table, "--quiet")


@pytest.fixture
def refuse(table: Path):
    """Run the command, and expect that it fails."""
    return lambda *arguments: fail("download", *arguments, "--table", table, "--quiet")


def assert_is(source: object, bilm: BiLM) -> None:
    vectors = [current_session(x).embed(TOKENS)[0] for x in (load_bilm(source), bilm)]
    assert max_difference(*vectors) <= 1e-6


# Downloads


def test_a_name_becomes_a_pipeline(get, cache: Path, bilm: BiLM, web: Site):
    get("plain")
    assert_is("plain", bilm)
    nlp = spacy.load(cache / "pipelines" / "plain")
    assert (nlp.lang, nlp.pipe_names) == ("de", ["sentencizer", "elmo"])
    assert nlp.meta["license"] == "CC0"
    sources = {x["name"]: x for x in nlp.meta["sources"]}
    digest = hashlib.sha256(web.pages["/tiny/weights.hdf5"]).hexdigest()
    url = f"{web.url}/tiny/weights.hdf5"
    assert sources["weights.hdf5"] == {"name": "weights.hdf5", "url": url, "sha256": digest}
    assert elmo_pipeline("plain", lang="de")("the bank")._.elmo.shape == (12,)
    web.requests.clear()
    assert "there already" in get("plain")
    assert not web.requests
    get("plain", "--force")
    assert len(web.requests) == 4  # Each file, from both addresses.


def test_another_name_and_language(get, refuse, cache: Path, bilm: BiLM):
    get("7", "--name", "mine", "--lang", "en", "--no-sentencizer", "--half")
    nlp = spacy.load(cache / "pipelines" / "mine")
    assert (nlp.lang, nlp.pipe_names) == ("en", ["elmo"])
    assert "is another model" in refuse("plain", "--name", "en_elmo_sm")
    assert "is another model" in refuse("http://127.0.0.1:1/plain.zip")
    assert "cannot be the name" in refuse("plain", "--name", "../x")
    assert not find_download("plain")


def test_outputs_are_not_overwritten_unasked(get, refuse, tmp_path: Path, bilm: BiLM, cache: Path):
    get("plain", "--output", tmp_path / "out")
    assert_is(tmp_path / "out", bilm)
    assert "--force" in refuse("plain", "--output", tmp_path / "out")
    get("plain", "--output", tmp_path / "out", "--force")
    assert not (cache / "pipelines").exists()
    get("plain", "--output", tmp_path / "files", "--no-convert")
    assert_is(tmp_path / "files", bilm)
    get("plain", "--output", tmp_path / "files", "--no-convert")
    assert "exists already" in refuse("tf", "--output", tmp_path / "files", "--no-convert")
    (tmp_path / "files" / "mine").touch()
    message = refuse("tf", "--output", tmp_path / "files", "--no-convert", "--force")
    assert "mine in it" in message and (tmp_path / "files" / "weights.hdf5").exists()


def test_weights_without_a_pipeline(get, bilm: BiLM, tmp_path: Path, web: Site):
    get("plain", "--no-convert")
    assert_is("plain", bilm)
    assert source_language("plain") == "de"
    [facts] = json.loads(succeed("info", "plain", "--json")).values()
    assert facts["format"] == "hdf5" and facts["language"] == "de"
    web.requests.clear()
    get("plain")
    assert find_download("plain") == home() / "pipelines" / "plain" and not web.requests


def test_urls(get, refuse, web: Site, bilm: BiLM):
    """The options are beside the weights, under one of two names."""
    get(f"{web.url}/tiny/weights.hdf5", "--name", "mine")
    assert_is("mine", bilm)
    web.add("/x/en%20small_options.json", web.pages["/tiny/options.json"])
    url = web.add("/x/en%20small_weights.hdf5", web.pages["/tiny/weights.hdf5"]) + "?raw=1"
    assert "cannot be the name" in refuse(url)
    assert "exists already" in refuse(url, "--name", "mine")
    get(url, "--name", "other")
    assert_is("other", bilm)


def test_a_checkpoint_keeps_its_output_layer(web: Site, tmp_path: Path, table: Path):
    architecture, weights, _ = random_model(bilm_tf, settings={"characters": True})
    bilm_tf.write(tmp_path / "run", architecture, weights)
    names = [path.name for path in (tmp_path / "run").iterdir() if path.suffix != ".meta"]
    files = {x: web.add(f"/run/{x}", (tmp_path / "run" / x).read_bytes()) for x in names}
    models = [{"name": "ckpt", "lang": "en", "files": files}]
    table.write_text(json.dumps({"collections": {}, "models": models}))
    succeed("download", "ckpt", "--table", table)
    (tmp_path / "text.txt").write_text("the bank")
    scores = json.loads(succeed("perplexity", "ckpt", "text.txt", "--json"))
    expected = bilm_tf.reference_perplexity(architecture, weights, TOKENS)
    assert scores["forward"] == pytest.approx(expected["forward"], rel=1e-5)
    succeed("convert", "ckpt", tmp_path / "out", "--half")  # From the files, not the pipeline.
    assert (tmp_path / "out.head").is_dir()
    sources = spacy.load(tmp_path / "out").meta["sources"]
    assert sorted(x["name"] for x in sources) == sorted(names)


def test_an_archive(web: Site, tmp_path: Path, get, cache: Path):
    architecture, weights, sentences = random_model(nlpl)
    nlpl.write(tmp_path / "143.zip", architecture, weights)
    url = web.add("/repository/143.zip", (tmp_path / "143.zip").read_bytes())
    get(url, "--name", "mine")
    [expected] = nlpl.reference(architecture, weights, sentences[:1])
    [layers] = current_session(load_bilm("mine")).embed(sentences[:1])
    assert max_difference(layers, expected) <= 1e-5
    assert spacy.load(cache / "pipelines" / "mine").meta["sources"][0]["url"] == url


def test_what_cannot_be_downloaded(refuse, get, web: Site):
    assert "language qqq" in refuse("plain", "--lang", "qqq")
    assert "Ask its authors" in refuse("nowhere")
    assert "--no-convert" in refuse("tf")
    for source in ("what", "", "hf:elmo", "hf:../x", "file:///a", "http://me:secret@host/a.zip"):
        assert "is not a model" in refuse(source)
    assert not web.requests
    get("tf", "--no-convert")
    assert "part of the package" in succeed("download", "en_elmo_sm")


# What goes wrong


def test_a_missing_file(refuse, web: Site, cache: Path):
    del web.pages["/tiny/weights.hdf5"]
    message = refuse("plain")
    for place in ("gone", "tiny"):
        assert f"{web.url}/{place}/weights.hdf5 (404 Not Found)" in message
    assert find_download("plain") is None
    web.add("/tiny/weights.hdf5", b"<html>", Content_Type="text/html; charset=utf8")
    assert "web page" in refuse("plain")


@pytest.mark.parametrize("changed", [False, True])
def test_an_interrupted_download_continues(changed: bool, get, refuse, web: Site, bilm: BiLM):
    """With the same version of the file only."""
    web.breaks[:] = [10**9, 20_000]
    data = web.pages["/tiny/weights.hdf5"]
    web.pages["/tiny/weights.hdf5"] = bytes(len(data)) if changed else data
    assert "same command continues" in refuse("plain")
    assert find_download("plain") is None
    if changed:
        web.add("/tiny/weights.hdf5", data, ETag='"2"')
    web.requests.clear()
    get("plain")
    assert_is("plain", bilm)
    path, asked = web.requests[-1]
    assert path == "/tiny/weights.hdf5" and "options.json" not in str(web.requests)
    assert asked["Range"] == "bytes=19999-"
    assert not list(home().rglob("*part*"))


def test_without_a_network(refuse, tmp_path: Path, monkeypatch, web: Site):
    """One attempt for each address, and a short message. Port 1 has no server."""
    message = refuse("http://127.0.0.1:1/w.zip")
    assert "no file from 127.0.0.1:1 (Connection refused)" in message
    assert "the same command continues" in message and len(message) < 200
    (tmp_path / "file").touch()
    monkeypatch.setenv("SPACY_ELMO_HOME", str(tmp_path / "file" / "cache"))
    assert str(tmp_path / "file" / "cache") in refuse("plain")
    assert not web.requests


@pytest.mark.parametrize("source", ["http://elmo.invalid/w.zip", "small", "hf:owner/tiny"])
def test_a_name_server_that_does_not_answer(source: str, cache: Path, monkeypatch):
    """The system waits for it up to minutes; the command does not."""
    if source.startswith("hf:"):
        pytest.importorskip("huggingface_hub")
    end = threading.Event()
    monkeypatch.setattr("socket.getaddrinfo", lambda *_: end.wait() and [])
    monkeypatch.setattr("spacy_elmo.download._TIMEOUT", (0.1, 1))
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    assert "(no answer)" in fail("download", source)
    end.set()


def test_nothing_else_uses_the_network():
    for file in PACKAGE.rglob("*.py"):
        modules = set()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf8"))):
            if isinstance(node, ast.ImportFrom) and not node.level:
                modules.add(node.module)
            elif isinstance(node, ast.Import):
                modules |= {alias.name for alias in node.names}
        found = {name.split(".")[0] for name in modules - {"urllib.parse"}} & NETWORK
        assert not found or file in (PACKAGE / "download.py", PACKAGE / "upload.py"), file


# Hugging Face


@pytest.fixture
def hub(web: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A hub with the repository owner/tiny."""
    use_hub(web, monkeypatch)
    files = {x: web.pages[f"/tiny/{x}"] for x in ("options.json", "weights.hdf5")}
    files |= {"README.md": b"read", "onnx/a.json": b""}
    publish(web, "owner/tiny", files, revisions=("main", "v1%2Fa"))
    return web


@pytest.mark.parametrize("source", ["hf:owner/tiny", "hf:owner/tiny@v1/a"])
def test_a_repository(source: str, hub: Site, get, bilm: BiLM, cache: Path):
    command = f"python -m spacy elmo download {source}"
    assert command in fail("info", source)
    get(source, "--lang", "en")
    for name in (source, source[3:].replace("/", "--")):
        assert_is(name, bilm)
    [folder] = (cache / "weights").iterdir()
    assert {x.name for x in folder.iterdir()} == {"options.json", "weights.hdf5", ".source.json"}


def test_a_repository_that_is_not_there(hub: Site, refuse, monkeypatch):
    assert "hf:owner/none@main" in refuse("hf:owner/none")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert 'pip install "spacy-elmo[hub]"' in refuse("hf:owner/tiny")


# The table


def test_the_table_says_what_it_must():
    models = read_table()
    assert len(models) > 90
    for name, model in models.items():
        assert model["family"] and model["collection"], name
        if model.get("lang"):
            get_lang_class(model["lang"])
        if not model.get("hub") and not model["files"]:
            assert model["notes"], name
        for urls in model["files"].values():
            secure = all(url.startswith("https://") for url in urls)
            assert secure or model["collection"] in ("nlpl", "manylangs", "deeppavlov"), name
    ids = [model["id"] for model in models.values() if "id" in model]
    assert len(ids) == len(set(ids)) and set(range(136, 180)) <= set(ids)
    assert set(bundled_names()) <= set(models)


def test_the_page_names_models_that_exist():
    """And all that are read, but not the copies on Hugging Face."""
    page = (Path(__file__).parents[2] / "docs" / "families.md").read_text(encoding="utf8")
    models = read_table()
    cells = page.split("## Which")[1].split("### What")[0]
    names = {name for name in re.findall(r"`([\w.-]+)`", cells) if "LANG" not in name}
    families = tuple(re.findall(r"`(\w+-)LANG`", page))
    named = {name for name in models if name.startswith(families)} | names
    others = {x for x, model in models.items() if "hub" in model or "readable" in model}
    assert named == set(models) - others


def test_models_are_listed(get, table: Path, cache: Path):
    output = succeed("models")
    assert "small" in output and "manylangs-de" in output and "bundled" in output
    assert max(map(len, output.splitlines())) <= 80
    assert "german" in succeed("models", "--lang", "de")
    for options, is_there in (((), False), (("--all",), True)):
        output = succeed("models", "--lang", "en", *options)
        assert is_there == ("tiny-test-hub" in output) == ("tfhub-elmo" in output)
    assert "2x1024/128" in succeed("models", "small")
    assert "small" not in succeed("models", "--lang", "qqq")
    assert "is not a model" in fail("models", "what")
    facts = json.loads(succeed("models", "142", "--json"))
    assert [x["name"] for x in facts] == ["manylangs-de"]
    get("plain")
    facts = {x["name"]: x for x in json.loads(succeed("models", "--table", table, "--json", "-a"))}
    assert facts["plain"]["state"] == str(cache / "pipelines" / "plain")
    assert facts["nowhere"]["state"] == "no address" and facts["tf"]["state"] == "unreadable"
    listed = succeed("models", "--table", table)
    assert "here" in listed and str(cache) not in listed


@pytest.mark.parametrize("text", ["", '{"models": [{"name": "../x"}], "collections": {}}'])
def test_a_table_that_is_none(text: str, tmp_path: Path):
    (tmp_path / "table.json").write_text(text)
    assert "is not a table of models" in fail("models", "--table", tmp_path / "table.json")


def test_the_folder(monkeypatch: pytest.MonkeyPatch):
    for name in ("SPACY_ELMO_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert home() == Path("~/.cache/spacy-elmo").expanduser()
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert home() == Path("/b/spacy-elmo")
    monkeypatch.setenv("SPACY_ELMO_HOME", "/a")
    assert home() == Path("/a")
