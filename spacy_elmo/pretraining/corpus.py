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

Version 1 also has the types' character ids (characters.bin, lengths.bin), which are not read.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from array import array
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy

from ..bilm.validation import validate
from ..files import atomic_folder, sha256
from .tokenize import TokenizationConfig, tokenize
from .vocabulary import BOS_ID, EOS_ID, SPECIALS, UNK_ID, VocabularyConfig, order_types

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
    n_vocabulary (int): Words that are predicted, special ones included; types from here on are
        predicted as `<UNK>`.
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
    vocabulary: VocabularyConfig,
    *,
    dev_fraction: float = 0.01,
    n_process: int = 1,
) -> dict[str, Any]:
    """Write a corpus. The same texts and settings give the same bytes, whatever `n_process` is.

    texts (Iterable[str]): The texts.
    folder (Path): The output; an existing one is replaced when the new one is complete.
    tokenization (TokenizationConfig): How texts become sentences.
    vocabulary (VocabularyConfig): Which words are predicted.
    dev_fraction (float): Fraction of the texts that is held out. A text's contents decide, so that
        a text that occurs twice is never in both parts.
    n_process (int): Processes that tokenise.
    RETURNS (dict): The manifest.
    RAISES (ValueError): If there is no text, or too little for both parts.
    """
    if not 0 < dev_fraction < 1:
        raise ValueError(f"dev_fraction must be between 0 and 1, found {dev_fraction}")
    with atomic_folder(folder) as new:
        splits = {split: _Split(new, split) for split in SPLITS}
        ids: dict[str, int] = {word: i for i, word in enumerate(SPECIALS)}
        counts = array("q", [0] * len(SPECIALS))
        n_texts = 0
        for chunk_texts, chunk in tokenize(texts, tokenization, n_process):
            n_texts += len(chunk_texts)
            provisional = [ids.setdefault(word, len(ids)) for word in chunk.words]
            counts.extend([0] * (len(ids) - len(counts)))
            tokens = numpy.array(provisional, dtype=numpy.uint32)[chunk.ids]
            held_out = numpy.array([_is_held_out(t, dev_fraction) for t in chunk_texts], dtype=bool)
            in_dev = held_out[chunk.texts]
            splits["dev"].write(tokens, chunk.lengths, in_dev)
            train_tokens = splits["train"].write(tokens, chunk.lengths, ~in_dev)
            for word, count in zip(*numpy.unique(train_tokens, return_counts=True)):
                counts[word] += count
        _check_sizes(n_texts, splits)
        types, final_ids, n_vocabulary = order_types(list(ids), counts, vocabulary)
        for split in splits.values():
            split.finish(final_ids)
        counts_by_type = numpy.zeros(len(types), dtype=numpy.int64)
        counts_by_type[final_ids] = counts
        counts_by_type.tofile(new / "counts.bin")
        _warn_if_unsorted(counts_by_type[len(SPECIALS) : n_vocabulary])
        path = new / "types.txt"
        with path.open("w", encoding="utf8", errors="replace", newline="\n") as file:
            file.writelines(f"{word}\n" for word in types)
        manifest = {
            "version": VERSION,
            "n_texts": n_texts,
            "n_types": len(types),
            "n_vocabulary": n_vocabulary,
            "n_tokens": {name: split.n_tokens for name, split in splits.items()},
            "n_sentences": {name: len(split.ends) for name, split in splits.items()},
            "n_unknown": int(counts_by_type[n_vocabulary:].sum()),
            "tokenization": asdict(tokenization),
            "dev_fraction": dev_fraction,
            "sha256": {name: sha256(new / name) for name in sorted(FILES)},
        }
        manifest["checksum"] = _checksum(manifest)
        (new / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf8")
    return manifest


class _Split:
    """One part of a corpus while it is written, with provisional ids of types."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / f"{name}.ids.bin"
        self.ends_path = folder / f"{name}.ends.bin"
        self.raw_path = folder / f"{name}.raw"
        self.raw = self.raw_path.open("wb")
        self.ends = array("q")
        self.n_tokens = 0

    def write(
        self, tokens: numpy.ndarray, lengths: numpy.ndarray, chosen: numpy.ndarray
    ) -> numpy.ndarray:
        """Write the chosen ones of some sentences. RETURNS (ndarray): Their tokens."""
        tokens = tokens[numpy.repeat(chosen, lengths)]
        self.raw.write(tokens.tobytes())
        self.ends.extend((numpy.cumsum(lengths[chosen]) + self.n_tokens).tolist())
        self.n_tokens += len(tokens)
        return tokens

    def finish(self, final_ids: numpy.ndarray) -> None:
        """Replace provisional ids by final ones."""
        self.raw.close()
        with self.raw_path.open("rb") as reader, self.path.open("wb") as writer:
            while block := reader.read(1 << 24):
                writer.write(final_ids[numpy.frombuffer(block, dtype=numpy.uint32)].tobytes())
        self.raw_path.unlink()
        numpy.frombuffer(self.ends, dtype=numpy.int64).tofile(self.ends_path)


def open_corpus(folder: Path) -> Corpus:
    """Map a corpus into memory, after comparing its checksums.

    folder (Path): The output of `prepare`.
    RAISES (ValueError): If it is no corpus, or has changed since.
    """
    manifest = _read_manifest(folder)
    try:
        tokenization = validate(TokenizationConfig, manifest["tokenization"], "tokenization.")
    except (KeyError, ValueError) as error:
        raise _changed(folder / MANIFEST, str(error)) from error
    try:
        return _open(folder, manifest, tokenization)
    except (KeyError, TypeError) as error:  # Only with a manifest without a checksum.
        raise _changed(folder / MANIFEST, repr(error)) from error


def _open(folder: Path, manifest: dict[str, Any], tokenization: TokenizationConfig) -> Corpus:
    for name in FILES:
        expected, path = manifest["sha256"][name], folder / name
        if not path.is_file() or sha256(path) != expected:
            raise _changed(path)
    # All that is not mapped is read here: a training continues even if the folder is replaced.
    path = folder / "types.txt"
    with path.open(encoding="utf8", newline="\n") as file:
        types = [line.rstrip("\n") for line in file]
    n_types, n_vocabulary = manifest["n_types"], manifest["n_vocabulary"]
    if tuple(types[:3]) != SPECIALS or not 3 <= n_vocabulary <= len(types) == n_types:
        raise _changed(path, f"it should have {n_types} types")
    counts = numpy.fromfile(folder / "counts.bin", dtype="int64")
    if len(counts) != n_types or counts[n_vocabulary:].sum() != manifest["n_unknown"]:
        raise _changed(folder / "counts.bin", "it does not fit the vocabulary")
    parts = {}
    for split in SPLITS:
        path, n_tokens = folder / f"{split}.ids.bin", manifest["n_tokens"][split]
        if path.stat().st_size != 4 * n_tokens:
            raise _changed(path, f"it should have {n_tokens} words")
        ids = numpy.memmap(path, dtype="uint32", mode="r")
        if ids.max() >= n_types:
            raise _changed(path, f"it has words that are none of the {n_types} types")
        path = folder / f"{split}.ends.bin"
        ends = numpy.fromfile(path, dtype="int64")
        if not len(ends) or ends[-1] != n_tokens or numpy.diff(ends, prepend=0).min() < 1:
            raise _changed(path, f"it should end with {n_tokens}")
        parts[split] = Sentences(ids, ends, types, n_vocabulary)
    return Corpus(folder, manifest, tokenization, **parts, counts=counts)


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf8"))
    except (OSError, ValueError) as error:
        raise ValueError(
            f"no corpus in {folder} ({error}): make one with `spacy elmo prepare`"
        ) from error
    version = manifest.get("version") if isinstance(manifest, dict) else None
    if version not in (1, VERSION):
        raise ValueError(
            f"the corpus {folder} is of version {version}, this software reads 1 to {VERSION}: "
            "prepare it again"
        )
    # Early manifests of version 1 have no checksum.
    if manifest.get("checksum", _checksum(manifest)) != _checksum(manifest):
        raise _changed(path)
    return manifest


def _changed(path: Path, why: str = "") -> ValueError:
    return ValueError(
        f"{path} is missing or has changed since `spacy elmo prepare`"
        f"{why and f' ({why})'}: prepare the corpus again"
    )


def _checksum(manifest: dict[str, Any]) -> str:
    """RETURNS (str): The checksum of a manifest, without the one in it."""
    others = {name: value for name, value in manifest.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(others, sort_keys=True).encode()).hexdigest()


def _warn_if_unsorted(counts: numpy.ndarray) -> None:
    """Warn if counts do not fall with the rank, by and large. Those of a vocabulary that is sorted
    by the frequencies in another text do; those of an alphabetical one do not."""
    counts = counts[counts > 0]
    if len(counts) < 20:  # Too few to tell.
        return
    ranks = numpy.argsort(numpy.argsort(-counts, kind="stable"), kind="stable")
    if numpy.corrcoef(ranks, numpy.arange(len(counts)))[0, 1] <= 0.2:
        warnings.warn(
            "the words of the vocabulary are not sorted by falling frequency, which a sampled or "
            "adaptive softmax takes for granted: sort them",
            stacklevel=3,
        )


def _is_held_out(text: str, fraction: float) -> bool:
    digest = hashlib.blake2b(text.encode("utf8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") < fraction * 2**64


def _check_sizes(n_texts: int, splits: dict[str, _Split]) -> None:
    if not any(split.ends for split in splits.values()):
        raise ValueError("the corpus is empty: no text in the input")
    for name, split in splits.items():
        if not split.ends:
            raise ValueError(
                f"no sentence of {n_texts} texts is in the part {name!r}: the corpus is too "
                "small, or --dev-fraction too near to 0 or 1"
            )
