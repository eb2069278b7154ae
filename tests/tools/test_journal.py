"""The file of an interrupted `spacy elmo embed`, damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from spacy_elmo.tools.journal import Journal

SETTINGS = {"layers": "top"}


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    journal = Journal(tmp_path / "out.npz")
    journal.open(SETTINGS)
    journal.append([b"one", b"two"], "abc")
    journal.append([b"three"], "def")
    return journal


def reopen(journal: Journal, **settings: str) -> Journal:
    other = Journal(journal.path.with_name("out.npz"))
    other.open({**SETTINGS, **settings})
    return other


def test_it_reads_what_was_written(journal: Journal):
    again = reopen(journal)
    assert again.portions == [(2, "abc"), (1, "def")]
    assert list(again.read_records()) == [b"one", b"two", b"three"]
    with pytest.raises(ValueError, match=r"layers \(was top\)"):
        reopen(journal, layers="all")


@pytest.mark.parametrize("length", [2**34, 2**62, 2**63])
def test_a_length_beyond_the_end(journal: Journal, length: int):
    """As if it was cut there: later records are written again."""
    data = journal.path.read_bytes()
    at = data.index(b"three") - 8
    journal.path.write_bytes(data[:at] + length.to_bytes(8, "little") + data[at + 8 :])
    assert reopen(journal).portions == [(2, "abc")]


@pytest.mark.parametrize("settings", [b"\xff" * 15, b"[1" + b" " * 12 + b"]", b"{" + b" " * 14])
def test_damaged_settings(journal: Journal, settings: bytes):
    data = journal.path.read_bytes()
    old = b'{"layers":"top"}'
    assert old in data
    journal.path.write_bytes(data.replace(old, settings + b" "))
    with pytest.raises(ValueError, match=r"\.out\.npz\.partial is damaged.*--force"):
        reopen(journal)
