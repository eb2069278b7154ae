"""Short trainings that differ in one setting each, and a table of their perplexities.

    python project/en_elmo_sm/ablations.py CORPUS OUT [--words 7000000] [--only base dim-512]

CORPUS is the output of corpus.py. The runs of ablations.yml are made one after the other; each ends
its schedule after the same number of words, and leaves OUT/NAME/run/model-last. Run it again to
continue: a training goes on from its last checkpoint, and a run that has a result is skipped.
SIGTERM and Ctrl-C save a checkpoint first.

--shapes trains nothing, but prints the size of each run's weights in half precision, and words per
second of CPU time in some steps of training and in inference, with one thread.
"""

from __future__ import annotations

import argparse
import itertools
import json
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import srsly
import torch
from sources import SOURCES
from wasabi import msg

from spacy_elmo.bilm import BiLM
from spacy_elmo.cli.util import exit_on_error
from spacy_elmo.files import atomic_file, locked_output, remove_folder
from spacy_elmo.inference import current_session
from spacy_elmo.pretraining.batches import SentenceBatches, plan_epoch
from spacy_elmo.pretraining.config import RunConfig, read_config
from spacy_elmo.pretraining.corpus import Corpus, Sentences, open_corpus
from spacy_elmo.pretraining.head import load_language_model
from spacy_elmo.pretraining.init_model import build_model
from spacy_elmo.pretraining.perplexity import finite, perplexity
from spacy_elmo.pretraining.signals import handle_signals
from spacy_elmo.pretraining.tokenize import tokenize
from spacy_elmo.pretraining.updater import Updater
from spacy_elmo.tools.texts import read_texts
from spacy_elmo.weights import load_bilm

HERE = Path(__file__).parent
CONFIG, RUNS = HERE / "pretrain.cfg", HERE / "ablations.yml"
# Of the held-out part of each kind of text; the warm-up, as a part of the steps.
EVAL_WORDS, WARMUP = 50_000, 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--words", type=int, default=7_000_000, help="That every run reads")
    parser.add_argument("--only", nargs="+", help="Names of runs; all without it")
    parser.add_argument("--gpu-id", type=int, default=-1)
    parser.add_argument("--shapes", action="store_true", help="Only measure sizes and speed")
    parser.add_argument("--steps", type=int, default=10, help="Steps that --shapes measures")
    args = parser.parse_args()
    with exit_on_error():
        runs = read_runs(RUNS, args.only)
        if args.shapes:
            print_shapes(args.corpus / "prepared", runs, args.steps)
            return
        with locked_output(args.out):
            results = {}
            for name, settings in runs.items():
                run = args.out / name
                results[name] = make(run, settings, args.corpus, args.words, args.gpu_id)
                print_results(results)


def read_runs(path: Path, only: Sequence[str] | None) -> dict[str, dict[str, Any]]:
    """RETURNS (dict): Runs, and the settings that each changes. RAISES (ValueError): If a name is
    not in the file, or a setting not in pretrain.cfg."""
    runs = {name: settings or {} for name, settings in srsly.read_yaml(path).items()}
    for name in only or ():
        if name not in runs:
            raise ValueError(f"--only {name}: {path} has no such run, only {', '.join(runs)}")
    for settings in runs.values():
        read_config(CONFIG, settings)
    return {name: runs[name] for name in only or runs}


def make(
    folder: Path, settings: Mapping[str, Any], corpus: Path, words: int, gpu_id: int
) -> dict[str, Any]:
    """Train and evaluate a run, or read its result.

    RETURNS (dict): "perplexity" by kind of text, "words" read, "seconds".
    RAISES (SystemExit): If the training fails or is stopped.
    """
    settings = with_steps(settings, words)
    prepared = corpus / "prepared"
    key = {"config": read_config(CONFIG, settings).to_dict(), "corpus": corpus_key(prepared)}
    key = json.loads(json.dumps(key))
    path, begun = folder / "result.json", folder / "begun.json"
    if path.exists() and (result := srsly.read_json(path))["key"] == key:
        return result
    if not begun.exists() or srsly.read_json(begun) != key:
        remove_folder(folder / "run")  # Of other settings.
        path.unlink(missing_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_file(begun) as new:
            srsly.write_json(new, key)
    options = [x for k, v in settings.items() for x in (f"--{k}", json.dumps(v))]
    command = [sys.executable, "-m", "spacy", "elmo", "pretrain", str(CONFIG), str(folder / "run")]
    command += ["--resume", "--gpu-id", str(gpu_id), "--paths.corpus", str(prepared), *options]
    msg.info(f"{folder.name}: {' '.join(command)}")
    with (
        subprocess.Popen(command) as process,
        # The training saves a checkpoint and ends; so does this process, with its code.
        handle_signals(lambda *_: process.terminate(), signal.SIGTERM, signal.SIGINT),
    ):
        code = process.wait()
    if code:
        sys.exit(code)
    *_, record = srsly.read_jsonl(folder / "run" / "log.jsonl")
    result = {
        "key": key,
        "words": record["words"],
        "seconds": record["seconds"],
        "perplexity": evaluate(folder / "run" / "model-last", corpus / "held_out"),
    }
    with atomic_file(path) as new:
        srsly.write_json(new, result)
    for checkpoint in (folder / "run").glob("step-*"):  # Several times the size of the weights.
        checkpoint.unlink()
    return srsly.read_json(path)


def with_steps(settings: Mapping[str, Any], words: int) -> dict[str, Any]:
    """RETURNS (dict): The settings, with a schedule that ends after so many words."""
    training = read_config(CONFIG, settings).pretraining
    steps = max(1, words // (training.batch_words * training.accumulate_gradient))
    return {
        "pretraining.optimizer.schedule": "cosine",
        **settings,
        "pretraining.max_steps": steps,
        "pretraining.optimizer.total_steps": steps,
        "pretraining.optimizer.warmup_steps": round(WARMUP * steps),
        "pretraining.eval_frequency": max(1, steps // 4),
        "pretraining.checkpoint_frequency": max(1, steps // 6),
    }


def corpus_key(prepared: Path) -> str:
    path = prepared / "manifest.json"
    if not path.is_file():
        raise ValueError(f"{path} is missing: build the corpus with corpus.py")
    return str(srsly.read_json(path)["checksum"])


def evaluate(model: Path, held_out: Path) -> dict[str, float]:
    """RETURNS (dict): The perplexity of both directions on each kind of held-out text."""
    language_model, head = load_language_model(load_bilm(str(model)), model)
    scores = {}
    for kind in dict.fromkeys(source.kind for source in SOURCES):
        files = [held_out / f"{source.name}.txt" for source in SOURCES if source.kind == kind]
        texts = read_texts(path for path in files if path.stat().st_size)
        tokenized = tokenize(texts, head.tokenization)
        sentences = itertools.chain.from_iterable(sentences for _, sentences in tokenized)
        text = Sentences.from_tokens(sentences, head.words)
        result = perplexity(language_model, text, max_words=EVAL_WORDS)
        assert result is not None
        scores[kind] = finite(result)["average"]
    return scores


def print_results(results: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the table in Markdown, the best of each column in bold. The last column is the
    geometric mean of the others."""
    scores = {
        name: {**result["perplexity"], "mean": geometric_mean(result["perplexity"].values())}
        for name, result in results.items()
    }
    columns = list(next(iter(scores.values())))
    print("\n| run | words | minutes | " + " | ".join(columns) + " |")
    print("|---|" + "---:|" * (2 + len(columns)))
    best = {column: min(row[column] for row in scores.values()) for column in columns}
    for name, row in scores.items():
        cells = [name, f"{results[name]['words']:,}", f"{results[name]['seconds'] / 60:.0f}"]
        for column, value in row.items():
            cells.append(f"**{value:.1f}**" if value == best[column] else f"{value:.1f}")
        print("| " + " | ".join(cells) + " |")


# Sizes and speed


def print_shapes(prepared: Path, runs: Mapping[str, Mapping[str, Any]], n_steps: int) -> None:
    torch.set_num_threads(1)
    corpus = open_corpus(prepared)
    print("| run | parameters | MB in half precision | training, words/s | inference, words/s |")
    print("|---|---|---|---|---|")
    for name, settings in runs.items():
        config = read_config(CONFIG, settings)
        model, _ = build_model(config, corpus)
        n = sum(parameter.numel() for parameter in model.bilm.parameters())
        rates = train_rate(config, corpus, n_steps), embed_rate(model.bilm.eval(), corpus)
        print(f"| {name} | {n:,} | {2 * n / 1e6:.1f} | {rates[0]:,.0f} | {rates[1]:,.0f} |")


def train_rate(config: RunConfig, corpus: Corpus, n_steps: int) -> float:
    """RETURNS (float): Words per second of CPU time, after two steps to warm up."""
    model, _ = build_model(config, corpus)
    updater = Updater(model, config.pretraining, config.system.seed)
    plan = plan_epoch(corpus.train.lengths, config.pretraining.batch_words, 0, 0)
    epoch = SentenceBatches(corpus.train, plan)
    for number in range(2):
        updater.update(epoch, [number], number)
    start, words = time.process_time(), 0
    for number in range(2, 2 + n_steps):
        updater.update(epoch, [number], number)
        words += epoch.size(number)[0]
    return words / (time.process_time() - start)


def embed_rate(bilm: BiLM, corpus: Corpus) -> float:
    """RETURNS (float): Words per second of CPU time of inference in float32."""
    ends = [0, *corpus.dev.ends[:1000].tolist()]
    types, ids = corpus.dev.types, corpus.dev.ids
    sentences = [[types[i] for i in ids[start:end]] for start, end in itertools.pairwise(ends)]
    with torch.inference_mode():
        current_session(bilm).embed(sentences[:100])
        start = time.process_time()
        current_session(bilm).embed(sentences)
        return ends[-1] / (time.process_time() - start)


if __name__ == "__main__":
    main()
