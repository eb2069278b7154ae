"""A corpus as arrays that training maps into memory.

Files of a folder:

| file            | contents                                                                    |
|-----------------|-----------------------------------------------------------------------------|
| manifest.json   | version, counts, settings, sha256 of the other files and of the manifest    |
| train.ids.bin   | word types of all tokens, uint32                                            |
| train.ends.bin  | where each sentence ends, in tokens, int64                                  |
| dev.*.bin       | the same for the held-out part                                              |
| types.txt       | the texts of the word types by id: special words, vocabulary, others by     |
|                 | falling frequency                                                           |
| counts.bin      | how often each type occurs in train, int64                                  |
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Optional

import numpy

from ..bilm.token_encoder import SPECIAL_WORDS
from ..files import atomic_folder, sha256
from .tokenize import TokenizationConfig, tokenize
from .vocabulary import (
    BOS_ID,
    EOS_ID,
    UNK_ID,
    order_types,
    warn_if_unsegmented,
    warn_if_unsorted,
)  # fmt: skip

VERSION = 2
MANIFEST = "manifest.json"
SPLITS = ("train", "dev")
FILES = (
    "types.txt",
    "counts.bin",
    *(f"{split}.{name}.bin" for split in SPLITS for name in ("ids", "ends")),
)


@dataclass(frozen=True)
class Sentences:
    """Tokens in sentences.

    ids (ndarray): Word types of all tokens.
    ends (ndarray): Where each sentence ends.
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
        tokens: list[int] = []
        ends: list[int] = []
        for sentence in sentences:
            tokens += (ids.setdefault(word, len(ids)) for word in sentence)
            ends.append(len(tokens))
        arrays = numpy.array(tokens, dtype="uint32"), numpy.array(ends, dtype="int64")
        return cls(*arrays, list(ids), len(vocabulary))


@dataclass(frozen=True)
class Corpus:
    """A prepared corpus.

    folder (Path): Its folder.
    manifest (dict): Counts, settings, checksums.
    tokenization (TokenizationConfig): How texts became sentences.
    train, dev (Sentences): The two parts.
    counts (ndarray): How often each type occurs in train.
    """

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
    dev_fraction: Optional[float] = None,
    dev_texts: Optional[Iterable[str]] = None,
    n_process: int = 1,
) -> dict[str, Any]:
    """Write a corpus. The same texts and settings give the same bytes, whatever `n_process` is.

    folder (Path): The output; an existing one is replaced when the new one is complete.
    vocabulary (Optional[Sequence[str]]): The words to predict, special ones first.
    vocab_size (Optional[int]): Or: the number of words, the most frequent ones.
    min_count (int): Or: the minimum count of a word.
    dev_fraction (Optional[float]): Fraction of the texts that is held out; None for 0.01. A text's
        contents decide, so that a text that occurs twice is never in both parts.
    dev_texts (Optional[Iterable[str]]): Or: the texts that are held out.
    n_process (int): Processes that tokenise.
    RETURNS (dict): The manifest.
    RAISES (ValueError): If there is no text, or too little for both parts.
    """
    # Before anything is read, which can take hours.
    if dev_texts is not None and dev_fraction is not None:
        raise ValueError("--dev names all of the held-out text: leave out --dev-fraction")
    dev_fraction = 0.01 if dev_fraction is None else dev_fraction
    if not 0 < dev_fraction < 1:
        raise ValueError(f"dev_fraction must be between 0 and 1, found {dev_fraction}")
    with atomic_folder(folder) as new:
        with contextlib.ExitStack() as stack:
            # Generators are closed here, so that their processes end with an error or a signal.
            parts = [
                stack.enter_context(contextlib.closing(tokenize(part, tokenization, n_process)))
                for part in ((texts,) if dev_texts is None else (texts, dev_texts))
            ]
            words, lengths, n_texts = _write_tokens(new, parts, dev_fraction)
        counts, n_vocabulary = _number_types(
            new,
            words,
            partial(order_types, vocabulary=vocabulary, size=vocab_size, min_count=min_count),
        )
        for split in SPLITS:
            numpy.cumsum(lengths[split], dtype="int64").tofile(new / f"{split}.ends.bin")
        manifest = {
            "version": VERSION,
            "n_texts": n_texts,
            "n_types": len(counts),
            "n_vocabulary": n_vocabulary,
            "n_tokens": {split: sum(lengths[split]) for split in SPLITS},
            "n_sentences": {split: len(lengths[split]) for split in SPLITS},
            "n_unknown": int(counts[n_vocabulary:].sum()),
            "tokenization": asdict(tokenization),
            "dev_fraction": dev_fraction if dev_texts is None else None,
            "sha256": {name: sha256(new / name) for name in sorted(FILES)},
        }
        manifest["checksum"] = _checksum(manifest)
        (new / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf8")
    return manifest


def _number_types(
    folder: Path, words: list[str], order: Callable[..., tuple[list[str], numpy.ndarray, int]]
) -> tuple[numpy.ndarray, int]:
    """Number the word types anew, as `order_types` says, and write their texts and counts.

    RETURNS (tuple): The counts, and the size of the vocabulary.
    """
    first_counts = numpy.zeros(len(words), dtype="int64")
    for ids in _map_blocks(folder / "train.ids.bin"):
        first_counts += numpy.bincount(ids, minlength=len(words))
    types, final_ids, n_vocabulary = order(words, first_counts.tolist())
    for split in SPLITS:
        for ids in _map_blocks(folder / f"{split}.ids.bin"):
            ids[:] = final_ids[ids]
    counts = numpy.zeros(len(types), dtype="int64")
    counts[final_ids] = first_counts
    counts.tofile(folder / "counts.bin")
    warn_if_unsorted(counts[len(SPECIAL_WORDS) : n_vocabulary])
    warn_if_unsegmented(types, counts)
    with (folder / "types.txt").open("w", encoding="utf8", errors="replace", newline="\n") as file:
        file.writelines(f"{word}\n" for word in types)
    return counts, n_vocabulary


def _write_tokens(
    folder: Path, parts: Sequence[Iterable[tuple[str, list[list[str]]]]], dev_fraction: float
) -> tuple[list[str], dict[str, array[int]], int]:
    """Write the word types of all tokens, numbered as they occur first.

    parts (Sequence): Texts, and their sentences; then those that are held out, if they are given.
    RETURNS (tuple): The types, the lengths of the sentences of each split, and the number of texts.
    RAISES (ValueError): If a split has no sentence.
    """
    next_id = itertools.count(len(SPECIAL_WORDS)).__next__
    ids = defaultdict(next_id, {word: i for i, word in enumerate(SPECIAL_WORDS)})
    lengths = {split: array("q") for split in SPLITS}
    n_texts = 0
    with (folder / "train.ids.bin").open("wb") as train, (folder / "dev.ids.bin").open("wb") as dev:
        for part, text, sentences in (
            (n, *pair) for n, pairs in enumerate(parts) for pair in pairs
        ):
            n_texts += 1
            is_dev = part == 1 if len(parts) == 2 else _is_held_out(text, dev_fraction)
            split, file = ("dev", dev) if is_dev else ("train", train)
            for sentence in sentences:
                array("I", map(ids.__getitem__, sentence)).tofile(file)
                lengths[split].append(len(sentence))
    if not any(lengths.values()):
        raise ValueError("the corpus is empty: no text in the input")
    for split in SPLITS:
        if not lengths[split]:
            raise ValueError(
                f"no sentence of {n_texts} texts is in the part {split!r}: the corpus is too "
                "small, or --dev-fraction too near to 0 or 1, or --dev without text"
            )
    return list(ids), lengths, n_texts


def _is_held_out(text: str, fraction: float) -> bool:
    digest = hashlib.blake2b(text.encode("utf8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") < fraction * 2**64


def _map_blocks(path: Path) -> Iterator[numpy.ndarray]:
    """YIELDS (ndarray): The word types in a file, some millions at a time. Changes are written."""
    ids = numpy.memmap(path, dtype="uint32", mode="r+")
    for start in range(0, len(ids), 1 << 22):
        yield ids[start : start + (1 << 22)]
    ids.flush()


def open_corpus(folder: Path) -> Corpus:
    """Map a corpus into memory, after comparing its checksums.

    folder (Path): The output of `prepare`.
    RAISES (ValueError): If it is no corpus, or has changed since.
    """
    manifest = _read_manifest(folder)
    for name in FILES:
        if not (folder / name).is_file() or sha256(folder / name) != manifest["sha256"][name]:
            raise _changed(folder / name)
    # All that is not mapped is read here: a training continues even if the folder is replaced.
    with (folder / "types.txt").open(encoding="utf8", newline="\n") as file:
        types = [line.rstrip("\n") for line in file]
    splits = {
        split: Sentences(
            numpy.memmap(folder / f"{split}.ids.bin", dtype="uint32", mode="r"),
            numpy.fromfile(folder / f"{split}.ends.bin", dtype="int64"),
            types,
            manifest["n_vocabulary"],
        )
        for split in SPLITS
    }
    counts = numpy.fromfile(folder / "counts.bin", dtype="int64")
    tokenization = TokenizationConfig(**manifest["tokenization"])
    return Corpus(folder, manifest, tokenization, **splits, counts=counts)


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf8"))
    except (OSError, ValueError) as error:
        raise ValueError(
            f"no corpus in {folder} ({error}): make one with `spacy elmo prepare`"
        ) from error
    if not isinstance(manifest, dict) or manifest.get("checksum") != _checksum(manifest):
        raise _changed(path)
    if manifest["version"] != VERSION:
        raise ValueError(
            f"the corpus {folder} is of version {manifest['version']}, this software reads "
            f"{VERSION}: prepare it again"
        )
    return manifest


def _changed(path: Path) -> ValueError:
    return ValueError(
        f"{path} is missing or has changed since `spacy elmo prepare`: prepare the corpus again"
    )


def _checksum(manifest: dict[str, Any]) -> str:
    """RETURNS (str): The checksum of a manifest, without the one in it."""
    others = {name: value for name, value in manifest.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(others, sort_keys=True).encode()).hexdigest()
