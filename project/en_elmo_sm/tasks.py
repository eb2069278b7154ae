"""Small tasks that compare mixes and weights by cosines alone. None of them is a test's data.

On the texts that corpus.py holds out:

- similarity: neighbouring sentences of a paragraph against sentences of two paragraphs of the same
  source. Area under the ROC curve (AUC), mean of the sources.
- search: from the first sentence of a paragraph to the rest of it, among the paragraphs of all
  sources. Mean reciprocal rank.
- senses: two words of one tag are both replaced by one made-up word. Pairs of contexts of the same
  word against pairs of the two. AUC, mean of the made-up words.
- in context: the same pairs: the same word or not, by one threshold for all made-up words, which is
  chosen on one half of them and used on the other. Accuracy, both kinds of pairs counting the same.

On UD EWT:

- homographs: words of the development part with several parts of speech. Pairs of contexts of the
  same one against pairs of two. AUC, mean of the words.
- tags: UPOS in the development part, by the 10 nearest words of the training part. Accuracy.
"""

from __future__ import annotations

import random
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from scores import accuracy, auc, mean, pairs, reciprocal_rank, similarity, vote
from sources import SOURCES
from torch import Tensor
from torch.nn.functional import layer_norm, normalize

sys.path.append(str(Path(__file__).parents[1] / "scripts"))
from probe import Words, read_words

from spacy_elmo.bilm import BiLM
from spacy_elmo.inference import current_session
from spacy_elmo.pretraining.tokenize import TokenizationConfig, tokenize
from spacy_elmo.tools.texts import read_texts

# Per source: paragraphs of the tasks, and others from which the mean vector is computed.
N_PARAGRAPHS, N_BACKGROUND = 40, 10
# Tokens of a sentence, sentences of a paragraph that are read.
MIN_TOKENS, MAX_TOKENS, MAX_SENTENCES = 5, 50, 6
# Pairs of words, and contexts of each word; open classes of the Penn Treebank's tags.
N_PAIRS, N_CONTEXTS = 150, 10
OPEN_CLASSES = frozenset(["NN", "NNS", "VB", "VBD", "VBG", "VBN", "VBP", "VBZ", "JJ", "RB"])
# Of the tasks on UD EWT: tokens, neighbours that vote, the least contexts of a part of speech.
N_TOKENS, N_NEIGHBORS, LEAST_CONTEXTS = 8000, 10, 3
SENTENCES_PER_BATCH = 256
Sentence = list[str]


@dataclass(frozen=True)
class Contexts:
    """Words in context that have the same form.

    sentences (list), positions (list): Sentences, and the position of the word in each.
    labels (list): What the word stands for there.
    """

    sentences: list[Sentence]
    positions: list[int]
    labels: list[int]


@dataclass(frozen=True)
class Texts:
    """What all models read.

    sources (list): The number of each paragraph's source.
    first, second (list): Its first and second sentence.
    rest (list): All but its first.
    background (list): Sentences of other paragraphs.
    senses, homographs (list): See `Contexts`.
    train, dev (Words): Of UD EWT.
    """

    sources: list[int]
    first: list[Sentence]
    second: list[Sentence]
    rest: list[list[Sentence]]
    background: list[Sentence]
    senses: list[Contexts]
    homographs: list[Contexts]
    train: Words
    dev: Words


def read(held_out: Path, treebank: Path) -> Texts:
    """Read the texts and choose the items; the same ones each time.

    held_out (Path): The folder in the output of corpus.py.
    treebank (Path): train.spacy and dev.spacy, as convert_ud.py makes them.
    RAISES (ValueError): If a file is missing or has too little text.
    """
    rng = random.Random(0)
    train = read_words(treebank / "train.spacy", "tag")
    dev = read_words(treebank / "dev.spacy", "pos")
    chosen: list[tuple[int, list[Sentence]]] = []
    background: list[Sentence] = []
    sentences: list[Sentence] = []
    for number, source in enumerate(SOURCES):
        paragraphs = read_paragraphs(held_out / f"{source.name}.txt")
        sentences.extend(x for paragraph in paragraphs for x in paragraph)
        long = [paragraph[:MAX_SENTENCES] for paragraph in paragraphs if len(paragraph) >= 3]
        rng.shuffle(long)
        # A source with few paragraphs has some left for the mean vector.
        n = min(N_PARAGRAPHS, len(long) * 2 // 3)
        chosen.extend((number, paragraph) for paragraph in long[:n])
        background.extend(x for paragraph in long[n : n + N_BACKGROUND] for x in paragraph)
    senses = made_up_words(sentences, common_tags(train), rng)
    if not background or len(senses) < 2:
        raise ValueError(f"there is too little text in {held_out} to choose sentences and words")
    return Texts(
        sources=[number for number, _ in chosen],
        first=[paragraph[0] for _, paragraph in chosen],
        second=[paragraph[1] for _, paragraph in chosen],
        rest=[paragraph[1:] for _, paragraph in chosen],
        background=background,
        senses=senses,
        homographs=homographs(dev),
        train=read_words(treebank / "train.spacy", "pos", N_TOKENS),
        dev=read_words(treebank / "dev.spacy", "pos", N_TOKENS),
    )


def read_paragraphs(path: Path) -> list[list[Sentence]]:
    """RETURNS (list): The sentences of each paragraph that are neither short nor long."""
    if not path.is_file():
        raise ValueError(f"{path} is missing: name a folder that corpus.py has written")
    tokenized = tokenize(read_texts([path]), TokenizationConfig()) if path.stat().st_size else []
    return [[x for x in text if MIN_TOKENS <= len(x) <= MAX_TOKENS] for _, text in tokenized]


def common_tags(words: Words) -> dict[str, str]:
    """RETURNS (dict): The tag of words that have the same one in at least nine of ten places."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for word, tag in zip(words.words, words.labels):
        counts[word][tag] += 1
    best = {word: (*of_word.most_common(1)[0], of_word.total()) for word, of_word in counts.items()}
    return {word: tag for word, (tag, n, total) in best.items() if n >= 0.9 * total}


def made_up_words(
    sentences: Sequence[Sentence], tags: dict[str, str], rng: random.Random
) -> list[Contexts]:
    """RETURNS (list): Pairs of lower-case words of one tag, each joined to a made-up word."""
    places: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for number, sentence in enumerate(sentences):
        for word, n in Counter(sentence).items():
            # Once in its sentence, so that no context has the answer.
            if n == 1 and word.isalpha() and word.islower() and tags.get(word) in OPEN_CLASSES:
                places[word].append((number, sentence.index(word)))
    by_tag: dict[str, list[str]] = defaultdict(list)
    for word in sorted(word for word, of_word in places.items() if len(of_word) >= N_CONTEXTS):
        by_tag[tags[word]].append(word)
    couples: list[tuple[str, str]] = []
    for words in by_tag.values():
        rng.shuffle(words)
        couples.extend(zip(words[::2], words[1::2]))
    result = []
    for pair in rng.sample(couples, min(N_PAIRS, len(couples))):
        drawn = [(*place, i) for i in (0, 1) for place in rng.sample(places[pair[i]], N_CONTEXTS)]
        joined = "".join(pair)
        result.append(
            Contexts(
                [[joined if w in pair else w for w in sentences[number]] for number, _, _ in drawn],
                [position for _, position, _ in drawn],
                [label for _, _, label in drawn],
            )
        )
    return result


def homographs(words: Words) -> list[Contexts]:
    """RETURNS (list): Words with at least two labels that occur often enough."""
    places: dict[str, dict[str, list[tuple[Sentence, int]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    tokens = ((x, i) for x, kept in zip(words.sequences, words.positions) for i in kept)
    for (sentence, i), label in zip(tokens, words.labels):
        places[sentence[i]][label].append((sentence, i))
    result = []
    for by_label in places.values():
        often = [x[:N_CONTEXTS] for x in by_label.values() if len(x) >= LEAST_CONTEXTS]
        if len(often) >= 2:
            drawn = [(*place, label) for label, x in enumerate(often) for place in x]
            result.append(Contexts(*map(list, zip(*drawn))))
    return result


# What a model makes of them: rows of shape (2, L+1, 2P), the layers as they are and normalised


@dataclass(frozen=True)
class Rows:
    """Of `Texts`: a row for each sentence, paragraph or word; shape (rows, 2, L+1, 2P).

    background (Tensor): Of each of its tokens.
    """

    first: Tensor
    second: Tensor
    rest: Tensor
    background: Tensor
    senses: list[Tensor]
    homographs: list[Tensor]
    train: Tensor
    dev: Tensor


def embed(bilm: BiLM, texts: Texts) -> Rows:
    def contexts(all_words: list[Contexts]) -> list[Tensor]:
        sentences = [sentence for words in all_words for sentence in words.sentences]
        positions = [[position] for words in all_words for position in words.positions]
        rows = embed_tokens(bilm, sentences, positions)
        return list(rows.split([len(words.labels) for words in all_words]))

    return Rows(
        first=embed_means(bilm, [[x] for x in texts.first]),
        second=embed_means(bilm, [[x] for x in texts.second]),
        rest=embed_means(bilm, texts.rest),
        background=embed_tokens(bilm, texts.background, [range(len(x)) for x in texts.background]),
        senses=contexts(texts.senses),
        homographs=contexts(texts.homographs),
        train=embed_tokens(bilm, texts.train.sequences, texts.train.positions),
        dev=embed_tokens(bilm, texts.dev.sequences, texts.dev.positions),
    )


def embed_tokens(
    bilm: BiLM, sentences: Sequence[Sentence], positions: Sequence[Sequence[int]]
) -> Tensor:
    rows = []
    for start in range(0, len(sentences), SENTENCES_PER_BATCH):
        batch = slice(start, start + SENTENCES_PER_BATCH)
        for layers, kept in zip(current_session(bilm).embed(sentences[batch]), positions[batch]):
            rows.append(both_forms(layers[:, list(kept)]))
    return torch.cat(rows)


def embed_means(bilm: BiLM, paragraphs: Sequence[list[Sentence]]) -> Tensor:
    """RETURNS (Tensor): The mean over the tokens of each."""
    rows = [
        both_forms(torch.cat(current_session(bilm).embed(paragraph), 1)).mean(0)
        for paragraph in paragraphs
    ]
    return torch.stack(rows)


def both_forms(layers: Tensor) -> Tensor:
    """Layers of shape (L+1, tokens, 2P) as they are, and each token's normalised (as `ScalarMix`
    does with `layer_norm`). RETURNS (Tensor): Shape (tokens, 2, L+1, 2P)."""
    normed = layer_norm(layers, layers.shape[-1:], eps=1e-12)
    return torch.stack((layers, normed)).permute(2, 0, 1, 3).cpu()


# Scores


def score(texts: Texts, rows: Rows, mix: Callable[[Tensor], Tensor]) -> dict[str, float]:
    """Score a mix.

    mix (Callable): From rows (rows, 2, L+1, 2P) to vectors (rows, width).
    RETURNS (dict): A score for each task, between 0 and 1.
    """

    def vectors(rows: Tensor) -> Tensor:
        return normalize(mix(rows))

    first = vectors(rows.first)
    senses = [pairs(vectors(x), y.labels) for x, y in zip(rows.senses, texts.senses)]
    halves = senses[::2], senses[1::2]
    classes = [pairs(vectors(x), y.labels) for x, y in zip(rows.homographs, texts.homographs)]
    predicted = vote(vectors(rows.train), texts.train.labels, vectors(rows.dev), N_NEIGHBORS)
    right = sum(a == b for a, b in zip(predicted, texts.dev.labels))
    return {
        "similarity": similarity(first @ vectors(rows.second).T, texts.sources),
        "search": reciprocal_rank(first @ vectors(rows.rest).T),
        "senses": mean([auc(*x) for x in senses]),
        "in context": (accuracy(*halves) + accuracy(*reversed(halves))) / 2,
        "homographs": mean([auc(*x) for x in classes]),
        "tags": right / len(texts.dev.labels),
    }
