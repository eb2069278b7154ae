"""Build the corpus that en_elmo_sm is pretrained on, from a folder of texts.

    python project/en_elmo_sm/corpus.py DATA OUT

DATA is `$SPACY_ELMO_SHARED/data`; sources.py says what it has. OUT gets

    text/SOURCE.txt      a paragraph per line
    held_out/SOURCE.txt  the same of paragraphs that are not trained on, for perplexity
    prepared/            the arrays for `spacy elmo pretrain`, in which sources have their `times`
    vocab.txt            its vocabulary
    state/               what an interrupted run continues with

and the tables of the mix are printed. The same texts give the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import spacy
from cleaning import Filter, Words, fingerprint, form
from sources import BENCHMARKS, SOURCES, Source
from wasabi import msg

from spacy_elmo.cli.prepare import prepare_files
from spacy_elmo.cli.util import exit_on_error
from spacy_elmo.files import atomic_file, clear_temporary, locked_output, sha256
from spacy_elmo.pretraining.corpus import MANIFEST, open_corpus
from spacy_elmo.pretraining.tokenize import TokenizationConfig
from spacy_elmo.tools.records import Reader

MAX_SHARE = 1 / 3
# Of the paragraphs, for the perplexity that training reports.
DEV_FRACTION = 0.002
CODE = [Path(__file__).parent / name for name in ("corpus.py", "cleaning.py", "sources.py")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--vocab-size", type=int, default=100_000)
    parser.add_argument("--n-process", type=int, default=1, help="Processes that tokenise")
    args = parser.parse_args()
    with exit_on_error(), locked_output(args.out):
        records = build(args.data, args.out, SOURCES)
        prepare_corpus(args.out, records, args.vocab_size, args.n_process)


def build(data: Path, out: Path, sources: Sequence[Source]) -> list[dict[str, Any]]:
    """Write what is missing, and print the table.

    RETURNS (list): A record per source.
    RAISES (ValueError): If a text is missing, or a kind of text is more than a third.
    """
    for source in sources:
        if not (data / source.path).exists():
            raise ValueError(
                f"{data / source.path} is missing: DATA is the folder of all texts, "
                "$SPACY_ELMO_SHARED/data"
            )
    for name in ("state", "text", "held_out"):
        (out / name).mkdir(parents=True, exist_ok=True)
        clear_temporary(out / name)  # Of a run that was killed.
    words = Words()
    code = "".join(map(sha256, CODE))
    benchmarks = read_benchmarks(data, out / "state", words, code)
    seen: set[int] = set()
    records = []
    # The key of a source also depends on the ones before it, whose sentences are left out of it.
    key = code
    for source in sources:
        key = _digest(key, source.name, _digest_path(data / source.path))
        record = read_record(out, source, key)
        if record is None:
            record = write_source(data, out, source, key, Filter(benchmarks, seen, words))
        seen.update(numpy.load(out / "state" / f"{source.name}.npy").tolist())
        records.append({**record, "kind": source.kind, "times": source.times})
    print_tables(records)
    check_balance(records)
    return records


def prepare_corpus(
    out: Path, records: Sequence[dict[str, Any]], vocab_size: int, n_process: int
) -> None:
    """Tokenise text/ to prepared/, and write vocab.txt, unless an earlier run has."""
    files = [out / "text" / f"{r['name']}.txt" for r in records for _ in range(r["times"])]
    digests = {file: sha256(file) for file in set(files)}
    tokenization = TokenizationConfig()
    settings = (str(x) for x in (vocab_size, DEV_FRACTION, tokenization, spacy.__version__))
    key = _digest(*settings, *(digests[file] for file in files))
    path = out / "state" / "prepared.json"
    is_there = path.exists() and (out / "prepared" / MANIFEST).is_file()
    if is_there and json.loads(path.read_text(encoding="utf8"))["key"] == key:
        msg.info(f"{out / 'prepared'} is there already")
        return
    arguments = {
        "tokenization": tokenization,
        "vocab_size": vocab_size,
        "dev_fraction": DEV_FRACTION,
        "n_process": n_process,
    }
    names = [str(file) for file in files]
    prepare_files(names, out / "prepared", Reader(), True, arguments)
    with atomic_file(out / "vocab.txt") as new:
        words = open_corpus(out / "prepared").words
        new.write_text("".join(f"{word}\n" for word in words), encoding="utf8", newline="\n")
    with atomic_file(path) as new:
        new.write_text(json.dumps({"key": key}) + "\n", encoding="utf8")


def read_benchmarks(data: Path, state: Path, words: Words, code: str) -> dict[str, numpy.ndarray]:
    """RETURNS (dict): The hashes of the benchmarks, which are kept in a file each."""
    benchmarks = {}
    for name, (folder, read) in BENCHMARKS.items():
        path = state / f"{folder}-{_digest(code, _digest_path(data / folder))[:16]}.npy"
        if not path.exists():
            hashes = fingerprint(read(data / folder), words)
            if not len(hashes):
                raise ValueError(f"{data / folder} has no text of {name}")
            _save(path, hashes)
        benchmarks[name] = numpy.load(path)
        msg.info(f"{name}: {len(benchmarks[name]):,} stretches of words and sentences")
    return benchmarks


def read_record(out: Path, source: Source, key: str) -> dict[str, Any] | None:
    """RETURNS (Optional[dict]): What an earlier run wrote about a source, if it is still right."""
    path = out / "state" / f"{source.name}.json"
    if not path.exists():
        return None
    record = json.loads(path.read_text(encoding="utf8"))
    names = [out / part / f"{source.name}.txt" for part in ("text", "held_out")]
    is_complete = all(name.is_file() for name in names) and record["key"] == key
    return record if is_complete else None


def write_source(data: Path, out: Path, source: Source, key: str, select: Filter) -> dict[str, Any]:
    """Write text/NAME.txt, held_out/NAME.txt, the hashes of the sentences, and the record, which
    comes last.

    RETURNS (dict): The record.
    RAISES (ValueError): If a source has no text.
    """
    counts: Counter[str] = Counter()
    text, held_out = (out / part / f"{source.name}.txt" for part in ("text", "held_out"))
    with (
        atomic_file(text) as new_text,
        atomic_file(held_out) as new_held_out,
        new_text.open("w", encoding="utf8", newline="\n", errors="replace") as text_file,
        new_held_out.open("w", encoding="utf8", newline="\n", errors="replace") as held_out_file,
    ):
        for paragraph, is_held_out in select(source.read(data / source.path)):
            file = held_out_file if is_held_out else text_file
            file.write(form(paragraph) + "\n")
            counts["held_out" if is_held_out else "words"] += len(paragraph.split())
        if not counts["words"]:
            raise ValueError(
                f"{data / source.path} has no text for {source.name!r}: complete the folder of all "
                "texts, or take the source out of sources.py"
            )
    _save(out / "state" / f"{source.name}.npy", numpy.array(sorted(select.own), dtype="uint64"))
    dropped = dict(select.dropped)
    record = {"key": key, "name": source.name, **dict(counts), "dropped": dropped}
    with atomic_file(out / "state" / f"{source.name}.json") as new:
        new.write_text(json.dumps(record, indent=2) + "\n", encoding="utf8")
    msg.good(f"{text}: {counts['words']:,} words")
    return record


def check_balance(records: Sequence[dict[str, Any]]) -> None:
    """RAISES (ValueError): If a kind of text is more than a third of the words read."""
    total = sum(record["words"] * record["times"] for record in records)
    for kind, words in _kinds(records).items():
        if words > MAX_SHARE * total:
            raise ValueError(
                f"{words / total:.0%} of the words read are of the kind {kind!r}, more than a "
                "third: change `times` in sources.py"
            )


def _kinds(records: Sequence[dict[str, Any]]) -> Counter[str]:
    kinds: Counter[str] = Counter()
    for record in records:
        kinds[record["kind"]] += record["words"] * record["times"]
    return kinds


def print_tables(records: Sequence[dict[str, Any]]) -> None:
    """Print, in Markdown, the mix, the shares of the kinds, and what was left out."""
    total = sum(record["words"] * record["times"] for record in records)
    rows = [
        (r["name"], r["kind"], r["dropped"]["sentences"] - _n_dropped(r), r["words"], r["times"],
         f"{r['words'] * r['times'] / total:.1%}", r.get("held_out", 0))
        for r in records
    ]  # fmt: skip
    n_sentences, n_held_out = sum(row[2] for row in rows), sum(row[6] for row in rows)
    rows.append(("total read", "", n_sentences, total, "", "100%", n_held_out))
    _print(("source", "kind", "sentences", "words", "times", "share", "words held out"), rows)
    kinds = _kinds(records).most_common()
    _print(("kind", "words read", "share"), [(k, n, f"{n / total:.1%}") for k, n in kinds])
    reasons = ("sentences", "not prose", *BENCHMARKS, "in another source", "repeated")
    dropped = [(r["name"], *(r["dropped"].get(x, 0) for x in reasons)) for r in records]
    dropped.append(("total", *(sum(row[i + 1] for row in dropped) for i in range(len(reasons)))))
    _print(("source", *reasons), dropped)


def _n_dropped(record: dict[str, Any]) -> int:
    return sum(n for reason, n in record["dropped"].items() if reason != "sentences")


def _print(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    print("\n| " + " | ".join(header) + " |\n|" + "---|" * len(header))
    for row in rows:
        print("| " + " | ".join(f"{x:,}" if isinstance(x, int) else str(x) for x in row) + " |")


def _save(path: Path, array: numpy.ndarray) -> None:
    with atomic_file(path) as new, new.open("wb") as file:
        numpy.save(file, array)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _digest_path(path: Path) -> str:
    """RETURNS (str): A checksum of a file and of the index beside it, or of a folder's files."""
    if path.is_file():
        index = path.parent / "index.jsonl"
        return _digest(sha256(path), sha256(index) if index.is_file() else "")
    return _digest(*(f"{x.name} {sha256(x)}" for x in sorted(path.iterdir()) if x.is_file()))


if __name__ == "__main__":
    main()
