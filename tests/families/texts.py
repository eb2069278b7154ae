"""Sentences that tell implementations apart."""

from __future__ import annotations

import numpy

from .network import pick

ORDINARY = (
    "the", "bank", "Bank", "river", "flows", "slowly", ".", ",", "(", "3,141.59", "e-mail", "a",
    "New York", "naïve", "Ærø", "Straße", "İstanbul", "coöperate", "coo\u0308perate",
    "Банк", "река", "й", "τράπεζα", "ποταμός", "ქართული", "հայերեն",
    "ضفة", "النهر", "בנק", "נָהָר", "नदी", "किनारा", "ธนาคาร", "နျ",
    "銀行", "川", "河岸", "은행", "강", "ẵ", "Việt Nam",
    "🏦", "👩‍👩‍👧‍👦", "𝔟𝔞𝔫𝔨", "ﬁsh", "½", "\u200d", "\ufeffx", "\u3000",
)  # fmt: skip
# Longer than any limit below, and cut within a character where bytes are counted.
LONG = (
    "Donaudampfschifffahrtsgesellschaftskapitänskajütenschlüsselloch" * 2,
    "acetylglutaminylphenylalanyl" * 3,
    "превысокомногорассмотрительствующий" * 3,
    "河" * 70,
    "x" + "é" * 80,
    "🏦" * 40,
    "का" * 60,
)


def random_sentences(
    rng: numpy.random.Generator, limit: int, special: tuple[str, ...] = ()
) -> list[list[str]]:
    """A few sentences of several scripts.

    limit (int): Number of characters (or bytes) that a token keeps; some are just as long.
    special (tuple[str, ...]): Tokens that the family treats in a way of its own.
    """
    text = "abcdefghij" * 10
    edges = (text[:limit], text[: limit + 1], text[: limit - 1])
    sentences = [[str(pick(rng, *ORDINARY))], [*edges, *special, "the"]]
    for _ in range(4):
        pool = [*rng.choice(ORDINARY, size=rng.integers(1, 9)), pick(rng, *LONG)]
        sentences.append([str(token) for token in rng.permutation(pool)])
    sentences.append(["the", "bank", "the", "bank", "."])
    return [sentences[i] for i in rng.permutation(len(sentences))]
