"""Cleaning, duplicates and forms of paragraphs, for corpus.py."""

from __future__ import annotations

import hashlib
import html
import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy

# A sentence that has as many words in a row in common with a benchmark is left out; so is a shorter
# one of at least MIN_WORDS words that is a sentence there. Shorter sentences may repeat, too: they
# are of everyday speech.
NGRAM, MIN_WORDS = 8, 6
TYPESET_SHARE, LOWER_SHARE = 0.15, 1 / 12
_MIN_LETTERS, _MAX_FOREIGN, _MAX_WORD = 0.5, 0.05, 60
_CHUNK = 2000

_SPACES = re.compile(r"\s+")
# Control characters, soft hyphens, marks of direction and zero width, replacement characters.
_INVISIBLE = re.compile(
    r"[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\xad\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\ufffd]"
)
_REPAIRS = (
    (re.compile(r"\(\s*[,;:]*\s*\)"), ""),  # What lost templates of Wikipedia leave.
    (re.compile(r"\(\s*[,;]\s*"), "("),
    (re.compile(r"(?:\s-){2,}(?=\s|$)"), " -"),  # Pauses in transcripts.
    (re.compile(r"(?<=\s)@(?=\s)"), ""),  # Words that a transcript leaves out.
    (re.compile(r"\s+(?=[,;](?:\s|$))"), ""),
    (re.compile(r"^(?:[:;,*•·|>]|[-–](?=\s))+\s*"), ""),  # Bullets.
)
_NEEDS_REPAIR = re.compile(r"\(\s*[,;:)]|\s-\s-|\s@\s|\s[,;]|^[:;,*•·|>–-]")
_NO_LETTERS = re.compile(r"[\W\d_]+")
_FOREIGN = re.compile(r"[^\W\d_\x00-\u024f\u0370-\u03ff\u1e00-\u1eff]")
# Where a sentence ends; not after initials and titles.
_SENTENCE_END = re.compile(
    r"(?<!\bMr)(?<!\bMrs)(?<!\bMs)(?<!\bDr)(?<!\bSt)(?<!\bNo)(?<!\bvs)(?<!\b[A-Z])"
    r"[.!?…][\"'”’)\]]*\s+(?=[\"'“‘(\[]?[A-Z0-9])"
)
_WORD = re.compile(r"\w+")

_TYPEWRITTEN = str.maketrans({"“": '"', "”": '"', "‘": "'", "’": "'", "—": "--", "…": "..."})
_TYPESET = (
    (re.compile(r"(^|[\s(\[{—-])\""), r"\1“"),
    (re.compile(r"\""), "”"),
    (re.compile(r"(^|[\s(\[{—“-])'(?!\d0s|t(?:is|was)\b|em\b)"), r"\1‘"),
    (re.compile(r"'"), "’"),
    (re.compile(r"(?<=[\w\s”’,])--(?=[\w\s“‘])"), "—"),
    (re.compile(r"(?<!\.)\.\.\.(?!\.)"), "…"),
)


def clean(text: str) -> str:
    """RETURNS (str): A paragraph without markup and invisible characters, with single spaces."""
    if "&" in text:
        text = html.unescape(text)
    if not text.isascii():
        text = _INVISIBLE.sub("", unicodedata.normalize("NFC", text))
    elif not text.isprintable():
        text = _INVISIBLE.sub("", _SPACES.sub(" ", text))
    if _NEEDS_REPAIR.search(text):
        for pattern, replacement in _REPAIRS:
            text = pattern.sub(replacement, text)
    return _SPACES.sub(" ", text).strip()


def split_sentences(text: str) -> list[str]:
    """RETURNS (list[str]): About the sentences of a paragraph. They join to the paragraph."""
    starts = [0, *(match.end() for match in _SENTENCE_END.finditer(text)), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(starts)]


def is_prose(sentence: str) -> bool:
    """RETURNS (bool): Whether it is mostly letters, mostly Latin ones, without overlong words."""
    letters = len(_NO_LETTERS.sub("", sentence))
    dense = len(sentence) - sentence.count(" ")
    if letters < _MIN_LETTERS * dense or not letters:
        return False
    if not sentence.isascii() and len(_FOREIGN.findall(sentence)) > _MAX_FOREIGN * letters:
        return False
    return len(sentence) <= _MAX_WORD or max(map(len, sentence.split())) <= _MAX_WORD


def form(text: str) -> str:
    """Give a paragraph typeset or plain quotes and dashes, and some no capitals. Its contents
    decide, so that all its copies are the same and a corpus holds all or none of them out."""
    # `prepare` holds texts out by their hash without `person`, which must not decide the form, too.
    data = text.encode("utf8", "surrogatepass")
    digest = hashlib.blake2b(data, digest_size=8, person=b"form").digest()
    quotes, case = (int.from_bytes(part, "little") / 2**32 for part in (digest[:4], digest[4:]))
    if quotes >= TYPESET_SHARE:
        text = text.translate(_TYPEWRITTEN)
    else:
        for pattern, replacement in _TYPESET:
            text = pattern.sub(replacement, text)
    return text.lower() if case < LOWER_SHARE else text


class Words:
    """Texts as hashes of their words; case and punctuation do not count."""

    def __init__(self) -> None:
        self._hashes: dict[str, int] = {}
        # Powers of an odd number, so that no position's weight is a multiple of another's.
        self._powers = numpy.cumprod(numpy.full(1 << 16, 0x9E3779B97F4A7C15, dtype="uint64"))

    def _hash(self, text: str) -> list[int]:
        hashes = self._hashes
        words = _WORD.findall(text.lower())
        try:
            return [hashes[word] for word in words]
        except KeyError:
            if len(hashes) > 5_000_000:  # Bounds the memory.
                hashes.clear()
            for word in words:
                if word not in hashes:
                    digest = hashlib.blake2b(word.encode("utf8", "replace"), digest_size=8).digest()
                    hashes[word] = int.from_bytes(digest, "little")
            return [hashes[word] for word in words]

    def hash(self, texts: Sequence[str]) -> tuple[numpy.ndarray, numpy.ndarray, numpy.ndarray]:
        """RETURNS (tuple): Of each text the number of words (n,) and the hash (n,); and for each
        text all hashes of NGRAM words in a row, with the text's index, (m, 2), uint64."""
        lists = [self._hash(text)[: len(self._powers)] for text in texts]
        lengths = numpy.array([len(x) for x in lists], dtype="int64")
        words = numpy.array([x for words in lists for x in words], dtype="uint64")
        index = numpy.repeat(numpy.arange(len(lists)), lengths)
        starts = numpy.cumsum(lengths) - lengths
        weighted = words * self._powers[numpy.arange(len(words)) - starts[index]]
        sums = numpy.append(numpy.uint64(0), numpy.cumsum(weighted))
        totals = sums[starts + lengths] - sums[starts]
        n = max(len(words) - NGRAM + 1, 0)
        grams = numpy.zeros(n, dtype="uint64")
        for offset in range(NGRAM):
            grams += words[offset : offset + n] * self._powers[offset]
        inside = index[:n] == index[NGRAM - 1 :]
        return lengths, totals, numpy.stack([grams[inside], index[:n][inside].astype("uint64")], 1)


def fingerprint(texts: Iterable[str], words: Words) -> numpy.ndarray:
    """RETURNS (ndarray): Sorted hashes, uint64, of a benchmark's stretches of NGRAM words and of
    its sentences of MIN_WORDS words or more."""
    arrays = []
    for chunk in chunks(texts):
        arrays.append(words.hash(chunk)[2][:, 0])
        sentences = [sentence for text in chunk for sentence in split_sentences(text)]
        lengths, hashes, _ = words.hash(sentences)
        arrays.append(hashes[lengths >= MIN_WORDS])
    return numpy.unique(numpy.concatenate(arrays)) if arrays else numpy.zeros(0, dtype="uint64")


def is_in(values: numpy.ndarray, ordered: numpy.ndarray) -> numpy.ndarray:
    """RETURNS (ndarray): Whether each value is in a sorted array, bool."""
    if not len(ordered):
        return numpy.zeros(len(values), dtype=bool)
    # In order, so that one search finds in the processor's cache what the one before has read.
    order = numpy.argsort(values)
    places = numpy.empty(len(values), dtype="int64")
    places[order] = numpy.searchsorted(ordered, values[order])
    return ordered[numpy.minimum(places, len(ordered) - 1)] == values


class Filter:
    """Leaves out sentences that are no prose, that benchmarks have, or that came before.

    benchmarks (Mapping): Names, and the arrays of `fingerprint`.
    seen (set[int]): Hashes of the sentences of other sources.
    words (Words): Their hashes.
    """

    def __init__(self, benchmarks: Mapping[str, numpy.ndarray], seen: set[int], words: Words):
        self.benchmarks, self.seen, self.words = benchmarks, seen, words
        self.own: set[int] = set()
        self.dropped: Counter[str] = Counter()

    def __call__(self, paragraphs: Iterable[tuple[str, bool]]) -> Iterator[tuple[str, bool]]:
        """YIELDS (tuple): Paragraphs without those sentences, and what came with each."""
        for chunk in chunks(paragraphs):
            sentences = [split_sentences(clean(text)) for text, _ in chunk]
            flat = [sentence for paragraph in sentences for sentence in paragraph]
            keep = iter(self._select(flat))
            for (_, held_out), paragraph in zip(chunk, sentences):
                kept = "".join(x for x, is_kept in zip(paragraph, keep) if is_kept).strip()
                if kept:
                    yield kept, held_out

    def _select(self, sentences: list[str]) -> list[bool]:
        """RETURNS (list[bool]): Whether to keep each sentence. Counts why not."""
        lengths, hashes, grams = self.words.hash(sentences)
        keep = numpy.array([is_prose(sentence) for sentence in sentences], dtype=bool)
        self.dropped["sentences"] += len(sentences)
        self.dropped["not prose"] += int((~keep).sum())
        for name, known in self.benchmarks.items():
            shared = is_in(hashes, known) & (lengths >= MIN_WORDS)
            shared[grams[is_in(grams[:, 0], known), 1].astype("int64")] = True
            self.dropped[name] += int((shared & keep).sum())
            keep &= ~shared
        for i in numpy.flatnonzero(keep & (lengths >= MIN_WORDS)):
            value = int(hashes[i])
            if value in self.seen or value in self.own:
                keep[i] = False
                self.dropped["in another source" if value in self.seen else "repeated"] += 1
            else:
                self.own.add(value)
        return keep.tolist()


def chunks(items: Iterable) -> Iterator[list]:
    """YIELDS (list): Some items at a time."""
    chunk = []
    for item in items:
        chunk.append(item)
        if len(chunk) == _CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
