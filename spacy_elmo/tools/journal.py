"""A file of finished work, from which an interrupted run continues."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import srsly

from ..files import sync

_START = b"spacy-elmo embed 1\n"
_FRAME = struct.Struct("<cQ")
_SETTINGS, _RECORD, _PORTION = b"S", b"R", b"P"


class Journal:
    """Portions of records, in a file `.OUT.partial` beside the output.

    After its first bytes, the file is a sequence of frames: a letter, the length, the data. S has
    the settings as JSON, each R a record. P ends a portion, and has its checksum. It is written
    after the records are on the disk: records without a P are ignored, and overwritten.

    out (Path): The output.
    """

    def __init__(self, out: Path) -> None:
        out = out.resolve()
        self.path = out.with_name(f".{out.name}.partial")
        # The number of records of each portion, and its checksum.
        self.portions: list[tuple[int, str]] = []
        self._settings: dict[str, str] = {}
        self._end = 0

    def exists(self) -> bool:
        """RETURNS (bool): Whether there is a file, and it is a journal."""
        if not self.path.is_file():
            return False
        with self.path.open("rb") as file:
            # It is shorter if a run was killed at once.
            return _START.startswith(file.read(len(_START)))

    def open(self, settings: dict[str, str], *, discard: bool = False) -> None:
        """Read the portions of an earlier run.

        settings (dict): All that records depend on, besides the input.
        discard (bool): Ignore the earlier run.
        RAISES (ValueError): If it had other settings, or if the file is not a journal.
        """
        self._settings = settings
        if self.path.exists() and not self.exists():
            raise ValueError(
                f"{self.path} was not written by this command, which needs the name: move it away, "
                "or choose another output"
            )
        if discard or not self.path.exists():
            return
        previous, n_records = settings, 0
        for kind, data, end in self._read_frames():
            if kind == _SETTINGS:
                try:
                    previous = dict(srsly.json_loads(data.decode("utf8")))
                except (ValueError, TypeError) as error:
                    message = f"{self.path} is damaged: start afresh with --force"
                    raise ValueError(message) from error
            elif kind == _RECORD:
                n_records += 1
            elif data.isalnum():  # Else zeros, see below.
                self.portions.append((n_records, data.decode("ascii")))
                self._end, n_records = end, 0
        names = sorted(x for x in {*previous, *settings} if previous.get(x) != settings.get(x))
        if self.portions and names:
            differences = ", ".join(f"{name} (was {previous.get(name)})" for name in names)
            raise ValueError(
                f"{self.path} is of an interrupted run that differs in {differences}: start afresh "
                "with --force"
            )

    def append(self, records: Iterable[bytes], checksum: str) -> None:
        """Write a portion."""
        n_records = 0
        with self.path.open("r+b" if self._end else "wb") as file:
            if self._end:
                file.truncate(self._end)
                file.seek(self._end)
            else:
                file.write(_START)
                _write_frame(file, _SETTINGS, srsly.json_dumps(self._settings).encode("utf8"))
            for record in records:
                _write_frame(file, _RECORD, record)
                n_records += 1
            file.flush()
            sync(self.path)
            _write_frame(file, _PORTION, checksum.encode("ascii"))
            self._end = file.tell()
        self.portions.append((n_records, checksum))

    def read_records(self) -> Iterator[bytes]:
        """YIELDS (bytes): The records of all portions."""
        if self._end:
            for kind, data, end in self._read_frames():
                if kind == _RECORD and end <= self._end:
                    yield data

    def _read_frames(self) -> Iterator[tuple[bytes, bytes, int]]:
        """YIELDS (tuple): The letter, the data and the end of each complete frame."""
        size = self.path.stat().st_size
        with self.path.open("rb") as file:
            file.seek(len(_START))
            while len(header := file.read(_FRAME.size)) == _FRAME.size:
                kind, length = _FRAME.unpack(header)
                # After a loss of power, what was not written may be zeros.
                if kind not in b"SRP" or length > size - file.tell():
                    return
                yield kind, file.read(length), file.tell()


def _write_frame(file: BinaryIO, kind: bytes, data: bytes) -> None:
    file.write(_FRAME.pack(kind, len(data)))
    file.write(data)
