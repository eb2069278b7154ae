"""A corpus as arrays that training maps into memory.

| file            | contents                                                                    |
|-----------------|-----------------------------------------------------------------------------|
| manifest.json   | counts, settings, sha256 of the other files and of the manifest             |
| train.ids.bin   | word types of all tokens, uint32                                            |
| train.ends.bin  | where each sentence ends, in tokens, int64                                  |
| dev.*.bin       | the same for the held-out part                                              |
| types.txt       | the word types by id: special words, vocabulary, others by falling frequency|
| counts.bin      | how often each type occurs in train, int64                                  |
"""

from __future__ import annotations

import hashlib
import itertools
import json
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Optional

import numpy

from ..bilm.token_encoder import SPECIAL_WORDS
from ..files import atomic_folder, sha256
from .tokenize import TokenizationConfig, tokenize
from .vocabulary import BOS_ID, EOS_ID, UNK_ID, order_types, warn_of_types

MANIFEST = "manifest.json"
SPLITS = ("train", "dev")
FILES = (
    "types.txt", "counts.bin", "train.ids.bin", "train.ends.bin", "dev.ids.bin", "dev.ends.bin",
)  # fmt: skip


@dataclass(frozen=True)
class Sentences:
    """Tokens in sentences.

    ids, ends (ndarray): Word types of all tokens, and where each sentence ends.
    types (list[str]): The texts of the word types: special words, vocabulary, others.
    n_vocabulary (int): Words that are predicted; later types are predicted as `<UNK>`.
    """

    ids: numpy.ndarray
    ends: numpy.ndarray
    types: list[str]
    n_vocabulary: int

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def lengths(self) -> numpy.ndarray:
        return numpy.diff(self.ends, prepend=0)

    @classmethod
    def from_tokens(cls, sentences: Iterable[list[str]], vocabulary: list[str]) -> Sentences:
        """RETURNS (Sentences): Lists of tokens, and a vocabulary with special words first."""
        ids = {word: i for i, word in enumerate(vocabulary)}
        lists = [[ids.setdefault(word, len(ids)) for word in sentence] for sentence in sentences]
        tokens = numpy.fromiter(itertools.chain.from_iterable(lists), "uint32")
        ends = numpy.cumsum([len(numbers) for numbers in lists], dtype="int64")
        return cls(tokens, ends, list(ids), len(vocabulary))


@dataclass(frozen=True)
class Corpus:
    """A prepared corpus. `counts` says how often each type occurs in train."""

    folder: Path
    manifest: dict[str, Any]
    tokenization: TokenizationConfig
    train: Sentences
    dev: Sentences
    counts: numpy.ndarray

    @property
    def words(self) -> list[str]:
        """The words that are predicted, special ones first."""
        return self.train.types[: self.train.n_vocabulary]

    @property
    def identity(self) -> dict[str, Any]:
        """What differs in another corpus, or in one of the same text with other words to predict:
        the files are the same for any number of words."""
        return {**self.manifest["sha256"], "n_vocabulary": self.manifest["n_vocabulary"]}

    def unigram_log_probabilities(self) -> numpy.ndarray:
        """RETURNS (ndarray): The logarithms of the frequencies with which words are predicted
        forward, in nats. A word of the vocabulary that did not occur counts as half a word."""
        counts = self.counts[: self.train.n_vocabulary].astype("float64")
        counts[UNK_ID] += self.counts[self.train.n_vocabulary :].sum()
        counts[BOS_ID] = 0
        counts[EOS_ID] = len(self.train)
        counts = numpy.maximum(counts, 0.5)
        return numpy.log(counts / counts.sum())


def prepare(
    texts: Iterable[str],
    folder: Path,
    tokenization: TokenizationConfig,
    *,
    vocabulary: Optional[Sequence[str]] = None,
    vocab_size: Optional[int] = None,
    min_count: int = 1,
    dev_fraction: float = 0.01,
    dev_texts: Optional[Iterable[str]] = None,
    n_process: int = 1,
) -> dict[str, Any]:
    """Write a corpus. The same texts and settings give the same bytes, whatever `n_process` is.

    folder (Path): The output; an existing one is replaced when the new one is complete.
    vocabulary, vocab_size, min_count: The words to predict, special ones first; or their number,
        the most frequent ones; or their minimum count.
    dev_fraction (float): Fraction of the texts that is held out. A text's contents decide, so that
        a text that occurs twice is never in both parts.
    dev_texts (Optional[Iterable[str]]): Or, if they are given: the texts that are held out.
    RETURNS (dict): The manifest.
    """
    if not 0 < dev_fraction < 1:  # Before anything is read, which can take hours.
        raise ValueError(f"dev_fraction must be between 0 and 1, found {dev_fraction}")
    with atomic_folder(folder) as new:
        parts = [texts] if dev_texts is None else [texts, dev_texts]
        streams = [tokenize(part, tokenization, n_process) for part in parts]
        try:
            words, lengths, n_texts = _write_tokens(new, streams, dev_fraction)
        finally:
            for stream in streams:
                stream.close()  # Its processes end with an error or a signal.
        manifest: dict[str, Any] = {
            "n_texts": n_texts,
            **_number_types(new, words, vocabulary, vocab_size, min_count),
            "n_tokens": {split: sum(lengths[split]) for split in SPLITS},
            "n_sentences": {split: len(lengths[split]) for split in SPLITS},
            "tokenization": asdict(tokenization),
            "dev_fraction": dev_fraction if dev_texts is None else None,
            "sha256": {name: sha256(new / name) for name in sorted(FILES)},
        }
        manifest["checksum"] = _checksum(manifest)
        (new / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf8")
    return manifest


def _count(folder: Path, types: list[str]) -> numpy.ndarray:
    counts = numpy.zeros(len(types), dtype="int64")
    for ids in _map_blocks(folder / "train.ids.bin"):
        counts += numpy.bincount(ids, minlength=len(types))
    return counts


def _number_types(folder: Path, words: list[str], *vocabulary: Any) -> dict[str, int]:
    """Number the word types anew, as `order_types` says, and write their texts and counts.
    RETURNS (dict): The numbers of types, of words to predict, and of tokens that are none."""
    types, places, size = order_types(words, _count(folder, words), *vocabulary)
    for split in SPLITS:
        for ids in _map_blocks(folder / f"{split}.ids.bin"):
            ids[:] = places[ids]
    counts = _count(folder, types)
    counts.tofile(folder / "counts.bin")
    warn_of_types(types, counts, size)
    with (folder / "types.txt").open("w", encoding="utf8", errors="replace", newline="\n") as file:
        file.writelines(f"{word}\n" for word in types)
    n_unknown = int(counts[size:].sum())
    return {"n_types": len(types), "n_vocabulary": size, "n_unknown": n_unknown}


def _write_tokens(
    folder: Path, parts: Sequence[Iterable[tuple[str, list[list[str]]]]], dev_fraction: float
) -> tuple[list[str], dict[str, array[int]], int]:
    """Write the word types of all tokens, numbered as they occur first, and the ends of sentences.

    parts (Sequence): Texts and their sentences; then the same for held-out text, if it is given.
    RETURNS (tuple): The types, the lengths of the sentences of each split, and the number of texts.
    """
    next_id = itertools.count(len(SPECIAL_WORDS)).__next__
    ids = defaultdict(next_id, {word: i for i, word in enumerate(SPECIAL_WORDS)})
    lengths = {split: array("q") for split in SPLITS}
    n_texts = 0
    with (folder / "train.ids.bin").open("wb") as train, (folder / "dev.ids.bin").open("wb") as dev:
        numbered = ((n, *pair) for n, pairs in enumerate(parts) for pair in pairs)
        for part, text, sentences in numbered:
            n_texts += 1
            digest = hashlib.blake2b(text.encode("utf8", "surrogatepass"), digest_size=8).digest()
            is_dev = int.from_bytes(digest, "little") < dev_fraction * 2**64
            split, file = (
                ("dev", dev) if (part if len(parts) == 2 else is_dev) else ("train", train)
            )
            for sentence in sentences:
                array("I", map(ids.__getitem__, sentence)).tofile(file)
                lengths[split].append(len(sentence))
    for split in SPLITS:
        if not lengths[split]:
            raise ValueError(
                f"no sentence of {n_texts} texts is in the part {split!r}: the corpus is too "
                "small, or --dev-fraction too near to 0 or 1, or --dev without text"
            )
        numpy.cumsum(lengths[split], dtype="int64").tofile(folder / f"{split}.ends.bin")
    return list(ids), lengths, n_texts


def _map_blocks(path: Path) -> Iterator[numpy.ndarray]:
    """YIELDS (ndarray): The word types in a file, some millions at a time. Changes are written."""
    ids = numpy.memmap(path, dtype="uint32", mode="r+")
    for start in range(0, len(ids), 1 << 22):
        yield ids[start : start + (1 << 22)]
    ids.flush()


def _checksum(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def open_corpus(folder: Path) -> Corpus:
    """Map a corpus into memory. RAISES (ValueError): If it is none, or has changed since."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf8"))
        changed = [x for x in FILES if sha256(folder / x) != manifest["sha256"][x]]
        if changed or manifest.pop("checksum") != _checksum(manifest):
            raise ValueError(f"{', '.join(changed) or MANIFEST} has changed")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"no corpus in {folder} ({error}): make one with `spacy elmo prepare`"
        ) from error
    # All that is not mapped is read here: a training continues even if the folder is replaced.
    with (folder / "types.txt").open(encoding="utf8", newline="\n") as file:
        types = [line.rstrip("\n") for line in file]
    train, dev = (
        Sentences(
            numpy.memmap(folder / f"{split}.ids.bin", dtype="uint32", mode="r"),
            numpy.fromfile(folder / f"{split}.ends.bin", dtype="int64"),
            types,
            manifest["n_vocabulary"],
        )
        for split in SPLITS
    )
    counts = numpy.fromfile(folder / "counts.bin", dtype="int64")
    tokenization = TokenizationConfig(**manifest["tokenization"])
    return Corpus(folder, manifest, tokenization, train, dev, counts)
