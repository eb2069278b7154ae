"""The outputs of `spacy elmo embed`, each a module. An output is written in parts (see `job`):

DEFAULTS     The layers, the pool and the dtype, unless the user chooses others.
REFUSED      Options of the command that it cannot honour.
PART         The suffix of a part.
write_part   (path, ids, rows, checksum): Write a part. `rows` are what `EmbedColumns.stream`
             yields, `ids` the columns that are carried through.
read_part    (path): The checksum of a part; None if it is missing or damaged.
join         (parts, out): Write the output of parts, which are those of `npz`. None if the
             folder of parts is the output.
"""

from __future__ import annotations

from types import ModuleType

from . import docbin, hdf5, npz, parquet

OUTPUTS: dict[str, ModuleType] = {
    ".hdf5": hdf5,
    ".h5": hdf5,
    ".npz": npz,
    ".spacy": docbin,
    ".parquet": parquet,
}
