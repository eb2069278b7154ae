"""Reading what the experiments wrote, and the statistics of it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional

import srsly

BASELINE = "baseline"
FULL = "full"

# The score that a task is judged by, in the order in which a task's scores are tried: a
# pipeline with a parser and a tagger is a parser's. With what people call them.
MAIN_SCORES = {
    "dep_las": "labelled attachment",
    "ents_f": "F1 of entities",
    "spans_sc_f": "F1 of spans",
    "cats_acc": "accuracy",
    "cats_score": "score of classes",
    "tag_acc": "accuracy of tags",
    "pos_acc": "accuracy of parts of speech",
}


@dataclass(frozen=True)
class Run:
    """One training with one seed.

    task, system, size (str): What was trained, with what, on how much ("full", or a part's name).
    n_train (int): Training examples.
    seed (int): Of everything random.
    scores (dict): Shares from 0 to 1. What is none (words per second, tables per label) is left
        out, and so are the tokenizer's scores, which no system changes.
    per_class (Optional[int]): Docs per class, if the part was drawn so.
    mixes (dict): Layer weights and gamma, `{"tagger": {"input": {"weights": [...], ...}}}`.
    seconds, steps: What the training took.
    weights, hardware: What it was run with, in words.
    fingerprint (Optional[str]): Of all that the result depends on, but for size and seed.
    baseline_fingerprint (Optional[str]): The same, but for ELMo, too.
    """

    task: str
    system: str
    size: str
    n_train: int
    seed: int
    scores: dict[str, float]
    per_class: Optional[int] = None
    mixes: dict[str, Any] = field(default_factory=dict)
    seconds: Optional[float] = None
    steps: Optional[int] = None
    weights: Optional[str] = None
    hardware: Optional[str] = None
    fingerprint: Optional[str] = None
    baseline_fingerprint: Optional[str] = None


_TYPES: dict[str, tuple] = {
    "task": (str,),
    "system": (str,),
    "size": (str,),
    "n_train": (int,),
    "seed": (int,),
    "scores": (dict,),
    "per_class": (int, type(None)),
    "mixes": (dict, type(None)),
    "seconds": (int, float, type(None)),
    "steps": (int, type(None)),
    "weights": (str, type(None)),
    "hardware": (str, type(None)),
    "fingerprint": (str, type(None)),
    "baseline_fingerprint": (str, type(None)),
}


def read_runs(folder: Path) -> list[Run]:
    """Read `folder/<task>/<system>/<size>/seed-<seed>.json`.

    RAISES (ValueError): If a file is broken, two are about the same run, the sizes and seeds of a
        system were run with other settings, data or weights, or the systems of a task with other
        settings or data.
    """
    runs: dict[tuple, tuple[Run, Path]] = {}
    first_of_system: dict[tuple, tuple[Run, Path]] = {}
    first_of_task: dict[str, tuple[Run, Path]] = {}
    for path in sorted(folder.glob("*/*/*/seed-*.json")):
        run = _to_run(read_json(path), path)
        key = (run.task, run.system, run.size, run.seed)
        if key in runs:
            raise ValueError(
                f"{runs[key][1]} and {path} both hold task {run.task}, system {run.system}, size "
                f"{run.size}, seed {run.seed}: remove one"
            )
        other, other_path = first_of_system.setdefault(key[:2], (run, path))
        if run.fingerprint != other.fingerprint:
            raise ValueError(
                f"{other_path} and {path} were run with other settings, data or weights: run "
                "experiment.py with the same ones and all sizes and seeds again, or give what "
                "differs a --system of its own"
            )
        other, other_path = first_of_task.setdefault(run.task, (run, path))
        if run.baseline_fingerprint != other.baseline_fingerprint:
            raise ValueError(
                f"{other_path} and {path} cannot be compared: they were run with other settings or "
                "data, ELMo aside. Run all systems and sizes of the task with the same ones, or "
                "remove the files of one"
            )
        runs[key] = run, path
    return [run for run, _ in runs.values()]


def read_json(path: Path) -> Any:
    """RAISES (ValueError): If the file is not complete JSON."""
    try:
        return srsly.read_json(path)
    except ValueError as error:
        raise ValueError(
            f"{path} is not complete JSON ({error}): remove it, and run what wrote it again"
        ) from error


def _to_run(record: Any, path: Path) -> Run:
    def fail(problem: str) -> ValueError:
        return ValueError(f"{path}: {problem}; remove it, and run what wrote it again")

    if not isinstance(record, dict):
        raise fail("expected an object with a task, a system, scores and so on")
    for name, types in _TYPES.items():
        value = record.get(name)
        if not isinstance(value, types) or isinstance(value, bool):
            expected = " or ".join(kind.__name__ for kind in types)
            raise fail(f"{name} must be {expected}, found {value!r}")
    values = {name: record.get(name) for name in _TYPES}
    values["scores"] = {
        name: score
        for name, score in record["scores"].items()
        if _is_share(score) and not name.startswith("token_")
    }
    if "cats_acc" in values["scores"]:  # With one class per doc, these are all the same.
        for name in ("cats_micro_p", "cats_micro_r", "cats_micro_f"):
            values["scores"].pop(name, None)
    values["mixes"] = values["mixes"] or {}
    if not values["scores"]:
        raise fail("scores has no number from 0 to 1")
    return Run(**values)


def _is_share(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1


def read_probes(folder: Path) -> list[dict[str, Any]]:
    """Read what `probe.py` wrote into `folder/probe`.

    RAISES (ValueError): If a file is broken.
    """
    probes = []
    for path in sorted((folder / "probe").glob("*.json")):
        probe = read_json(path)
        missing = {"name", "probe", "layers", "most_frequent", "untrained"} - {*probe}
        if missing:
            raise ValueError(f"{path} has no {min(missing)}: run probe.py again")
        probes.append(probe)
    return probes


def read_logs(folder: Path) -> list[tuple[str, list[dict[str, Any]]]]:
    """Read the evaluations of pretraining runs.

    folder (Path): A run, or where to look for some.
    RETURNS (list): The name and the evaluations of each run.
    RAISES (ValueError): If there is no such folder, or a log is broken.
    """
    if not folder.is_dir():
        raise ValueError(f"no folder {folder}: give the output of `spacy elmo pretrain`")
    # Before the first evaluation, a log is empty.
    runs = sorted(path.parent for path in folder.rglob("log.jsonl") if path.stat().st_size)
    # The name of "." is that of the folder it is.
    names = [
        folder.resolve().name if run == folder else str(run.relative_to(folder)) for run in runs
    ]
    return list(zip(names, map(read_log, runs)))


def read_log(folder: Path) -> list[dict[str, Any]]:
    """RAISES (ValueError): If a line of the log is broken."""
    path = folder / "log.jsonl"
    records = []
    needed = {"step", "words", "seconds", "forward", "backward", "average", "unigram"}
    for number, line in enumerate(path.read_text(encoding="utf8").splitlines(), 1):
        try:
            record = srsly.json_loads(line)
        except ValueError as error:
            raise ValueError(f"{path}, line {number} is not complete JSON ({error})") from error
        if missing := needed - {*record}:
            raise ValueError(f"{path}, line {number} has no {min(missing)}")
        # JSON has no infinity.
        infinite = {name: math.inf for name in ("forward", "backward", "average")}
        records.append({**record, **{k: v for k, v in infinite.items() if record[k] is None}})
    return records


def main_score(runs: Sequence[Run]) -> str:
    """RETURNS (str): The name of the score that a task is judged by: the first of MAIN_SCORES that
    all its runs have, else the first that the first one has."""
    shared = [name for name in runs[0].scores if all(name in run.scores for run in runs)]
    return next((name for name in MAIN_SCORES if name in shared), (shared or [*runs[0].scores])[0])


def by(key: Callable[[Run], Any], runs: Iterable[Run]) -> dict[Any, list[Run]]:
    """RETURNS (dict): The runs in groups, in the order in which they come."""
    groups: dict[Any, list[Run]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return groups


def system_order(systems: Iterable[str]) -> list[str]:
    """RETURNS (list): The baseline first, then elmo, then the others."""
    return sorted(set(systems), key=lambda name: (name != BASELINE, name != "elmo", name))


def sizes(runs: Iterable[Run]) -> list[str]:
    """RETURNS (list): The sizes of training data that occur, the smallest first."""
    return [*by(lambda run: run.size, sorted(runs, key=lambda run: run.n_train))]


class Spread(NamedTuple):
    """A mean over seeds; sd is the sample standard deviation, None for one seed."""

    mean: float
    sd: Optional[float]
    n: int


def spread(values: Iterable[Optional[float]]) -> Optional[Spread]:
    """RETURNS (Optional[Spread]): Of the values that are there; None if there are none."""
    present = [value for value in values if value is not None]
    if not present:
        return None
    sd = statistics.stdev(present) if len(present) > 1 else None
    return Spread(statistics.fmean(present), sd, len(present))


class Comparison(NamedTuple):
    """A system against the baseline.

    difference (Spread): Of the scores, system minus baseline. Without a seed that both have, it is
        that of the means, and has neither sd nor seeds (n is 0).
    error_reduction (Optional[float]): The share of the baseline's errors that the system does not
        make; None if the baseline makes none.
    n_better (int): Seeds in which the system is better.
    """

    difference: Spread
    error_reduction: Optional[float]
    n_better: int

    @property
    def is_clear(self) -> bool:
        """Whether the system is better on average and with every one of several seeds."""
        return self.difference.n > 1 and self.n_better == self.difference.n


def compare(system: Iterable[Run], baseline: Iterable[Run], score: str) -> Optional[Comparison]:
    """Compare runs of the same task and size, seed by seed where both have them.

    RETURNS (Optional[Comparison]): None if one of them has no such score.
    """
    of_system = {run.seed: run.scores[score] for run in system if score in run.scores}
    of_baseline = {run.seed: run.scores[score] for run in baseline if score in run.scores}
    if not of_system or not of_baseline:
        return None
    seeds = of_system.keys() & of_baseline.keys()
    differences = [of_system[seed] - of_baseline[seed] for seed in seeds]
    difference = spread(differences)
    error = 1 - statistics.fmean(
        [of_baseline[seed] for seed in seeds] if seeds else of_baseline.values()
    )
    if difference is None:
        means = statistics.fmean(of_system.values()), statistics.fmean(of_baseline.values())
        difference = Spread(means[0] - means[1], None, 0)
    return Comparison(
        difference,
        difference.mean / error if error > 0 else None,
        sum(value > 0 for value in differences),
    )


class MixRow(NamedTuple):
    """A mix, mean over seeds. Where a run has no number, it does not count."""

    task: str
    system: str
    place: str
    weights: list[Spread]
    gamma: Optional[Spread]


def mix_rows(runs: Iterable[Run]) -> list[MixRow]:
    """RETURNS (list): The mixes of all tasks and systems, those without layer weights left out."""
    rows = []
    for (task, system), group in by(lambda run: (run.task, run.system), runs).items():
        places: dict[str, list[dict[str, Any]]] = {}
        for run in group:
            for place, mix in _mixes(run.mixes):
                places.setdefault(place, []).append(mix)
        for place, mixes in places.items():
            # Layer by layer; runs of one system all have the same layers.
            weights = [spread(layer) for layer in zip(*(mix["weights"] for mix in mixes))]
            gamma = spread(mix.get("gamma") for mix in mixes)
            rows.append(MixRow(task, system, place, [w for w in weights if w], gamma))
    return rows


def _mixes(tree: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, dict]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            place = (*path, name) if name else path
            if value.get("weights"):
                yield "/".join(place), value
            else:
                yield from _mixes(value, place)
