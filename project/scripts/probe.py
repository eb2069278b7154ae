"""Probe what each layer of a biLM encodes, after tables 5 and 6 of Peters et al. 2018.

    python scripts/probe.py PIPELINE TRAIN.spacy TEST.spacy OUT.json --attr pos

A linear classifier per layer, on frozen activations, predicts the part of speech of each token.
Two baselines are the most frequent tag of each word, and the same network before any training: a
layer has learned what it predicts better than both.

With `--senses TRAIN.jsonl TEST.jsonl`, each layer also classifies word senses, by the nearest mean
vector of a sense seen in training. A line of these files is one word in its sentence:

    {"tokens": ["The", "bank", "flows"], "index": 1, "lemma": "bank", "sense": "bank%1:17:01::"}

For lemmas that never occur in training, "first_sense" (optional) is the most frequent sense in a
dictionary.
"""

from __future__ import annotations

import argparse
import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, Optional

import spacy
import srsly
import torch
from fingerprints import digest, is_done
from spacy.tokens import DocBin
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize
from wasabi import msg

from spacy_elmo.bilm import BiLM
from spacy_elmo.cli.util import exit_on_error, torch_device
from spacy_elmo.files import atomic_file, sha256
from spacy_elmo.formats import safetensors_format
from spacy_elmo.inference import current_session
from spacy_elmo.segmenters import sentences
from spacy_elmo.weights import load_bilm

SENTENCES_PER_BATCH = 256
ROWS_PER_BATCH = 1024
# Near the optimum of a convex problem: on UD EWT, three times the steps change test accuracies by
# 0.0 to 0.3 points.
EPOCHS = 10
LEAST_STEPS = 1000
LEARNING_RATE = 0.02
L2 = 1e-4
ATTRIBUTES = ("pos", "tag")


class Words(NamedTuple):
    """Words in context.

    sequences (list): Lists of tokens, as the biLM reads them.
    positions (list): The selected tokens of each sequence.
    words, labels (list): Of the selected tokens, in order.
    """

    sequences: list[list[str]]
    positions: list[list[int]]
    words: list[str]
    labels: list[str]


class Sense(NamedTuple):
    """A word with its sense; see the top of the file."""

    tokens: list[str]
    index: int
    lemma: str
    sense: str
    first_sense: Optional[str] = None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a pipeline with ELMo, or weights")
    parser.add_argument("train", type=Path, help="tagged docs to fit the classifiers (.spacy)")
    parser.add_argument("test", type=Path, help="tagged docs to measure them (.spacy)")
    parser.add_argument("out", type=Path, help="the result (.json)")
    parser.add_argument("--attr", choices=ATTRIBUTES, default="pos", help="UPOS or XPOS")
    parser.add_argument("--max-tokens", type=int, help="of each file, up to the sentence's end")
    parser.add_argument("--gpu-id", type=int, default=-1, help="of the biLM")
    parser.add_argument("--senses", type=Path, nargs=2, metavar=("TRAIN.jsonl", "TEST.jsonl"))
    args = parser.parse_args()
    with exit_on_error():
        if args.max_tokens is not None and args.max_tokens < 1:
            raise ValueError(f"--max-tokens must be 1 or more, found {args.max_tokens}")
        files = [args.train, args.test, *(args.senses or [])]
        if missing := [path for path in files if not path.is_file()]:
            raise ValueError(f"no such file: {missing[0]}")
        device = torch_device(args.gpu_id)
        bilm = load_bilm(args.model)
        weights = hashlib.sha256(safetensors_format.to_bytes(bilm)).hexdigest()
        hashes = [sha256(path) for path in files]
        fingerprint = digest([weights, hashes, args.attr, args.max_tokens])
        if is_done(args.out, fingerprint):
            msg.info(f"{args.out}: done already")
            return
        bilm.to(device)
        train = read_words(args.train, args.attr, args.max_tokens)
        test = read_words(args.test, args.attr, args.max_tokens)
        result = {"name": args.out.stem, "probe": args.attr, **probe(bilm, train, test)}
        result["fingerprint"] = fingerprint
        if args.senses:
            result["senses"] = probe_senses(bilm, *map(read_senses, args.senses))
        with atomic_file(args.out) as temporary:
            srsly.write_json(temporary, result)
        print_result(result)
        msg.good(f"Result: {args.out}")


def probe(bilm: BiLM, train: Words, test: Words) -> dict[str, Any]:
    """RETURNS (dict): The accuracies, as shares, with how many tokens they come from."""
    return {
        "n_train_tokens": len(train.labels),
        "n_test_tokens": len(test.labels),
        "layers": probe_layers(bilm, train, test),
        "most_frequent": most_frequent_accuracy(train, test),
        "untrained": probe_layers(untrained(bilm), train, test),
    }


def read_words(path: Path, attribute: str, max_tokens: Optional[int] = None) -> Words:
    """Read tagged docs, cut as the elmo component cuts them.

    path (Path): A DocBin.
    attribute (str): "pos" or "tag". Tokens without one are context only.
    max_tokens (Optional[int]): Stop at the end of the sequence in which there are so many.
    RAISES (ValueError): If the file cannot be read, or no token has the attribute.
    """
    try:
        docs = DocBin().from_disk(path).get_docs(spacy.blank("xx").vocab)
    except OSError:
        raise
    except Exception as error:  # Unpacking other bytes raises many kinds of errors.
        raise ValueError(f"{path} is no .spacy file: make one with `spacy convert`") from error
    segment = sentences()
    result = Words([], [], [], [])
    for doc in docs:
        for indices, kept_slice in segment(doc):
            tokens = [doc[int(i)] for i in indices]
            labels = [getattr(token, f"{attribute}_") for token in tokens]
            kept = [i for i in range(kept_slice.start, kept_slice.stop) if labels[i]]
            result.sequences.append([token.text for token in tokens])
            result.positions.append(kept)
            result.words.extend(tokens[i].text for i in kept)
            result.labels.extend(labels[i] for i in kept)
            if max_tokens is not None and len(result.labels) >= max_tokens:
                return result
    if not result.labels:
        raise ValueError(f"{path}: no token has a {attribute}: give tagged docs, or another --attr")
    return result


def untrained(bilm: BiLM) -> BiLM:
    """RETURNS (BiLM): What the pretraining of such a biLM starts from."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return BiLM(bilm.config, bilm.vocabulary).to(bilm.device)


def embed(bilm: BiLM, sequences: Sequence[list[str]], positions: Sequence[Sequence[int]]) -> Tensor:
    """Embed one batch at a time and keep the selected tokens.

    RETURNS (Tensor): Shape (tokens, L+1, 2P), float16.
    """
    shape = (sum(map(len, positions)), bilm.config.n_activations, bilm.config.output_dim)
    rows = torch.empty(shape, dtype=torch.float16)
    end = 0
    for start in range(0, len(sequences), SENTENCES_PER_BATCH):
        batch = slice(start, start + SENTENCES_PER_BATCH)
        for layers, kept in zip(current_session(bilm).embed(sequences[batch]), positions[batch]):
            rows[end : end + len(kept)] = layers[:, list(kept)].transpose(0, 1)
            end += len(kept)
    return rows


def probe_layers(bilm: BiLM, train: Words, test: Words) -> list[dict[str, Any]]:
    """RETURNS (list): Test accuracy of a classifier on each layer, and on "all" side by side."""
    train_rows = embed(bilm, train.sequences, train.positions)
    test_rows = embed(bilm, test.sequences, test.positions)
    standardize(train_rows, test_rows)
    number = {label: i for i, label in enumerate(sorted(set(train.labels)))}
    train_labels = torch.tensor([number[label] for label in train.labels])
    # A label that training never shows is one that no prediction equals.
    test_labels = torch.tensor([number.get(label, -1) for label in test.labels])
    accuracies = []
    for layer in all_layers(train_rows):
        linear = fit(pick(train_rows, layer), train_labels, len(number))
        score = accuracy(linear, pick(test_rows, layer), test_labels)
        accuracies.append({"layer": layer, "accuracy": score})
    return accuracies


def all_layers(rows: Tensor) -> list[Any]:
    return [*range(rows.shape[1]), "all"]


def pick(rows: Tensor, layer: Any) -> Tensor:
    """RETURNS (Tensor): One layer, shape (tokens, 2P), or all, (tokens, (L+1) * 2P); a view."""
    return rows.flatten(1) if layer == "all" else rows[:, layer]


def standardize(train: Tensor, test: Tensor) -> None:
    """Give all features mean 0 and variance 1 on `train`, in place: layers differ in scale, and
    the same L2 must mean the same to each."""
    n = len(train)
    mean = sum(rows.double().sum(0) for rows in train.split(ROWS_PER_BATCH)) / n
    squares = sum((rows - mean).square().sum(0) for rows in train.split(ROWS_PER_BATCH))
    scale = (squares / n).sqrt().clamp_min(1e-6)
    for rows in (*train.split(ROWS_PER_BATCH), *test.split(ROWS_PER_BATCH)):
        rows.copy_((rows - mean) / scale)


def fit(rows: Tensor, labels: Tensor, n_labels: int) -> nn.Linear:
    """Fit a multinomial logistic regression with Adam; the same data give the same weights.

    rows (Tensor): Shape (tokens, width).
    labels (Tensor): Their classes, shape (tokens,).
    """
    generator = torch.Generator().manual_seed(0)
    linear = nn.utils.skip_init(nn.Linear, rows.shape[1], n_labels)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    n_batches = -(-len(rows) // ROWS_PER_BATCH)
    n_epochs = max(EPOCHS, -(-LEAST_STEPS // n_batches))
    n_steps = n_epochs * n_batches
    optimizer = torch.optim.Adam(linear.parameters(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / n_steps)
    for _ in range(n_epochs):
        for batch in torch.randperm(len(rows), generator=generator).split(ROWS_PER_BATCH):
            loss = cross_entropy(linear(rows[batch].float()), labels[batch])
            loss = loss + L2 / 2 * linear.weight.square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return linear


@torch.no_grad()
def accuracy(linear: nn.Linear, rows: Tensor, labels: Tensor) -> float:
    pairs = zip(rows.split(ROWS_PER_BATCH), labels.split(ROWS_PER_BATCH))
    correct = sum(int((linear(x.float()).argmax(1) == y).sum()) for x, y in pairs)
    return correct / len(rows)


def most_frequent_accuracy(train: Words, test: Words) -> float:
    """RETURNS (float): Accuracy of each word's most frequent label in training; unknown words get
    the most frequent one of all."""
    by_word: dict[str, Counter] = defaultdict(Counter)
    for word, label in zip(train.words, train.labels):
        by_word[word][label] += 1
    default = Counter(train.labels).most_common(1)[0][0]
    best = {word: counts.most_common(1)[0][0] for word, counts in by_word.items()}
    pairs = zip(test.words, test.labels)
    return sum(best.get(word, default) == label for word, label in pairs) / len(test.labels)


def read_senses(path: Path) -> list[Sense]:
    """RAISES (ValueError): If a line is not such a record; names file and line."""
    result = []
    with path.open(encoding="utf8") as file:
        for number, line in enumerate(file, 1):
            try:
                record = srsly.json_loads(line)
                values = {name: record[name] for name in ("tokens", "index", "lemma", "sense")}
                sense = Sense(**values, first_sense=record.get("first_sense"))
                if not 0 <= sense.index < len(sense.tokens):
                    raise ValueError(f"no token {sense.index} among {len(sense.tokens)}")
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(
                    f"{path}, line {number}: {error}; a line must look like "
                    '{"tokens": [...], "index": 0, "lemma": "...", "sense": "..."}'
                ) from error
            result.append(sense)
    if not result:
        raise ValueError(f"{path} is empty: give word senses, or leave --senses out")
    return result


def probe_senses(bilm: BiLM, train: list[Sense], test: list[Sense]) -> dict[str, Any]:
    """RETURNS (dict): F1 per layer, and of each lemma's first sense."""
    train_rows, test_rows = embed_senses(bilm, train), embed_senses(bilm, test)
    first = first_senses(train, test)
    gold = [sense.sense for sense in test]
    layers = []
    for layer in all_layers(train_rows):
        result = nearest_senses(train, pick(train_rows, layer), test, pick(test_rows, layer))
        answers = [answer or default for answer, default in zip(result, first)]
        layers.append({"layer": layer, "f1": f1(answers, gold)})
    return {
        "n_train": len(train),
        "n_test": len(test),
        "layers": layers,
        "first_sense": f1(first, gold),
    }


def embed_senses(bilm: BiLM, senses: list[Sense]) -> Tensor:
    """A sentence whose words follow each other is embedded once; shape (words, L+1, 2P)."""
    groups = [(tokens, list(group)) for tokens, group in groupby(senses, lambda s: s.tokens)]
    positions = [[sense.index for sense in group] for _, group in groups]
    return embed(bilm, [tokens for tokens, _ in groups], positions)


def nearest_senses(
    train: list[Sense], train_rows: Tensor, test: list[Sense], test_rows: Tensor
) -> list[Optional[str]]:
    """RETURNS (list): For each word of `test`, the sense of its lemma with the nearest mean vector
    (by cosine), or None for a lemma not seen."""
    members: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row, sense in enumerate(train):
        members[sense.lemma][sense.sense].append(row)
    queries: dict[str, list[int]] = defaultdict(list)
    for row, sense in enumerate(test):
        queries[sense.lemma].append(row)
    result: list[Optional[str]] = [None] * len(test)
    for lemma in queries.keys() & members.keys():
        names = list(members[lemma])
        means = torch.stack([train_rows[members[lemma][name]].float().mean(0) for name in names])
        similarities = test_rows[queries[lemma]].float() @ normalize(means).T
        for row, best in zip(queries[lemma], similarities.argmax(1).tolist()):
            result[row] = names[best]
    return result


def first_senses(train: list[Sense], test: list[Sense]) -> list[Optional[str]]:
    """RETURNS (list): For each word of `test`, its "first_sense", or else the most frequent sense
    of its lemma in training, or None."""
    counts: dict[str, Counter] = defaultdict(Counter)
    for sense in train:
        counts[sense.lemma][sense.sense] += 1
    best = {lemma: senses.most_common(1)[0][0] for lemma, senses in counts.items()}
    return [sense.first_sense or best.get(sense.lemma) for sense in test]


def f1(answers: Iterable[Optional[str]], gold: Sequence[str]) -> float:
    """F1 where a word without an answer (None) costs recall, but not precision."""
    answers = list(answers)
    correct = sum(answer == sense for answer, sense in zip(answers, gold))
    n_answers = sum(answer is not None for answer in answers)
    return 2 * correct / (n_answers + len(gold))


def print_result(result: dict[str, Any]) -> None:
    rows = [
        (str(trained["layer"]), f"{trained['accuracy']:.2%}", f"{random['accuracy']:.2%}")
        for trained, random in zip(result["layers"], result["untrained"])
    ]
    msg.table(rows, header=("Layer", "Accuracy", "Untrained"), aligns=("l", "r", "r"), divider=True)
    print(f"Most frequent {result['probe']} of each word: {result['most_frequent']:.2%}")
    if "senses" in result:
        senses = result["senses"]
        rows = [(str(row["layer"]), f"{row['f1']:.2%}") for row in senses["layers"]]
        msg.table(rows, header=("Layer", "F1 of senses"), aligns=("l", "r"), divider=True)
        print(f"First sense: {senses['first_sense']:.2%}")


if __name__ == "__main__":
    main()
