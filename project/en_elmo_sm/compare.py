"""The perplexity of several biLMs on the same texts, with the vocabulary of the corpus.

    python project/en_elmo_sm/compare.py DATA CORPUS OUT en_elmo_sm CORPUS/en_elmo_sm

DATA is `$SPACY_ELMO_SHARED/data`, CORPUS the output of corpus.py. So that all have the same chance,
each model gets a new output layer for the vocabulary of the corpus. It is trained on the same words
while the biLM stays as it is, and written to OUT, where the next call looks for it. A model that
was trained with this vocabulary has another column, with its own output layer.

Prints a row for the held-out part of each source and for the test parts of UD EWT, AG News and
IMDB. Sentences that share NGRAM words in a row with the training text of any source are left out;
"seen" is their share. Held-out texts are of the sources that a model trained on CORPUS has read.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy
import srsly
import torch
from cleaning import Words, chunks, is_in, split_sentences
from sources import SOURCES, imdb
from tqdm import tqdm
from wasabi import msg

from spacy_elmo.cli.util import exit_on_error, torch_device
from spacy_elmo.files import atomic_file, locked_output
from spacy_elmo.pretraining.batches import SentenceBatches, plan_epoch
from spacy_elmo.pretraining.config import RunConfig, read_config
from spacy_elmo.pretraining.corpus import Corpus, Sentences, open_corpus
from spacy_elmo.pretraining.export import write_model
from spacy_elmo.pretraining.head import head_folder, load_head, load_language_model
from spacy_elmo.pretraining.language_model import LanguageModel
from spacy_elmo.pretraining.perplexity import perplexity
from spacy_elmo.pretraining.tokenize import tokenize
from spacy_elmo.pretraining.updater import Updater
from spacy_elmo.tools.texts import read_texts
from spacy_elmo.weights import find_source, load_bilm

sys.path.append(str(Path(__file__).parents[1] / "scripts"))
import convert_agnews
from labelled import BrokenRows

CONFIG = Path(__file__).parent / "pretrain.cfg"
# Of each text.
EVAL_WORDS = 100_000
# AG News: the first texts of the test part. IMDB: every tenth review of the test part, which comes
# first, the negative ones before the positive ones.
N_AG_NEWS, N_IMDB, IMDB_STEP = 2500, 25_000, 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("data", "corpus", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--words", type=int, default=6_000_000, help="That output layers read")
    parser.add_argument("--gpu-id", type=int, default=-1)
    args = parser.parse_args()
    with exit_on_error():
        device = torch_device(args.gpu_id)
        corpus = open_corpus(args.corpus / "prepared")
        folders = {}
        for name in args.models:
            folders[name] = with_output_layer(name, corpus, args.out, args.words, device)
        for name in args.models:
            if has_output_layer(Path(name), corpus):
                folders[f"{name}, own output layer"] = Path(name)
        loaded = (load_language_model(load_bilm(str(x)), x)[0] for x in folders.values())
        models = [model.to(device) for model in loaded]
        print("| text | words | unknown | seen | " + " | ".join(folders) + " |")
        print("|---" * (4 + len(models)) + "|")
        evaluated = dict(texts(args.data, args.corpus / "held_out"))
        unseen = Unseen(itertools.chain.from_iterable(evaluated.values()), args.corpus / "text")
        for name, paragraphs in evaluated.items():
            print_row(name, unseen(paragraphs), corpus, models)


def has_output_layer(folder: Path, corpus: Corpus) -> bool:
    head = head_folder(folder)
    return head.is_dir() and load_head(head).words == corpus.words


def with_output_layer(name: str, corpus: Corpus, out: Path, n_words: int, device: str) -> Path:
    """RETURNS (Path): The model with a new output layer for the corpus, in OUT."""
    find_source(name)  # Raises if there is no such model.
    made = out / name.strip("/").replace("/", "_")
    record_path = made.with_name(f"{made.name}.json")
    bilm = load_bilm(name)
    config = output_layer_config(n_words)
    settings = config.pretraining
    torch.manual_seed(config.system.seed)
    model = LanguageModel(bilm, len(corpus.words), settings.loss, 0.0).to(device)
    updater = Updater(model, settings, config.system.seed)
    # What the output layer depends on, besides the biLM.
    record = {
        "pretraining": config.to_dict()["pretraining"],
        "mixed_precision": updater.settings.mixed_precision,
        "corpus": corpus.manifest["sha256"],
    }
    is_made = has_output_layer(made, corpus) and record_path.is_file()
    if is_made and srsly.read_json(record_path) == record:
        weights = load_bilm(str(made)).state_dict()
        same = weights.keys() == bilm.state_dict().keys()
        if same and all(v.cpu().equal(weights[k]) for k, v in bilm.state_dict().items()):
            return made
    msg.info(f"{name}: training an output layer for the vocabulary of {corpus.folder}")
    with locked_output(made):
        train_output_layer(updater, corpus)
        record_path.unlink(missing_ok=True)  # It is not of what is written now.
        write_model(made, model, settings.loss, corpus, None)
        with atomic_file(record_path) as new:
            srsly.write_json(new, record)
    return made


def output_layer_config(n_words: int, overrides: Mapping[str, Any] = {}) -> RunConfig:
    """RETURNS (RunConfig): How an output layer is trained on so many words, with one cosine."""
    n_steps = max(1, n_words // read_config(CONFIG, overrides).pretraining.batch_words)
    schedule = {"schedule": "cosine", "total_steps": n_steps, "warmup_steps": n_steps // 20}
    ours = {f"pretraining.optimizer.{name}": value for name, value in schedule.items()}
    return read_config(CONFIG, {**ours, **overrides})


def train_output_layer(updater: Updater, corpus: Corpus) -> None:
    """Train the output layer of a model until its schedule ends. Its biLM stays as it is."""
    settings = updater.settings
    updater.model.bilm.requires_grad_(False)
    lengths = corpus.train.lengths
    epoch = SentenceBatches(corpus.train, plan_epoch(lengths, settings.batch_words, 0, 0))
    for number in tqdm(range(settings.optimizer.total_steps), disable=None):
        updater.update(epoch, [number % len(epoch)], number)


def texts(data: Path, held_out: Path) -> Iterator[tuple[str, list[str]]]:
    """YIELDS (tuple): The names of texts, and their paragraphs."""
    for source in SOURCES:
        if (path := held_out / f"{source.name}.txt").stat().st_size:
            yield source.name, list(read_texts([path]))
    [path] = (data / "ud_en_ewt").glob("*-test.conllu")
    lines = path.read_text(encoding="utf8").splitlines()
    yield "UD EWT, test", [x.removeprefix("# text = ") for x in lines if x.startswith("# text = ")]
    news = convert_agnews.read(data / "ag_news" / "test.csv", BrokenRows(skip=True))
    yield "AG News, test", [text.text for text in itertools.islice(news, N_AG_NEWS)]
    yield "IMDB, test", list(itertools.islice(imdb(data / "imdb"), 0, N_IMDB, IMDB_STEP))


class Unseen:
    """Leaves out sentences that share NGRAM words in a row with the training text; case and
    punctuation do not count. Made once, because it reads the whole text: a minute.

    paragraphs (Iterable[str]): All that is evaluated.
    text (Path): The folder of the training text.
    """

    def __init__(self, paragraphs: Iterable[str], text: Path) -> None:
        self.words = Words()
        evaluated = numpy.unique(numpy.concatenate([*self._grams(paragraphs)]))
        grams = self._grams(read_texts(sorted(text.glob("*.txt"))))
        self.seen = numpy.unique(numpy.concatenate([x[is_in(x, evaluated)] for x in grams]))

    def _grams(self, lines: Iterable[str]) -> Iterator[numpy.ndarray]:
        """YIELDS (ndarray): Hashes of NGRAM words in a row, of some lines at a time."""
        for chunk in chunks(lines):
            yield self.words.hash(chunk)[2][:, 0]

    def __call__(self, paragraphs: list[str]) -> tuple[list[str], float]:
        """RETURNS (tuple): The other sentences, and the share of those that are left out."""
        sentences = [x.strip() for text in paragraphs for x in split_sentences(text.strip())]
        _, _, grams = self.words.hash(sentences)
        seen = set(grams[is_in(grams[:, 0], self.seen), 1].tolist())
        others = [x for number, x in enumerate(sentences) if number not in seen]
        return others, len(seen) / len(sentences)


def print_row(
    name: str, unseen: tuple[list[str], float], corpus: Corpus, models: list[LanguageModel]
) -> None:
    sentences, share = unseen
    tokenized = tokenize(sentences, corpus.tokenization)
    tokens = itertools.chain.from_iterable(sentences for _, sentences in tokenized)
    text = Sentences.from_tokens((x for x in tokens if x), corpus.words)
    results = [perplexity(model, text, max_words=EVAL_WORDS) for model in models]
    cells = [f"{result['average']:.1f}" for result in results if result is not None]
    first = results[0]
    assert first is not None
    words = f"{first['n_words']:,} | {first['unknown']:.1%} | {share:.1%}"
    print(f"| {name} | {words} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
