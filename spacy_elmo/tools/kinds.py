"""What the suffixes of files of texts mean."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Union

Source = Union[Path, str]

STDIN = Path("-")
LINES, JSON, TABLE, DOCS, PARQUET = "lines", "json", "table", "docs", "parquet"
# What a suffix means. A name has the meaning of its last suffix that is here, whatever follows,
# such as .gz or .part1; without one, it has lines.
KINDS = {
    ".txt": LINES,
    ".jsonl": JSON,
    ".ndjson": JSON,
    ".csv": TABLE,
    ".tsv": TABLE,
    ".spacy": DOCS,
    ".parquet": PARQUET,
}
# Known formats that are not read, and what to do with them.
_ADVICE = {
    ".json .geojson": "name it .jsonl if it has an object per line, or else write it so",
    ".conllu .conllubio .conll .conllx .iob .iob2 .ner": "`python -m spacy convert FILE "
    "FOLDER` makes a .spacy file of it",
    ".html .htm .xhtml .xml .pdf .doc .docx .odt .rtf .epub": "write its text to a .txt file, "
    "a text per line",
    ".xlsx .xls .ods": "save it as .csv",
    ".arrow .feather .orc .avro .db .sqlite .sqlite3 .pkl .pickle": "write it as .parquet, .csv or "
    ".jsonl",
    ".npy .npz .hdf5 .h5 .safetensors": "it has arrays, not text",
    ".zip .tar .tgz .tbz2 .txz .7z .rar": "unpack it",
}
_REFUSED = {suffix: advice for suffixes, advice in _ADVICE.items() for suffix in suffixes.split()}
_COMPRESSIONS = ("", ".gz", ".zst", ".bz2", ".xz")
# Of the files that are read in a folder.
SUFFIXES = tuple(x + end for x in KINDS if KINDS[x] != PARQUET for end in _COMPRESSIONS)


def path_of(source: Source) -> str:
    """RETURNS (str): A path, or a URL without its query, such as a signature."""
    return str(source) if isinstance(source, Path) else source.partition("?")[0]


def suffix_of(source: Source) -> str:
    """RETURNS (str): The suffix that says of what kind a source is; empty if none does."""
    suffixes = [f".{x}" for x in os.path.basename(path_of(source)).lower().split(".")[1:]]
    return next((x for x in reversed(suffixes) if x in KINDS or x in _REFUSED), "")


def kind_of(source: Source) -> str:
    """RETURNS (str): How a source is read."""
    return KINDS.get(suffix_of(source), LINES)


def check_kind(source: Source, *, columns: bool, parquet: bool) -> None:
    """Check that a source is of a kind that is read.

    columns (bool): Whether the user has named columns.
    parquet (bool): Whether Parquet is read.
    RAISES (ValueError): If it is not, or if it has no columns.
    """
    suffix, kind = suffix_of(source), kind_of(source)
    if suffix in _REFUSED:
        raise ValueError(f"{source}: {suffix} is not read: {_REFUSED[suffix]}")
    if kind == PARQUET and not parquet:
        raise ValueError(
            f"{source}: only `spacy elmo embed` with an output in .parquet reads .parquet: write "
            "it as .csv or .jsonl"
        )
    if columns and kind in (LINES, DOCS):
        raise ValueError(
            f"{source}: its {'docs' if kind == DOCS else 'lines'} have no columns: leave out "
            "--text and --id, or give .csv, .tsv, .jsonl or .parquet"
        )
