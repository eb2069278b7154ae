"""A folder of Parquet files (the extra `arrow`): a row of IDs and vectors for each row of the
input. Parquet's readers skip the other files, whose names begin with an underscore or a dot."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Optional

from ...tools.records import import_arrow
from ..columns import vectors_to_arrow

DEFAULTS = {"layers": "mix", "pool": "doc", "dtype": "float16"}
REFUSED: tuple[str, ...] = ()
PART = ".parquet"
_CHECKSUM = b"spacy-elmo.input"  # In the footer of a part.
join = None


def write_part(path: Path, ids: dict[str, list], rows: Iterable[tuple], checksum: str) -> None:
    """Write the vectors of some rows as one row group."""
    arrow = import_arrow()
    _, vectors, is_null = zip(*rows)
    columns = {name: _column(arrow, values) for name, values in ids.items()}
    table = arrow.table({**columns, "vector": vectors_to_arrow(vectors, is_null)})
    table = table.replace_schema_metadata({_CHECKSUM: checksum.encode()})
    # Vectors do not repeat.
    settings = {"use_dictionary": list(ids), "write_statistics": list(ids), "compression": "zstd"}
    arrow.parquet.write_table(table, path, len(table), write_page_checksum=True, **settings)


def _column(arrow: Any, values: list) -> Any:
    if hasattr(values[0], "type"):  # `array` takes no nested scalars that are null.
        return arrow.concat_arrays([arrow.repeat(scalar, 1) for scalar in values])
    # Without the type, a column of nulls would have another one in this part.
    return arrow.array(values, arrow.string())


def read_part(path: Path) -> Optional[str]:
    """RETURNS (Optional[str]): The checksum of a part; None if it is missing or damaged."""
    parquet = import_arrow().parquet
    try:
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            file.read()  # Each page has a checksum of its own.
            return file.metadata.metadata[_CHECKSUM].decode()
    except (OSError, ValueError, LookupError, TypeError):
        return None
