"""Train and test one system on one task: for each size of training data, for each seed.

    python scripts/experiment.py ewt-tagger --config configs/tagger.cfg --corpus corpus/ud \\
        --system elmo --weights en_elmo_sm --sizes full p10 --seeds 0 1 2 --training.max_steps 1000

Every run is a `spacy train`, which stops early by dev.spacy, and one `spacy evaluate` on
test.spacy. It writes METRICS/<task>/<system>/<size>/seed-<seed>.json when it is complete, and is
skipped if that file is there and was made from the same config, data and weights. A size is `full`,
a number of docs per class (`10`), or a percentage of the docs (`p10`).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy
import spacy
import srsly
from baseline import without_elmo
from click import ClickException
from fingerprints import digest, hash_weights, is_done
from spacy.cli._util import parse_config_overrides
from spacy.tokens import Doc, DocBin
from spacy.util import load_config
from spacy.vocab import Vocab
from thinc.api import Config
from wasabi import msg

import spacy_elmo
from spacy_elmo.cli.util import exit_on_error
from spacy_elmo.files import atomic_file, atomic_folder, exclusive_lock, sha256
from spacy_elmo.mix_logger import find_mixes

BASELINE = "baseline"
MIXES: dict[str, dict[str, Any]] = {
    # To compare: no dropout in any of them, and (for a biLM of 128 per direction) of one width.
    "scalar": {"@layers": "spacy-elmo.ScalarMix.v1", "l2": 0.001},
    # Of random weights, which are the seed's.
    "frozen": {"@layers": "spacy-elmo.FrozenMix.v1", "seed": "${system.seed}"},
    "learned": {"@layers": "spacy-elmo.LearnedMix.v1", "width": 256},
}


def main() -> None:
    args, rest = parse_arguments()
    with exit_on_error():
        try:
            overrides = parse_config_overrides(rest)
        except ClickException as error:
            raise ValueError(error.format_message()) from error
        experiment = Experiment(args, overrides)
        try:
            with experiment.lock():
                for size in args.sizes:
                    for seed in args.seeds:
                        experiment.run(size, seed)
        except KeyboardInterrupt:
            msg.fail("Stopped: the same command continues with the missing runs", exits=130)


def parse_arguments() -> tuple[argparse.Namespace, list[str]]:
    """RETURNS (tuple): The arguments, and those that override settings of the config."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog="Settings of the config can be overridden: --training.max_steps 1000",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("task", help="name of the task, for the results")
    add("--config", type=Path, required=True, help="config of a pipeline with ELMo")
    add("--corpus", type=Path, required=True, help="the folder of {train,dev,test}.spacy")
    add("--components", nargs="+", help="train only these components of the config")
    add("--system", default="elmo", help=f"name of the system; {BASELINE} has no ELMo")
    add("--weights", help="a name that comes with spacy-elmo, or a path")
    add("--mix", choices=MIXES, help="replaces the mixes of the config")
    add("--sizes", nargs="+", type=Size, default=[Size("full")], help="sizes of the training data")
    add("--seeds", nargs="+", type=int, default=[0])
    add("--gold-preproc", action="store_true", help="use the corpus's own sentences and tokens")
    add("--gpu-id", type=int, default=-1)
    add("--metrics", type=Path, default=Path("metrics"), help="folder of the results")
    add(
        "--models", type=Path, default=Path("training"), help="folder of the pipelines of size full"
    )
    return parser.parse_known_args()


class Size:
    """How much of the training data: "full", "100" (docs per class) or "p10" (per cent)."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.per_class = int(name) if name.isdigit() else None
        self.percent = int(name[1:]) if name[:1] == "p" and name[1:].isdigit() else None
        is_valid = name == "full" or self.per_class or 0 < (self.percent or 0) <= 100
        if not is_valid:
            raise ValueError(name)

    def take(self, docs: list[Doc], seed: int) -> list[Doc]:
        """RETURNS (list): A part of the docs, drawn by the seed: of two sizes, the smaller one is
        part of the larger.
        RAISES (ValueError): If a class has too few docs."""
        order = numpy.random.default_rng(seed).permutation(len(docs))
        if self.percent is not None:
            return [docs[i] for i in order[: max(1, round(len(docs) * self.percent / 100))]]
        if self.per_class is None:
            return docs
        by_class: dict[str, list[Doc]] = {label: [] for doc in docs for label in doc.cats}
        for i in order:
            for label, value in docs[i].cats.items():
                if value >= 0.5 and len(by_class[label]) < self.per_class:
                    by_class[label].append(docs[i])
        if not by_class:
            raise ValueError(f"size {self.name}: the training docs have no classes: use p{self}")
        for label, chosen in by_class.items():
            if len(chosen) < self.per_class:
                raise ValueError(
                    f"size {self.name}: the class {label!r} has only {len(chosen)} training docs"
                )
        return [doc for chosen in by_class.values() for doc in chosen]

    def __str__(self) -> str:
        return self.name


@dataclass
class Experiment:
    """A system on a task.

    args (Namespace): See `parse_arguments`.
    overrides (dict): Settings of the config.
    locked (IO): See `lock`.
    RAISES (ValueError): If something is missing.
    """

    args: argparse.Namespace
    overrides: dict[str, Any]
    locked: IO = field(init=False)

    def __post_init__(self) -> None:
        args = self.args
        self.has_elmo = args.system != BASELINE
        self.files = {name: args.corpus / f"{name}.spacy" for name in ("train", "dev", "test")}
        for path in (args.config, *self.files.values()):
            if not path.is_file():
                raise ValueError(f"no such file: {path}")
        if self.has_elmo and args.weights is None:
            raise ValueError(f"system {args.system}: give the biLM's --weights")
        if self.has_elmo:
            self.weights_hash = hash_weights(args.weights)
        if args.gpu_id >= 0:
            spacy.require_gpu(args.gpu_id)  # Says so if there is none.
        self.data_hashes = [sha256(path) for path in self.files.values()]

    def config(self, seed: int) -> Config:
        """RETURNS (Config): What `spacy train` gets."""
        args = self.args
        try:
            config = load_config(args.config, overrides=self.overrides, interpolate=False)
        except Exception as error:  # confection's errors are of several kinds.
            raise ValueError(f"the config {args.config} with {self.overrides}: {error}") from error
        config["system"]["seed"] = seed
        training = config["training"]
        if isinstance(training["max_steps"], int) and training["max_steps"] > 0:
            # Or a short training would end with the model of its first step.
            frequency = training["eval_frequency"]
            training["eval_frequency"] = min(frequency, training["max_steps"])
        if args.components is not None:
            keep_components(config, ["elmo", *args.components])
        if args.mix is not None:
            replace_mixes(config["components"], MIXES[args.mix])
        for corpus in ("train", "dev"):
            config["corpora"][corpus]["gold_preproc"] = args.gold_preproc
        return config if self.has_elmo else without_elmo(config)

    def fingerprint(self) -> str:
        """RETURNS (str): Changes with all that results depend on, except for size and seed."""
        config = self.config(seed=0).to_str(interpolate=False)
        what = [config, self.data_hashes, spacy.__version__, spacy_elmo.__version__]
        if self.has_elmo:
            what.append(self.weights_hash)
        return digest(what)

    def baseline_fingerprint(self) -> str:
        """RETURNS (str): The same for all runs that can be compared: it changes with all that they
        depend on, except for ELMo."""
        config = self.config(seed=0)
        if self.has_elmo:
            config = without_elmo(config)
        versions = [spacy.__version__, spacy_elmo.__version__]
        return digest([config.to_str(interpolate=False), self.data_hashes, versions])

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Let no other process run this system on this task.

        RAISES (ValueError): If one does, such as the training that a killed process has left.
        """
        folder = self.args.models / self.args.task / self.args.system
        folder.mkdir(parents=True, exist_ok=True)
        message = (
            f"another process runs {folder}: wait for it, or stop it (its command has "
            f"`experiment.py {self.args.task}` or `spacy train` in it)"
        )
        with exclusive_lock(folder / ".lock", message) as self.locked:
            yield

    def run(self, size: Size, seed: int) -> None:
        """Train and test, unless that has been done."""
        args = self.args
        name = Path(args.task, args.system, str(size), f"seed-{seed}")
        result = args.metrics / f"{name}.json"
        fingerprint = self.fingerprint()
        pipeline = args.models / name if size.name == "full" else None
        if is_done(result, fingerprint) and (pipeline is None or pipeline.is_dir()):
            msg.info(f"{result}: done already")
            return
        msg.divider(str(name))
        start = time.monotonic()
        work = args.models / args.task / args.system / ".work"
        # A killed run leaves its models.
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        try:
            train, n_train = self.select(size, seed, work)
            steps = self.train(self.config(seed), train, work)
            best = work / "model" / "model-best"
            scores = self.evaluate(best, work / "scores.json")
            dev_scores = self.numbers(srsly.read_json(best / "meta.json")["performance"])
            record = {
                "task": args.task,
                "system": args.system,
                "size": str(size),
                "n_train": n_train,
                "per_class": size.per_class,
                "seed": seed,
                "scores": scores,
                # To choose settings by: the test set is for what has been chosen.
                "dev_scores": {k: v for k, v in dev_scores.items() if k in scores},
                "mixes": read_mixes(best) if self.has_elmo else {},
                "seconds": round(time.monotonic() - start, 1),
                "steps": steps,
                "config": str(args.config),
                "weights": args.weights if self.has_elmo else None,
                "hardware": hardware(args.gpu_id),
                "fingerprint": fingerprint,
                "baseline_fingerprint": self.baseline_fingerprint(),
            }
            if pipeline is not None:
                with atomic_folder(pipeline) as target:
                    shutil.copytree(best, target, dirs_exist_ok=True)
            # Last, because it marks the run as complete.
            with atomic_file(result) as temporary:
                srsly.write_json(temporary, record)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        msg.good(f"{result}: {', '.join(f'{k} {v:.3f}' for k, v in scores.items())}")

    def select(self, size: Size, seed: int, work: Path) -> tuple[Path, int]:
        """RETURNS (tuple): The training data, and its number of examples."""
        path = self.files["train"]
        docs = read_docs(path)
        chosen = size.take(docs, seed)
        if size.name != "full":
            path = work / "train.spacy"
            DocBin(docs=chosen, store_user_data=True).to_disk(path)
        return path, count(chosen)

    def train(self, config: Config, train: Path, work: Path) -> int:
        """Run `spacy train`. RETURNS (int): The steps it took."""
        config = config.copy()
        config["paths"].update(train=str(train), dev=str(self.files["dev"]))
        config["training"]["logger"]["logger"]["output_file"] = str(work / "log.jsonl")
        if self.has_elmo:
            config["paths"]["weights"] = str(self.args.weights)
            cache = config["components"]["elmo"]["activation_cache"]
            if cache is not None:
                # Long texts need more than the default; leave half of the memory to others.
                free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**20
                cache.update(half_precision=True, memory_mb=round(free / 2))
        config.to_disk(work / "config.cfg")
        arguments = [work / "config.cfg", "--output", work / "model"]
        self.spacy("train", *arguments, "--gpu-id", self.args.gpu_id)
        return list(srsly.read_jsonl(work / "log.jsonl"))[-1]["step"]

    def evaluate(self, pipeline: Path, output: Path) -> dict[str, float]:
        """Run `spacy evaluate`. RETURNS (dict): The scores that are numbers."""
        options = ["--gold-preproc"] if self.args.gold_preproc else []
        options += ["--output", output, "--gpu-id", self.args.gpu_id]
        self.spacy("evaluate", pipeline, self.files["test"], *options)
        return self.numbers(srsly.read_json(output))

    def numbers(self, scores: dict[str, Any]) -> dict[str, float]:
        """RETURNS (dict): Those scores that are numbers, and the accuracy of exclusive classes."""
        kept = {k: v for k, v in scores.items() if isinstance(v, (int, float)) and k != "speed"}
        components = self.config(seed=0)["components"].values()
        is_exclusive = any(component.get("factory") == "textcat" for component in components)
        if is_exclusive and "cats_micro_f" in kept:
            kept["cats_acc"] = kept["cats_micro_f"]
        return kept

    def spacy(self, *arguments: object) -> None:
        """RAISES (ValueError): If it fails; what it prints has said why."""
        command = [sys.executable, "-m", "spacy", *map(str, arguments)]
        # A child that outlives this process keeps the lock.
        inherited = self.locked if os.name == "posix" else []
        if code := subprocess.run(command, pass_fds=inherited).returncode:
            raise ValueError(f"spacy {arguments[0]} failed (exit code {code}), see above")


def keep_components(config: Config, names: list[str]) -> None:
    """RAISES (ValueError): If the config has no such component."""
    if unknown := sorted(set(names) - set(config["components"])):
        raise ValueError(f"no component {unknown[0]!r} in the config")
    config["nlp"]["pipeline"] = names
    config["components"] = {name: config["components"][name] for name in names}


def replace_mixes(block: dict[str, Any], mix: dict[str, Any]) -> None:
    """Put a mix wherever a listener has one."""
    for name, value in block.items():
        if not isinstance(value, dict) or value.get("factory") == "elmo":
            continue
        if str(value.get("@layers")).startswith("spacy-elmo."):
            block[name] = dict(mix)
        else:
            replace_mixes(value, mix)


def read_docs(path: Path) -> list[Doc]:
    return list(DocBin().from_disk(path).get_docs(Vocab()))


def count(docs: list[Doc]) -> int:
    """RETURNS (int): Sentences, or docs where sentences are not marked."""
    return sum(len(list(doc.sents)) if doc.has_annotation("SENT_START") else 1 for doc in docs)


def read_mixes(pipeline: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """RETURNS (dict): By component and place; that of a plain listener is its component's input."""
    mixes: dict[str, dict[str, dict[str, Any]]] = {}
    for task, mix in find_mixes(spacy.load(pipeline)):
        component, _, place = task.partition("/")
        state = {"weights": mix.weights, "gamma": mix.gamma}
        mixes.setdefault(component, {})[place or "input"] = state
    return mixes


def hardware(gpu_id: int) -> str:
    """RETURNS (str): What the run was computed on."""
    if gpu_id >= 0:
        import torch

        return torch.cuda.get_device_name(gpu_id)
    return f"{os.cpu_count()} cores, {processor()}"


def processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
