"""The perplexity of several biLMs on the same texts, with the vocabulary of the corpus.

    python project/en_elmo_sm/compare.py DATA CORPUS OUT en_elmo_sm CORPUS/cooldown/model-last

DATA is `$SPACY_ELMO_SHARED/data`, CORPUS the output of corpus.py. A model that has no output layer
for this vocabulary, such as the bundled one, gets one: it is trained on the corpus while the
biLM stays as it is, and written to OUT, where the next call looks for it. Prints a row for the
held-out part of each source and for the test parts of UD EWT, AG News and IMDB.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

from sources import SOURCES, ag_news, imdb
from tqdm import tqdm
from wasabi import msg

from spacy_elmo.cli.util import exit_on_error, torch_device
from spacy_elmo.files import locked_output
from spacy_elmo.pretraining.batches import SentenceBatches, plan_epoch
from spacy_elmo.pretraining.config import read_config
from spacy_elmo.pretraining.corpus import Corpus, Sentences, open_corpus
from spacy_elmo.pretraining.export import head_folder, load_head, load_language_model, write_model
from spacy_elmo.pretraining.language_model import LanguageModel
from spacy_elmo.pretraining.perplexity import perplexity
from spacy_elmo.pretraining.tokenize import tokenize
from spacy_elmo.pretraining.updater import Updater
from spacy_elmo.tools.texts import read_texts
from spacy_elmo.weights import find_source, load_bilm

CONFIG = Path(__file__).parent / "pretrain.cfg"
# Of each text; texts of AG News and reviews of IMDB that are read at most.
EVAL_WORDS, MAX_TEXTS = 100_000, 2500


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
        models = []
        for name in args.models:
            folder = with_output_layer(name, corpus, args.out, args.words, device)
            models.append(load_language_model(load_bilm(str(folder)), folder)[0])
            models[-1].to(device)
        print("| text | words | unknown | " + " | ".join(args.models) + " |")
        print("|---" * (3 + len(models)) + "|")
        for name, text in texts(args.data, args.corpus / "held_out"):
            print_row(name, text, corpus, models)


def with_output_layer(name: str, corpus: Corpus, out: Path, n_words: int, device: str) -> Path:
    """RETURNS (Path): A model of `spacy elmo pretrain` with an output layer for the corpus: the
    model itself, or one in OUT."""
    find_source(name)  # Raises if there is no such model.
    made = out / name.strip("/").replace("/", "_")
    bilm = load_bilm(name)
    for folder in (Path(name), made):
        if head_folder(folder).is_dir() and load_head(head_folder(folder)).words == corpus.words:
            weights = load_bilm(str(folder)).state_dict()
            same = weights.keys() == bilm.state_dict().keys()
            if same and all(v.equal(weights[k]) for k, v in bilm.state_dict().items()):
                return folder
    msg.info(f"{name} has no output layer for the vocabulary of {corpus.folder}: training one")
    config = read_config(CONFIG)
    settings = config.pretraining
    model = LanguageModel(bilm, len(corpus.words), settings.loss, 0.0).to(device)
    model.bilm.requires_grad_(False)
    updater = Updater(model, settings, config.system.seed)
    n_steps = max(1, n_words // settings.batch_words)
    updater.schedule = read_config(
        CONFIG,
        {
            "pretraining.optimizer.total_steps": n_steps,
            "pretraining.optimizer.warmup_steps": n_steps // 20,
        },
    ).pretraining.optimizer
    lengths = corpus.train.lengths
    epoch = SentenceBatches(corpus.train, plan_epoch(lengths, settings.batch_words, 0, 0))
    with locked_output(made):
        for number in tqdm(range(n_steps), disable=None):
            updater.update(epoch, [number % len(epoch)], number)
        write_model(made, model, settings.loss, corpus, None)
    return made


def texts(data: Path, held_out: Path) -> Iterator[tuple[str, Iterable[str]]]:
    """YIELDS (tuple): The names of texts, and their paragraphs."""
    for source in SOURCES:
        if (path := held_out / f"{source.name}.txt").stat().st_size:
            yield source.name, read_texts([path])
    [path] = (data / "ud_en_ewt").glob("*-test.conllu")
    lines = path.read_text(encoding="utf8").splitlines()
    yield "UD EWT, test", (x.removeprefix("# text = ") for x in lines if x.startswith("# text = "))
    # The files of the others are read in the order of their names: the test part comes first.
    yield "AG News, test", itertools.islice(ag_news(data / "ag_news"), MAX_TEXTS)
    yield "IMDB, test", itertools.islice(imdb(data / "imdb"), MAX_TEXTS)


def print_row(
    name: str, paragraphs: Iterable[str], corpus: Corpus, models: list[LanguageModel]
) -> None:
    tokenized = tokenize((text.strip() for text in paragraphs), corpus.tokenization)
    sentences = itertools.chain.from_iterable(sentences for _, sentences in tokenized)
    text = Sentences.from_tokens((x for x in sentences if x), corpus.words)
    results = [perplexity(model, text, max_words=EVAL_WORDS) for model in models]
    cells = [f"{result['average']:.1f}" for result in results if result is not None]
    first = results[0]
    assert first is not None
    print(f"| {name} | {first['n_words']:,} | {first['unknown']:.1%} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
