"""A corpus as arrays that training maps into memory.

Files of a folder:

| file            | what                                                                        |
|-----------------|-----------------------------------------------------------------------------|
| manifest.json   | version, counts, settings, sha256 of the other files and of the manifest     |
| train.ids.bin   | word types of all tokens, uint32                                             |
| train.ends.bin  | where each sentence ends, in tokens, int64                                   |
| dev.*.bin       | the same for the held-out part                                               |
| types.txt       | the texts of the word types by id: special words, vocabulary, others by      |
|                 | falling frequency                                                            |
| counts.bin      | how often each type occurs in train, int64                                   |
| characters.bin  | shifted character ids of the types, int16 (types, longest)                   |
| lengths.bin     | character ids per type that are not padding, uint16                          |
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

from ..bilm.characters import PADDING, SHIFT, character_ids
from ..bilm.config import N_CHARACTERS
from ..files import atomic_folder, sha256
from .tokenize import Tokenization, tokenize
from .vocabulary import SPECIALS, VocabularySettings, order_types

VERSION = 1
MANIFEST = "manifest.json"
SPLITS = ("train", "dev")
_FILES = (
    *(f"{split}.{name}.bin" for split in SPLITS for name in ("ids", "ends")),
    *("types.txt", "counts.bin", "characters.bin", "lengths.bin"),
)
# What lengths.bin can hold.
MAX_CHARACTERS = 2**16 - 1
_TYPES_PER_CHUNK = 100_000


@dataclass(frozen=True)
class Sentences:
    """One part of a corpus.

    ids (ndarray): Word types of all tokens.
    ends (ndarray): Where each sentence ends.
    """

    ids: numpy.ndarray
    ends: numpy.ndarray

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def lengths(self) -> numpy.ndarray:
        return numpy.diff(self.ends, prepend=0)


@dataclass(frozen=True)
class Corpus:
    """A prepared corpus.

    folder (Path): Where it lies.
    manifest (dict): Counts, settings, checksums.
    train, dev (Sentences): The two parts.
    words (list[str]): What is predicted, special words first.
    counts (ndarray): How often each type occurs in train.
    characters (ndarray): Shifted character ids of the types, shape (types, longest).
    lengths (ndarray): Character ids per type that are not padding.
    """

    folder: Path
    manifest: dict[str, Any]
    train: Sentences
    dev: Sentences
    words: list[str]
    counts: numpy.ndarray
    characters: numpy.ndarray
    lengths: numpy.ndarray

    @property
    def n_vocabulary(self) -> int:
        """Words that are predicted, special ones included; types from here on are `<UNK>`."""
        return len(self.words)


def prepare(
    texts: Iterable[str],
    folder: Path,
    tokenization: Tokenization,
    vocabulary: VocabularySettings,
    *,
    dev_fraction: float = 0.01,
    max_characters: int = 50,
    n_process: int = 1,
) -> dict[str, Any]:
    """Write a corpus. What is written depends neither on the number of processes nor on the time.

    texts (Iterable[str]): The texts.
    folder (Path): Where to; an existing one is replaced when the new one is complete.
    tokenization (Tokenization): How texts become sentences.
    vocabulary (VocabularySettings): Which words are predicted.
    dev_fraction (float): The part of the texts that is held out. Which ones depends on their
        contents alone, so that a text that occurs twice is never in both parts.
    max_characters (int): Character ids per type at most.
    n_process (int): Processes that tokenise.
    RETURNS (dict): The manifest.
    RAISES (ValueError): If there is no text, or too little for both parts.
    """
    if not 0 < dev_fraction < 1:
        raise ValueError(f"dev_fraction must be between 0 and 1, found {dev_fraction}")
    with atomic_folder(folder) as new:
        ids: dict[str, int] = {word: i for i, word in enumerate(SPECIALS)}
        counts = array("q", [0] * len(SPECIALS))
        ends = {split: array("q") for split in SPLITS}
        n_tokens = dict.fromkeys(SPLITS, 0)
        raw = {split: (new / f"{split}.raw").open("wb") for split in SPLITS}
        n_texts = 0
        for part, chunk in tokenize(texts, tokenization, n_process):
            provisional = numpy.array(
                [ids.setdefault(word, len(ids)) for word in chunk.words], dtype=numpy.uint32
            )
            counts.extend([0] * (len(ids) - len(counts)))
            held_out = numpy.array([_is_held_out(text, dev_fraction) for text in part], dtype=bool)
            n_texts += len(part)
            tokens = provisional[chunk.ids]
            in_dev = held_out[chunk.texts] if len(chunk.texts) else chunk.texts.astype(bool)
            for split, sentences in zip(SPLITS, (~in_dev, in_dev)):
                found = tokens[numpy.repeat(sentences, chunk.lengths)]
                raw[split].write(found.tobytes())
                lengths = chunk.lengths[sentences]
                ends[split].extend((numpy.cumsum(lengths) + n_tokens[split]).tolist())
                n_tokens[split] += len(found)
                if split == "train":
                    types, numbers = numpy.unique(found, return_counts=True)
                    for word, number in zip(types.tolist(), numbers.tolist()):
                        counts[word] += number
        for file in raw.values():
            file.close()
        _check_sizes(n_texts, ends)
        words = list(ids)
        order, n_vocabulary = order_types(words[3:], counts[3:], vocabulary)
        given = vocabulary.words or ()
        texts_in_order = [
            *SPECIALS,
            *(words[3 + i] if i >= 0 else given[3 + at] for at, i in enumerate(order)),
        ]
        _write_types(texts_in_order, max_characters, new)
        final = numpy.zeros(len(ids), dtype=numpy.uint32)
        final[:3] = range(3)
        sources = numpy.array(order, dtype=numpy.int64)
        occurring = numpy.flatnonzero(sources >= 0)
        final[3 + sources[occurring]] = 3 + occurring
        in_order = numpy.zeros(len(texts_in_order), dtype=numpy.int64)
        in_order[final] = numpy.frombuffer(counts, dtype=numpy.int64)
        in_order.tofile(new / "counts.bin")
        if not _falls(in_order[3:n_vocabulary]):
            warnings.warn(
                "the words of the vocabulary are not sorted by falling frequency, from which a "
                "sampled or adaptive softmax knows how frequent they are: sort them",
                stacklevel=2,
            )
        for split in SPLITS:
            _renumber(new / f"{split}.raw", new / f"{split}.ids.bin", final)
            numpy.frombuffer(ends[split], dtype=numpy.int64).tofile(new / f"{split}.ends.bin")
        manifest = {
            "version": VERSION,
            "n_texts": n_texts,
            "n_types": len(texts_in_order),
            "n_vocabulary": n_vocabulary,
            "n_tokens": n_tokens,
            "n_sentences": {split: len(ends[split]) for split in SPLITS},
            "n_unknown": int(in_order[n_vocabulary:].sum()),
            "max_characters": max_characters,
            "tokenization": asdict(tokenization),
            "dev_fraction": dev_fraction,
            "sha256": {path.name: sha256(path) for path in sorted(new.glob("*.*"))},
        }
        manifest["checksum"] = _checksum(manifest)
        (new / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf8")
    return manifest


def open_corpus(folder: Path, *, check: bool = True) -> Corpus:
    """Map a corpus into memory.

    folder (Path): What `prepare` wrote.
    check (bool): Compare the checksums of all files.
    RAISES (ValueError): If it is none, or has changed since.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf8"))
    except (OSError, ValueError) as error:
        raise ValueError(
            f"no corpus in {folder} ({error}): make one with `spacy elmo prepare`"
        ) from error
    version = manifest.get("version") if isinstance(manifest, dict) else None
    if version != VERSION:
        raise ValueError(
            f"the corpus {folder} is of version {version}, this software reads {VERSION}: prepare "
            "it again"
        )
    # Those that were prepared before manifests had a checksum have none.
    if "checksum" in manifest and manifest["checksum"] != _checksum(manifest):
        raise _changed(folder / MANIFEST)
    expected = {
        **dict.fromkeys(("n_types", "n_vocabulary", "n_unknown", "max_characters"), 0),
        "n_tokens": dict.fromkeys(SPLITS, 0),
        "tokenization": asdict(Tokenization()),
        "sha256": dict.fromkeys(_FILES, ""),
    }
    if wrong := _wrong_types(manifest, expected):
        raise _changed(folder / MANIFEST, f"{wrong} is missing or of another type")
    n_types, n_vocabulary = manifest["n_types"], manifest["n_vocabulary"]
    sums, n_tokens = manifest["sha256"], manifest["n_tokens"]
    for name in _FILES:
        path = folder / name
        if not path.is_file() or (check and sha256(path) != sums[name]):
            raise _changed(path)
    parts = {}
    for split in SPLITS:
        path = folder / f"{split}.ids.bin"
        ends = numpy.fromfile(folder / f"{split}.ends.bin", dtype="int64")
        if path.stat().st_size != 4 * n_tokens[split]:
            raise _changed(path, f"it should have {n_tokens[split]} words")
        if not len(ends) or ends[-1] != n_tokens[split] or numpy.diff(ends, prepend=0).min() < 1:
            raise _changed(folder / f"{split}.ends.bin", f"it should end with {n_tokens[split]}")
        parts[split] = Sentences(numpy.memmap(path, dtype="uint32", mode="r"), ends)
        if check and parts[split].ids.max() >= n_types:
            raise _changed(path, f"it has words that are none of the {n_types} types")
    # All that is not mapped is read now: a training goes on even if the folder is replaced.
    path = folder / "types.txt"
    with path.open(encoding="utf8", errors="replace", newline="\n") as file:
        words = [line.rstrip("\n") for line, _ in zip(file, range(n_vocabulary))]
    if tuple(words[:3]) != SPECIALS or not len(words) == n_vocabulary <= n_types:
        raise _changed(path, f"it should begin with the {n_vocabulary} words of the vocabulary")
    counts = numpy.fromfile(folder / "counts.bin", dtype="int64")
    if len(counts) != n_types or counts[n_vocabulary:].sum() != manifest["n_unknown"]:
        raise _changed(folder / "counts.bin", "it does not fit the vocabulary")
    lengths = numpy.fromfile(folder / "lengths.bin", dtype="uint16").astype("int64")
    path = folder / "characters.bin"
    if len(lengths) != n_types or path.stat().st_size != 2 * n_types * lengths.max():
        raise _changed(path, f"it does not fit the lengths of {n_types} types")
    if lengths.min() < 1:
        raise _changed(folder / "lengths.bin", "it has words without characters")
    characters = numpy.memmap(path, dtype="int16", mode="r")
    if check and not 0 <= characters.min() <= characters.max() < N_CHARACTERS:
        raise _changed(path, f"it has characters that are not in 0..{N_CHARACTERS - 1}")
    return Corpus(
        folder,
        manifest,
        **parts,
        words=words,
        counts=counts,
        characters=characters.reshape(n_types, -1),
        lengths=lengths,
    )


def _wrong_types(found: Any, expected: dict[str, Any], prefix: str = "") -> str:
    """RETURNS (str): The first name in `expected` whose value is missing or of another type; "" if
    there is none."""
    for name, value in expected.items():
        if type(found.get(name)) is not type(value):
            return prefix + name
        if isinstance(value, dict) and (wrong := _wrong_types(found[name], value, f"{name}.")):
            return wrong
    return ""


def _changed(path: Path, why: str = "") -> ValueError:
    return ValueError(
        f"{path} is missing or has changed since `spacy elmo prepare`"
        f"{why and f' ({why})'}: prepare the corpus again"
    )


def _checksum(manifest: dict[str, Any]) -> str:
    """RETURNS (str): The checksum of a manifest, without that in it."""
    others = {name: value for name, value in manifest.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(others, sort_keys=True).encode()).hexdigest()


def _falls(counts: numpy.ndarray) -> bool:
    """RETURNS (bool): Whether numbers fall by and large: those of a vocabulary that was sorted by
    the frequencies in another text do, those of one in alphabetical order do not."""
    counts = counts[counts > 0]
    if len(counts) < 20:  # Too few to tell.
        return True
    ranks = numpy.argsort(numpy.argsort(-counts, kind="stable"), kind="stable")
    return bool(numpy.corrcoef(ranks, numpy.arange(len(counts)))[0, 1] > 0.2)


def _is_held_out(text: str, fraction: float) -> bool:
    digest = hashlib.blake2b(text.encode("utf8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") < fraction * 2**64


def _check_sizes(n_texts: int, ends: dict[str, Any]) -> None:
    if not n_texts or not any(map(len, ends.values())):
        raise ValueError("the corpus is empty: no text in the input")
    for split in SPLITS:
        if not len(ends[split]):
            raise ValueError(
                f"no sentence of {n_texts} texts is in the part {split!r}: the corpus is too "
                "small, or --dev-fraction too near to 0 or 1"
            )


def _write_types(words: list[str], max_characters: int, folder: Path) -> None:
    with (folder / "types.txt").open("w", encoding="utf8", errors="replace", newline="\n") as file:
        file.writelines(f"{word}\n" for word in words)
    longest = 0
    lengths = []
    for start in range(0, len(words), _TYPES_PER_CHUNK):
        _, found = character_ids(words[start : start + _TYPES_PER_CHUNK], max_characters)
        lengths.append(found)
        longest = max(longest, int(found.max()))
    numpy.concatenate(lengths).astype("uint16").tofile(folder / "lengths.bin")
    with (folder / "characters.bin").open("wb") as file:
        for start in range(0, len(words), _TYPES_PER_CHUNK):
            found, _ = character_ids(words[start : start + _TYPES_PER_CHUNK], max_characters)
            padded = numpy.full((len(found), longest), PADDING + SHIFT, dtype="int16")
            padded[:, : found.shape[1]] = found
            file.write(padded.tobytes())


def _renumber(source: Path, target: Path, final: numpy.ndarray) -> None:
    with source.open("rb") as reader, target.open("wb") as writer:
        while block := reader.read(1 << 24):
            writer.write(final[numpy.frombuffer(block, dtype=numpy.uint32)].tobytes())
    source.unlink()
