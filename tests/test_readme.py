"""Every block of the README and of the pages in docs runs as it is."""

from __future__ import annotations

import glob
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import spacy
from spacy.tokens import DocBin
from spacy.util import load_config_from_str, registry

import spacy_elmo

from .conftest import add_tagger, run_spacy, tagged

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [
    block
    for page in PAGES
    for block in re.findall(
        r"(?:<!-- ([\w ]+) -->\n)?```(\w+)\n(.*?)```", page.read_text(encoding="utf8"), re.DOTALL
    )
]


def blocks(language: str, mark: str = "") -> list[str]:
    return [code for marked, name, code in BLOCKS if name == language and marked == mark]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the commands run."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("code", blocks("python"))
def test_python_block_runs(code: str, folder: Path):
    exec(compile(code, "documentation", "exec"), {})


def run_bash(code: str) -> str:
    """What a block prints; it must succeed. The commands are those of this environment."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", code],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_in_process(code: str) -> str:
    """What lines of `[echo "TEXT" |] python -m spacy ...` print; they must succeed."""
    output = ""
    for line in code.splitlines():
        echo, _, command = line.rpartition(" | ")
        words = [sorted(glob.glob(word)) or [word] for word in shlex.split(command)]
        python, option, module, *arguments = itertools.chain(*words)
        assert (python, option, module) == ("python", "-m", "spacy")
        result = run_spacy(*arguments, stdin="\n".join(shlex.split(echo)[1:]))
        assert result.exit_code == 0, result.output
        output += result.output
    return output


# Every command of bash starts spaCy anew, which takes seconds.
both_ways = pytest.mark.parametrize(
    "run", [run_in_process, pytest.param(run_bash, marks=pytest.mark.slow)]
)


@both_ways
def test_command_line_blocks_run(folder: Path, run: Callable[[str], str]):
    (code,) = [code for code in blocks("bash") if "spacy elmo" in code]
    run(code)
    for name in ("en_small/config.cfg", "exported/weights.safetensors", "vectors.hdf5"):
        assert (folder / name).exists()


def test_a_package_names_what_it_requires(folder: Path):
    (code,) = blocks("bash", "packages")
    run_in_process(code)
    meta = json.loads((folder / "en_mine-1.0.0" / "meta.json").read_text(encoding="utf8"))
    assert any(
        x.startswith(f"spacy-elmo>={spacy_elmo.__version__},<") for x in meta["requirements"]
    )


@pytest.mark.slow
def test_words_are_scored(folder: Path):
    (code,) = blocks("bash", "scores")
    run_bash(code)
    assert '"tokens"' in (folder / "river.jsonl").read_text(encoding="utf8")


def test_documented_config_is_the_default(folder: Path):
    (text,) = blocks("ini")
    nlp = spacy.blank("en")
    nlp.add_pipe("elmo")
    assert load_config_from_str(f"[components]\n\n{text}")["components"] == nlp.config["components"]


@pytest.mark.parametrize("text", blocks("ini", "fragment"))
def test_config_fragment_resolves(text: str):
    def resolve(block: dict) -> bool:
        if any(key.startswith("@") for key in block):
            registry.resolve({"block": block})
            return True
        return any(resolve(value) for value in block.values() if isinstance(value, dict))

    # What stands above the fragment's sections in a whole config.
    path = re.findall(r"^\[(.*)\]", text)[0].split(".")
    above = [f"[{'.'.join(path[:depth])}]\n" for depth in range(1, len(path))]
    assert resolve(load_config_from_str("".join(above) + text))


@both_ways
def test_training_command_runs(folder: Path, run: Callable[[str], str]):
    (code,) = blocks("bash", "needs data")
    nlp = spacy.blank("en")
    docs = [example.reference for example in tagged(nlp)]
    for name in ("train", "dev"):
        DocBin(docs=docs).to_disk(folder / f"{name}.spacy")
    output = run(f"{code.strip()} --training.max_steps 2")
    assert "tagger/input: scalar_mix" in output
    assert spacy.load(folder / "tagger" / "model-last")("The bank")[0].tag_


def test_a_table_beside_elmo(folder: Path):
    (code,) = blocks("bash", "with a table")
    (folder / "vectors.txt").write_text("Anna 1 0\nRome 0 1\n")
    doc = spacy.blank("en")("Anna lives in Rome")
    doc.ents = [doc.char_span(0, 4, "PER"), doc.char_span(14, 18, "LOC")]
    for name in ("train", "dev"):
        DocBin(docs=[doc]).to_disk(folder / f"{name}.spacy")
    run_in_process(f"{code.strip()} --training.max_steps 2")
    assert spacy.load(folder / "ner" / "model-last").vocab["Rome"].vector.tolist() == [0, 1]


def test_conversion_to_training_data_runs(folder: Path):
    (code,) = blocks("bash", "converts")
    columns = [f"{i}\t{word}\t_\tX\tX\t_\t{i - 1}\t_\t_\t_" for i, word in enumerate("ab", 1)]
    (folder / "trees.conllu").write_text("\n".join(columns) + "\n\n")
    (folder / "entities.iob").write_text("Anna|B-PER lives|O in|O Rome|B-LOC\n")
    run_bash(code)
    vocab = spacy.blank("en").vocab
    (tree,) = DocBin().from_disk(folder / "corpus" / "trees.spacy").get_docs(vocab)
    text, *_ = DocBin().from_disk(folder / "corpus" / "entities.spacy").get_docs(vocab)
    assert [token.tag_ for token in tree] == ["X", "X"]
    assert [entity.text for entity in text.ents] == ["Anna", "Rome"]


@both_ways
def test_pretraining_commands_run(folder: Path, run: Callable[[str], str]):
    (code,) = blocks("bash", "needs text")
    lines = [f"The bank number {i} flows. Money flows to the river {i}." for i in range(400)]
    for name in ("texts", "held_out"):
        (folder / name).mkdir()
        (folder / name / "a.txt").write_text("\n".join(lines), encoding="utf8")
    code = code.replace("--paths.corpus corpus", "--paths.corpus corpus --pretraining.max_steps 2")
    output = run(code)
    assert "unknown words" in output
    assert spacy.load(folder / "run" / "model-best")("The bank")._.elmo is not None


@both_ways
def test_pages_to_look_at_are_written(folder: Path, run: Callable[[str], str]):
    (code,) = blocks("bash", "looks")
    (folder / "texts.txt").write_text("The bank lends money.", encoding="utf8")
    (folder / "texts.csv").write_text("text,sense\nA river bank,river\n", encoding="utf8")
    nlp = spacy.blank("en")
    nlp.add_pipe("elmo")
    add_tagger(nlp)
    nlp.to_disk(folder / "trained")
    run(code)
    assert len([*folder.glob("*.html")]) == len(code.splitlines())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path):
    for link in re.findall(r"\]\((?!https?://)([^)#]*)[^)]*\)", page.read_text(encoding="utf8")):
        assert (page.parent / link).exists(), link


def test_search_commands_run(folder: Path):
    (code,) = blocks("bash", "searches sentences")
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "texts").mkdir()
    lines = "A flood came from the river.\nShe reads novels.\n"
    (folder / "texts" / "a.txt").write_text(lines, encoding="utf8")
    assert "A flood came" in run_bash(code).splitlines()[-2]


def test_neighbors_command_runs(folder: Path):
    (code,) = blocks("bash", "searches text")
    (folder / "texts").mkdir()
    (folder / "texts" / "a.txt").write_text("They left early.", encoding="utf8")
    assert run_bash(code).count("They [left] early.") == 2
