"""What does ELMo cost a task in training?

Trains one tagger in several ways, each in its own process, and prints one Markdown table: steps per
second in the first epoch and later, the time of a later epoch over that with static vectors of the
same width, and peak memory. The biLM has random weights of the published small shape.

    python benchmarks/train.py
    python benchmarks/train.py --device cuda --sentences 12000
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
import warnings
from itertools import islice
from pathlib import Path

import numpy
import spacy
import texts
import torch
from common import PUBLISHED, build, peak_mb
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example
from spacy.training.batchers import minibatch_by_words
from spacy.vectors import Vectors
from thinc.api import Adam, fix_random_seed

from spacy_elmo.bilm.mixed_precision import bfloat16_is_faster
from spacy_elmo.formats import safetensors_format

SENTENCES_PER_DOC = 10
WORDS_PER_BATCH = 2000
WIDTH = 96

BFLOAT16 = "fine-tuned, bfloat16"
CACHE = {"@misc": "spacy-elmo.ActivationCache.v1"}
VARIANTS: dict[str, dict | None] = {
    "static vectors": None,
    "frozen, activation cache": {"frozen": True, "activation_cache": CACHE},
    "frozen, cache in half precision": {
        "frozen": True,
        "activation_cache": {**CACHE, "half_precision": True},
    },
    "frozen, no cache": {"frozen": True, "activation_cache": None},
    "fine-tuned": {"frozen": False},
    BFLOAT16: {"frozen": False, "model": {"mixed_precision": True}},
}
COLUMNS = {
    "variant": "{}",
    "steps/s, epoch 1": "{:.2f}",
    "steps/s, later": "{:.2f}",
    "time/static": "{:.2f}",
    "peak MB": "{:,.0f}",
}


def pipeline(variant: str, shape: str, folder: Path, words: set[str]) -> Language:
    """A tagger with the same embedding and encoding layers in all variants."""
    nlp = spacy.blank("en")
    embed = {
        "@architectures": "spacy.MultiHashEmbed.v2",
        "width": WIDTH,
        "attrs": ["NORM", "PREFIX", "SUFFIX", "SHAPE"],
        "rows": [5000, 1000, 2500, 2500],
        "include_static_vectors": VARIANTS[variant] is None,
    }
    encode = {
        "@architectures": "spacy.MaxoutWindowEncoder.v2",
        "width": WIDTH,
        "depth": 4,
        "window_size": 1,
        "maxout_pieces": 3,
    }
    settings = VARIANTS[variant]
    tok2vec: dict
    if settings is None:
        width = 2 * PUBLISHED[shape][1]
        data = numpy.random.default_rng(0).normal(size=(len(words), width)).astype("float32")
        nlp.vocab.vectors = Vectors(data=data, keys=sorted(words), strings=nlp.vocab.strings)
        tok2vec = {"@architectures": "spacy.Tok2Vec.v2", "embed": embed, "encode": encode}
    else:
        settings = json.loads(json.dumps(settings))
        settings.setdefault("model", {})["weights"] = str(folder / "bilm")
        safetensors_format.write(build(shape, "cpu"), folder / "bilm")
        nlp.add_pipe("elmo", config=settings)
        mix = {"@layers": "spacy-elmo.ScalarMix.v1"}
        tok2vec = {
            "@architectures": "spacy-elmo.ElmoTok2Vec.v1",
            "embed": embed,
            "encode": encode,
            "elmo_input": mix,
        }
    nlp.add_pipe(
        "tagger", config={"model": {"@architectures": "spacy.Tagger.v2", "tok2vec": tok2vec}}
    )
    return nlp


def examples(vocab: spacy.vocab.Vocab, count: int) -> list[Example]:
    _, sentences = texts.tagged(count)
    result = []
    stream = iter(sentences)
    while chunk := list(islice(stream, SENTENCES_PER_DOC)):
        words = [word for sentence, _ in chunk for word in sentence]
        tags = [tag for _, sentence in chunk for tag in sentence]
        result.append(Example.from_dict(Doc(vocab, words=words), {"tags": tags}))
    return result


def measure(args: argparse.Namespace) -> dict:
    """Seconds per epoch, steps per epoch and peak memory of one variant."""
    if args.device == "cuda":
        spacy.require_gpu()
    fix_random_seed(0)
    _, sentences = texts.tagged(args.sentences)
    words = {word for sentence, _ in sentences for word in sentence}
    with tempfile.TemporaryDirectory() as folder:
        nlp = pipeline(args.measure, args.shape, Path(folder), words)
        train = examples(nlp.vocab, args.sentences)
        optimizer = nlp.initialize(lambda: train, sgd=Adam(0.001))
        seconds, n_steps = [], 0
        for _ in range(args.epochs):
            random.shuffle(train)
            start, n_steps, losses = time.perf_counter(), 0, {}
            for batch in minibatch_by_words(train, size=WORDS_PER_BATCH):
                nlp.update(batch, sgd=optimizer, losses=losses)
                n_steps += 1
            seconds.append(time.perf_counter() - start)
    peak, loss = peak_mb(args.device), float(losses["tagger"])
    return {"seconds": seconds, "steps": n_steps, "peak": peak, "loss": loss}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, help="default: all")
    parser.add_argument("--shape", choices=PUBLISHED, default="small")
    parser.add_argument("--sentences", type=int, default=3000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--measure", choices=VARIANTS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    has_bfloat16 = args.device == "cuda" or bfloat16_is_faster()
    args.variants = args.variants or [x for x in VARIANTS if x != BFLOAT16 or has_bfloat16]
    if BFLOAT16 in args.variants and not has_bfloat16:
        parser.error(f"{BFLOAT16!r}: this processor would train in float32")
    warnings.simplefilter("ignore")
    if args.measure:
        print(json.dumps(measure(args)))
        return
    source, sentences = texts.tagged(args.sentences)
    print(
        f"{len(sentences):,} sentences of {source}: {sum(len(w) for w, _ in sentences):,} words, "
        f"{WORDS_PER_BATCH:,} per step, {args.epochs} epochs. biLM of the {args.shape} shape, "
        f"{torch.get_num_threads()} threads, PyTorch {torch.__version__}, "
        f"{torch.cuda.get_device_name() if args.device == 'cuda' else 'CPU'}. Peak MB: resident "
        "memory of the whole process; on a GPU, of PyTorch's tensors.\n"
    )
    print("| " + " | ".join(COLUMNS) + " |")
    print("|" + "---|" * len(COLUMNS))
    baseline = None
    for variant in args.variants:
        command = [sys.executable, __file__, "--measure", variant, "--shape", args.shape]
        command += ["--sentences", str(args.sentences), "--epochs", str(args.epochs)]
        command += ["--device", args.device]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        measured = json.loads(done.stdout)
        later = min(measured["seconds"][1:])
        baseline = later if VARIANTS[variant] is None else baseline
        row = {
            "variant": variant,
            "steps/s, epoch 1": measured["steps"] / measured["seconds"][0],
            "steps/s, later": measured["steps"] / later,
            "time/static": later / baseline if baseline else float("nan"),
            "peak MB": measured["peak"],
        }
        cells = (form.format(row[name]) for name, form in COLUMNS.items())
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
