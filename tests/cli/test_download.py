"""`spacy elmo download` and `spacy elmo models`, with a server on this machine."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import sys
import zipfile
from functools import partial
from pathlib import Path

import numpy
import pytest
import spacy
from spacy.util import get_lang_class

from spacy_elmo import Embedder
from spacy_elmo.bilm import BiLM
from spacy_elmo.cli import download
from spacy_elmo.files import exclusive_lock
from spacy_elmo.models import TABLE, find_download, home, read_table
from spacy_elmo.tools.download import Downloader
from spacy_elmo.weights import bundled_names, load_bilm, source_language

from ..conftest import elmo_pipeline, max_difference
from ..families import allennlp_archive, bilm_tf, nlpl
from ..kills import kill_repeatedly
from ..site import Site, site
from .conftest import fail, run, succeed

TOKENS = [["the", "bank"]]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of downloads. Attempts follow each other at once."""
    monkeypatch.setenv("SPACY_ELMO_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(download, "Downloader", partial(Downloader, pause=0.001))
    return tmp_path / "cache"


@pytest.fixture
def web(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A site, with the tiny biLM in the published format at /tiny."""
    monkeypatch.chdir(tmp_path)
    with site() as running:
        yield running


@pytest.fixture
def files(web: Site, hdf5_folder: Path) -> dict[str, bytes]:
    """The files of the tiny biLM by name, which the site has below /tiny."""
    files = {path.name: path.read_bytes() for path in sorted(hdf5_folder.iterdir())}
    for name, data in files.items():
        web.add(f"/tiny/{name}", data)
    return files


def digests(data: bytes) -> dict[str, str]:
    return {"md5": hashlib.md5(data).hexdigest(), "sha1": hashlib.sha1(data).hexdigest()}


@pytest.fixture
def table(web: Site, files: dict[str, bytes], tmp_path: Path) -> Path:
    """A table with the tiny biLM, without and with checksums."""
    known = {name: {"path": name, **digests(data)} for name, data in files.items()}
    collection = {"base": [f"{web.url}/gone/", f"{web.url}/tiny/"], "lang": "de"}
    models = [
        {"name": "plain", "collection": "c", "files": {name: name for name in files}},
        {"name": "known", "collection": "c", "licence": "CC0", "id": 7, "files": known},
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
    assert max_difference(load_bilm(source).embed(TOKENS)[0], bilm.embed(TOKENS)[0]) <= 1e-6


# Downloads


@pytest.mark.parametrize("name", ["plain", "known"])
def test_a_name_becomes_a_pipeline(name: str, get, cache: Path, bilm: BiLM, web: Site):
    get(name)
    assert_is(name, bilm)
    assert_is(Embedder(name).bilm.embed and name, bilm)
    nlp = spacy.load(cache / "pipelines" / name)
    assert (nlp.lang, nlp.pipe_names) == ("de", ["sentencizer", "elmo"])
    assert nlp.meta["license"] == ("CC0" if name == "known" else "")
    sources = {x["name"]: x for x in nlp.meta["sources"]}
    weights = cache / "weights" / name / "weights.hdf5"
    assert sources["weights.hdf5"]["sha256"] == hashlib.sha256(weights.read_bytes()).hexdigest()
    assert sources["weights.hdf5"]["url"] == f"{web.url}/tiny/weights.hdf5"
    assert elmo_pipeline(name, lang="de")("the bank")._.elmo.shape == (12,)
    web.requests.clear()
    assert "there already" in get(name)
    assert not web.requests


def test_a_number(get, bilm: BiLM):
    get("7")
    assert_is("known", bilm)


def test_another_name_and_language(get, refuse, cache: Path, bilm: BiLM):
    get("plain", "--name", "mine", "--lang", "en", "--no-sentencizer", "--half")
    nlp = spacy.load(cache / "pipelines" / "mine")
    assert (nlp.lang, nlp.pipe_names) == ("en", ["elmo"])
    for name in ("known", "en_elmo_sm", "../x", "", ".x", "a/b", "a b"):
        refuse("plain", "--name", name) if name else None
    assert "is the name of another model" in refuse("plain", "--name", "known")
    assert "python -m spacy elmo download small" in fail("convert", "small", "out")
    assert not find_download("known") and sorted(x.name for x in cache.iterdir()) == [
        "checksums",
        "pipelines",
        "weights",
    ]


def test_an_output(get, refuse, tmp_path: Path, bilm: BiLM, cache: Path):
    get("plain", "--output", tmp_path / "out")
    assert_is(tmp_path / "out", bilm)
    assert "--force" in refuse("plain", "--output", tmp_path / "out")
    get("plain", "--output", tmp_path / "out", "--force")
    assert not (cache / "pipelines").exists()
    get("plain", "--output", tmp_path / "files", "--no-convert")
    assert_is(tmp_path / "files", bilm)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "options.json").write_text("mine")
    for more in ([], ["--force"]):
        message = refuse("plain", "--output", tmp_path / "mine", "--no-convert", *more)
        assert "not written by this command" in message
    assert [x.read_text() for x in (tmp_path / "mine").iterdir()] == ["mine"]


def test_hidden_files_are_kept(get, refuse, web: Site, files, tmp_path: Path):
    """A new repository, say: it has no other files yet."""
    folder, hidden = tmp_path / "repository", tmp_path / "repository" / ".git"
    hidden.mkdir(parents=True)
    (hidden / "HEAD").write_text("mine")
    options = ("--output", folder, "--no-convert")
    for more in ([], ["--force"]):
        message = refuse("plain", *options, *more)
        assert "not written by this command (it has .git)" in message
    hidden.rename(tmp_path / "away")
    get("plain", *options)
    (tmp_path / "away").rename(hidden)
    get("plain", *options)
    assert "(.git)" in refuse(f"{web.url}/tiny/weights.hdf5", *options, "--force")
    assert (hidden / "HEAD").read_text() == "mine"


def test_weights_without_a_pipeline(get, bilm: BiLM, tmp_path: Path):
    get("plain", "--no-convert")
    assert_is("plain", bilm)
    assert source_language("plain") == "de"
    (tmp_path / "text.txt").write_text("the bank")
    succeed("embed", "text.txt", "out.npz", "--model", "plain")
    [facts] = json.loads(succeed("info", "plain", "--json")).values()
    assert facts["format"] == "hdf5" and facts["language"] == "de"


def test_urls(get, refuse, web: Site, files, hdf5_folder: Path, bilm: BiLM):
    """The options are beside the weights, under one of two names."""
    get(f"{web.url}/tiny/weights.hdf5", "--name", "mine", "--lang", "en")
    assert_is("mine", bilm)
    web.add("/x/en%20small_options.json", files["options.json"])
    url = web.add("/x/en%20small_weights.hdf5?raw=1", files["weights.hdf5"])
    web.pages["/x/en%20small_options.json?raw=1"] = web.pages["/x/en%20small_options.json"]
    assert "cannot be the name" in refuse(url)
    get(url, "--name", "other")
    assert_is("other", bilm)
    message = refuse(f"{web.url}/tiny/weights.hdf5", "--name", "other")
    assert "holds another model" in message
    native = web.add(
        "/weights.safetensors",
        (TABLE.parent / "weights" / "en_elmo_sm" / "weights.safetensors").read_bytes(),
    )
    get(native, "--name", "native")
    assert load_bilm("native").config.lstm.projection_dim == 256


def test_a_password_is_not_passed_on(get, web: Site, files, cache: Path):
    get(f"{web.url.replace('//', '//me:secret@')}/tiny/weights.hdf5", "--name", "mine")
    assert "Authorization" in web.requests[-1][1]
    meta = (cache / "pipelines" / "mine" / "meta.json").read_text()
    assert "secret" not in meta and f"{web.url}/tiny/weights.hdf5" in meta
    assert not any("secret" in x.read_text() for x in (cache / "checksums").iterdir())


def test_a_number_that_is_not_in_the_table():
    [facts] = json.loads(succeed("models", "nlpl-250", "--json"))
    assert facts["files"] == {"250.zip": "http://vectors.nlpl.eu/repository/20/250.zip"}


def test_two_urls_of_one_name(get, refuse, web: Site, bilm: BiLM, files):
    for place in ("a", "b"):
        for name, data in files.items():
            web.add(f"/{place}/{name}", data)
    get(f"{web.url}/a/weights.hdf5", "--name", "mine", "--no-convert")
    message = refuse(f"{web.url}/b/weights.hdf5", "--name", "mine")
    assert "another model" in message and f"{web.url}/a/weights.hdf5" in message
    mine = home() / "weights" / "mine" / "mine.txt"
    mine.write_text("mine")
    assert "(mine.txt)" in refuse(f"{web.url}/b/weights.hdf5", "--name", "mine", "--force")
    assert_is("mine", bilm)
    mine.unlink()
    get(f"{web.url}/b/weights.hdf5", "--name", "mine", "--force")
    assert_is("mine", bilm)


def test_a_checkpoint_keeps_its_output_layer(web: Site, tmp_path: Path, table: Path):
    rng = numpy.random.default_rng(0)
    architecture = bilm_tf.random_architecture(rng, characters=True)
    weights = bilm_tf.random_weights(architecture, rng)
    bilm_tf.write(tmp_path / "run", architecture, weights)
    names = [path.name for path in (tmp_path / "run").iterdir() if path.suffix != ".meta"]
    files = {
        name: web.add(f"/run/{name}", (tmp_path / "run" / name).read_bytes()) for name in names
    }
    models = [{"name": "ckpt", "lang": "en", "files": files}]
    table.write_text(json.dumps({"collections": {}, "models": models}))
    succeed("download", "ckpt", "--table", table)
    (tmp_path / "text.txt").write_text("the bank")
    scores = json.loads(succeed("perplexity", "ckpt", "text.txt", "--json"))
    expected = bilm_tf.reference_perplexity(architecture, weights, TOKENS)
    assert scores["forward"] == pytest.approx(expected["forward"], rel=1e-5)
    succeed("convert", "ckpt", tmp_path / "out", "--half")  # Of the files, not of the pipeline.
    assert (tmp_path / "out.head").is_dir()
    sources = spacy.load(tmp_path / "out").meta["sources"]
    assert sorted(x["name"] for x in sources) == sorted(names)
    (tmp_path / "ckpt").mkdir()  # A path is a path.
    assert "must hold one file" in fail("convert", "./ckpt", tmp_path / "out", "--force")


@pytest.mark.parametrize(
    "family, seed, name",
    [*((nlpl, seed, "143.zip") for seed in range(4)), (allennlp_archive, 0, "model.tar.gz")],
)
@pytest.mark.filterwarnings("ignore")
def test_an_archive(family, seed: int, name: str, web: Site, tmp_path: Path, get, cache: Path):
    rng = numpy.random.default_rng(seed)
    architecture = family.random_architecture(rng)
    weights = family.random_weights(architecture, rng)
    family.write(tmp_path / name, architecture, weights)
    url = web.add(f"/repository/{name}", (tmp_path / name).read_bytes())
    get(url, "--name", "mine")
    sentences = family.random_sentences(architecture, rng)
    [expected, *_] = family.reference(architecture, weights, sentences)
    assert max_difference(load_bilm("mine").embed(sentences[:1])[0], expected) <= 1e-5
    nlp = spacy.load(cache / "pipelines" / "mine")
    assert nlp.meta["sources"][0]["url"] == url
    assert nlp.lang == (source_language(tmp_path / name) or "xx")


def test_a_file_that_is_no_biLM_stays_and_is_named(refuse, get, web: Site, cache: Path):
    """A reader may be there in the next version."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("readme.txt", "nothing")
    url = web.add("/a/words.zip", archive.getvalue())
    assert "words.zip" in refuse(url)
    assert (cache / "weights" / "words" / "words.zip").is_file()
    assert not list((cache / "pipelines").iterdir())


def test_a_language_that_spacy_does_not_have(refuse, web: Site):
    assert "no language 'qqq'" in refuse("plain", "--lang", "qqq")
    assert not web.requests  # Before the download.


def test_what_cannot_be_downloaded(refuse, get, web: Site):
    assert "Ask its authors" in refuse("nowhere")
    assert "--no-convert" in refuse("tf")
    assert "Ask its authors" in refuse("nowhere", "--no-convert")
    for source in ("what", "", "lysandre/elmo", "hf:elmo", "hf:../x", "hf:a/b/c", "file:///a"):
        assert "is not a model" in refuse(source)
    assert not web.requests
    get("tf", "--no-convert")


def test_without_a_network(cache: Path, tmp_path: Path):
    """One attempt for each address, and one message. Port 1 has no server."""
    base = ["http://127.0.0.1:1/", "http://localhost:1/"]
    models = [{"name": "m", "collection": "c", "files": {"options.json": "o", "weights.hdf5": "w"}}]
    table = tmp_path / "table.json"
    table.write_text(json.dumps({"collections": {"c": {"base": base}}, "models": models}))
    result = run("download", "m", "--table", table)
    assert result.exit_code == 1
    output = " ".join(result.output.split())
    hosts = "127.0.0.1:1 or localhost:1"
    message = f"cannot download m: no connection to {hosts}: is this machine online?"
    assert message in output and len(result.output.strip().splitlines()) <= 3


def test_a_cache_that_cannot_be_written(refuse, tmp_path: Path, monkeypatch, web: Site):
    (tmp_path / "file").touch()
    monkeypatch.setenv("SPACY_ELMO_HOME", str(tmp_path / "file" / "cache"))
    message = refuse("plain")
    assert "cannot write the folder of downloads" in message and "SPACY_ELMO_HOME" in message
    assert str(tmp_path / "file" / "cache") in message
    assert not web.requests


def test_what_comes_with_the_package():
    assert "part of the package" in succeed("download", "en_elmo_sm")


# Integrity


@pytest.mark.parametrize("name", ["plain", "known"])
def test_an_interrupted_download_continues(name: str, get, refuse, web: Site, bilm, files):
    web.pages["/tiny/weights.hdf5"].breaks[:] = [20_000, *[0] * 6]
    assert "same command continues" in refuse(name)
    assert find_download(name) is None
    web.requests.clear()
    get(name)
    assert_is(name, bilm)
    assert any(web.ranges())
    assert not any(path == "/tiny/options.json" for path, _ in web.requests)


def test_a_wrong_checksum_leaves_nothing(refuse, web: Site, cache: Path):
    for page in ("options.json", "weights.hdf5"):
        web.add(f"/tiny/{page}", b'{"wrong": 1}')
    message = refuse("known")
    assert "checksum" in message and "known" in message
    assert not [x for x in cache.rglob("*") if x.is_file()]
    assert not list((cache / "weights").iterdir())


def test_later_downloads_are_compared_with_the_first(get, refuse, web: Site, cache, bilm, files):
    get("plain")
    assert len(list((cache / "checksums").iterdir())) == 2
    shutil.rmtree(cache / "weights")
    shutil.rmtree(cache / "pipelines")
    changed = files["weights.hdf5"][:-1] + b"?"
    web.add("/tiny/weights.hdf5", changed, etag='"2"')
    message = refuse("plain")
    assert "checksum" in message and "if it has changed" in message.lower()
    assert not (cache / "weights" / "plain" / "weights.hdf5").exists()
    [record] = [x for x in (cache / "checksums").iterdir() if x.name in message]
    assert json.loads(record.read_text())["size"] == len(changed)
    record.unlink()
    get("plain")
    assert (cache / "weights" / "plain" / "weights.hdf5").read_bytes() == changed


def test_a_damaged_file_is_downloaded_again(get, web: Site, cache: Path, bilm: BiLM):
    get("plain", "--no-convert")
    path = cache / "weights" / "plain" / "weights.hdf5"
    path.write_bytes(path.read_bytes()[::-1])
    web.requests.clear()
    get("plain")
    assert_is("plain", bilm)
    assert {path for path, _ in web.requests} == {"/gone/weights.hdf5", "/tiny/weights.hdf5"}


def test_what_a_kill_leaves_before_the_first_file(get, cache: Path, bilm: BiLM):
    folder = cache / "weights" / "plain"
    folder.mkdir(parents=True)
    (folder / "..source.json.0123456789ab.tmp").write_text("{")
    get("plain")
    assert_is("plain", bilm)
    assert len(list(folder.iterdir())) == 3


def test_force_downloads_again(get, web: Site, bilm: BiLM):
    get("known")
    web.requests.clear()
    get("known", "--force")
    assert len(web.requests) == 4
    assert_is("known", bilm)


def test_a_second_process_is_refused(get, refuse, cache: Path, bilm: BiLM):
    (cache / "weights").mkdir(parents=True)
    with exclusive_lock(cache / "weights" / ".plain.lock", ""):
        assert "another process is downloading" in refuse("plain")
    get("plain")
    assert_is("plain", bilm)


def test_kills(table: Path, web: Site, cache: Path, bilm: BiLM, files):
    """Whatever is killed whenever, the same command continues, and nothing is used half."""
    data = files["weights.hdf5"] + bytes(3_000_000)
    web.add("/tiny/weights.hdf5", data, pause=0.01)
    command = [sys.executable, "-m", "spacy", "elmo", "download", "plain", "--table", table]

    def size() -> int:
        n_bytes = 0
        for folder, _, names in os.walk(cache):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    n_bytes += os.path.getsize(os.path.join(folder, name))
        return n_bytes

    def look() -> None:
        weights = cache / "weights" / "plain" / "weights.hdf5"
        assert not weights.exists() or weights.read_bytes() == data

    kill_repeatedly(
        command,
        times=3,
        seed=0,
        progress=size,
        spread=800_000,
        delay=0.05,
        after_kill=look,
        env={"SPACY_ELMO_HOME": str(cache)},
    )
    look()
    assert_is("plain", bilm)
    assert not [x for x in cache.rglob(".*") if "part" in x.name or "tmp" in x.name]


# Hugging Face


@pytest.fixture
def hub(web: Site, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Site:
    """A hub with the repository owner/tiny."""
    monkeypatch.setenv("HF_ENDPOINT", web.url)
    entries: list[dict] = [{"type": "directory", "oid": "1", "size": 0, "path": "onnx"}]
    for name, data in {**files, "README.md": b"read", "pytorch_model.bin": b"\x80"}.items():
        oid = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        entries.append({"type": "file", "oid": oid, "size": len(data), "path": name})
        if name == "weights.hdf5":
            lfs = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
            entries[-1].update(lfs=lfs, oid="0" * 40)
        for revision in ("main", "v1%2Fa"):
            web.add(f"/cdn/{name}", data)
            web.add(f"/owner/tiny/resolve/{revision}/{name}", redirect=f"/cdn/{name}")
    for revision in ("main", "v1%2Fa"):
        web.add(f"/api/models/owner/tiny/tree/{revision}", json.dumps(entries).encode())
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
    assert not (cache / "checksums").exists()


@pytest.mark.parametrize("name", ["options.json", "weights.hdf5"])
def test_a_file_that_is_not_what_the_hub_says(name: str, hub: Site, refuse, cache: Path):
    data = hub.pages[f"/cdn/{name}"].data
    hub.add(f"/cdn/{name}", data[:-1] + b"?")
    assert "checksum" in refuse("hf:owner/tiny")
    hub.add(f"/cdn/{name}", data + b"?")
    assert "expected" in refuse("hf:owner/tiny")
    assert not (cache / "weights" / "owner--tiny" / name).exists()


@pytest.mark.parametrize(
    "listing",
    [
        b"{}",
        b"[1]",
        b'[{"type": "file"}]',
        b"null",
        b"<html>",
        b"[]",
        b'{"error": "no"}',
        b'[{"type": "file", "path": "a.txt", "oid": "1", "size": 1}]',
        b'[{"type": "file", "path": "../a.zip", "oid": "1", "size": 1}]',
        b'[{"type": "file", "path": "a.zip", "oid": "1", "size": "x"}]',
    ],
)
def test_a_strange_repository(listing: bytes, hub: Site, refuse, cache: Path):
    hub.add("/api/models/owner/tiny/tree/main", listing)
    refuse("hf:owner/tiny")
    assert not [x for x in cache.rglob("*") if x.is_file()]
    assert "404" in refuse("hf:owner/none")


# The table


def test_the_table_says_what_it_must():
    models = read_table()
    assert len(models) > 90
    for name, model in models.items():
        assert model.family and model.collection, name
        if model.lang:
            get_lang_class(model.lang)
        if model.hub is None and not model.files:
            assert model.notes, name
        for file in model.files.values():
            secure = all(url.startswith("https://") for url in file.urls)
            assert secure or model.collection in ("nlpl", "manylangs", "deeppavlov"), name
    ids = [model.id for model in models.values() if model.id is not None]
    assert len(ids) == len(set(ids)) and set(range(136, 180)) <= set(ids)
    assert set(bundled_names()) <= set(models)
    assert models["german"].files["weights.hdf5"].digests["md5"].startswith("f3ab3a68")


def test_the_page_names_models_that_exist():
    """And all that are read, but not the copies on Hugging Face."""
    page = (TABLE.parents[1] / "docs" / "families.md").read_text(encoding="utf8")
    models = read_table()
    cells = page.split("## Which")[1].split("### What")[0]
    names = {name for name in re.findall(r"`([\w.-]+)`", cells) if "LANG" not in name}
    families = tuple(re.findall(r"`(\w+-)LANG`", page))
    named = {name for name in models if name.startswith(families)} | names
    others = {x.name for x in models.values() if x.hub is not None or not x.readable}
    assert named == set(models) - others


def test_models_are_listed(get, cache: Path):
    output = succeed("models")
    assert "small" in output and "manylangs-de" in output and "in the package" in output
    assert "german" in succeed("models", "--lang", "de")
    for options, is_there in (((), False), (("--all",), True)):
        output = succeed("models", "--lang", "en", *options)
        assert is_there == ("tiny-test-hub" in output) == ("tfhub-elmo" in output)
    assert "54,373" not in output and "2x1024/128" in succeed("models", "small")
    assert "no model of 'qqq'" in fail("models", "--lang", "qqq")
    assert "is not a model" in fail("models", "what")
    facts = json.loads(succeed("models", "142", "--json"))
    assert [x["name"] for x in facts] == ["manylangs-de"]


def test_models_says_what_is_here(get, table: Path, cache: Path):
    get("plain")
    facts = {x["name"]: x for x in json.loads(succeed("models", "--table", table, "--json", "-a"))}
    assert facts["plain"]["state"] == str(cache / "pipelines" / "plain")
    assert facts["nowhere"]["state"] == "no address" and facts["tf"]["state"] == "not readable"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"models": [{}]}',
        '{"models": [{"name": "../x"}], "collections": {}}',
        '{"models": [{"name": "x", "what": 1}], "collections": {}}',
        '{"models": [{"name": "x", "files": {"../y": "a"}}], "collections": {}}',
        '{"models": [{"name": "x", "files": {"y": {"path": "a", "crc": ""}}}], "collections": {}}',
    ],
)
def test_a_table_that_is_none(text: str, tmp_path: Path):
    path = tmp_path / "table.json"
    path.write_text(text)
    assert "is not a table of models" in fail("models", "--table", path)
    assert "is not a table of models" in fail("download", "x", "--table", tmp_path / "none")


@pytest.mark.parametrize(
    "variables, expected",
    [
        ({"SPACY_ELMO_HOME": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/spacy-elmo"),
        ({}, "~/.cache/spacy-elmo"),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other folders")
def test_the_folder(variables: dict, expected: str, monkeypatch: pytest.MonkeyPatch):
    for name in ("SPACY_ELMO_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert home() == Path(expected).expanduser()
