"""The outputs of `spacy elmo embed`, each a module. An output is written in parts (see `job`):

DEFAULTS     The layers, the pool and the dtype, unless the user chooses others.
REFUSED      Names of the options that it cannot honour. Shards need a folder of parts.
PART         The suffix of a part.
write_part   (path, ids, rows, checksum): Write a part. `rows` are what `EmbedColumns.stream`
             yields: a doc, which must not be used after the iteration, an array of shape (width,),
             (tokens, width) or either with a first dimension of layers, and whether the text is
             null. `ids` are the columns that are carried through, by name: lists of strings and
             None, or of scalars of Arrow. There is an "id" if the user names none.
read_part    (path): The checksum of a part; None if it is missing or damaged.
join         (parts, out, progress): Write the output of all parts, perhaps none, calling `progress`
             (see `records`) with rows. None if the folder of parts is the output; only there, null
             texts can have null vectors.
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
