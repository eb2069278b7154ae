"""Embed columns of texts, for engines that hand batches of rows to a function, such as Ray Data,
Hugging Face datasets, Dask and Spark. None of them is imported."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from operator import length_hint
from pathlib import Path
from typing import Any, Optional, Union

import numpy
import spacy
import torch
from spacy.language import Language
from spacy.tokens import Doc
from thinc.api import to_numpy

from ..bilm.validation import check_batch
from ..component import Elmo, pipe_settings
from ..inference.settings import Precision
from ..layers.encoder import get_session, set_precision
from ..strings import bounded_strings, one_thread
from ..tools.texts import make_doc
from ..weights import absolute_source, choose_component, load_pipeline
from .arrow import vectors_to_arrow

# Which layers, besides the number of one.
LAYERS: dict[str, Callable[[Doc], Any]] = {
    "all": lambda doc: doc._.elmo_layers,
    "top": lambda doc: doc._.elmo_layers[-1],
    "mix": lambda doc: doc._.elmo_tokens,
    "mean": lambda doc: doc._.elmo_layers.mean(axis=0),
}
POOLS = ("none", "mean")
DTYPES = ("float16", "float32")
NULLS = ("error", "empty")
_BATCH = "give a list with an item for each row; Dataset.map does so with batched=True"


@dataclass
class EmbedColumns:
    """Adds a column of vectors to the columns of a batch. It pickles as its settings alone. The
    first call loads the pipeline, once per process for all copies that were pickled.

    The vectors of a row depend on its text alone, apart from rounding to the last bit. The same
    batch always has the same bits. Threads may share the object: they take turns.

    pipeline (Union[str, Path]): A pipeline or weights, by name or path.
    text (str): The column of texts. A row is a string, a list of tokens (one sentence), or a doc.
    output (str): The column to add; it replaces one of this name.
    layers (Union[str, int]): "mix": the component's mix. "top", "mean" (of all layers), or the
        number of a layer: 0 is the token encoder, -1 the top. "all": all of them, in a dimension
        of their own, the first one.
    pool (str): "mean": the mean over the tokens of a row. "none": a vector for each token, in a
        dimension of their own, the last but one. Whitespace tokens have zeros, and do not count in
        the mean. The mean of no tokens is zeros.
    dtype (str): How the vectors are stored, "float16" or "float32".
    threads (Optional[int]): Threads of PyTorch in the process; None leaves their number.
    precision (Optional[str]): Arithmetic; None is that of the pipeline. int8 has to be named here:
        its values depend on the other rows of a batch.
    name (Optional[str]): The elmo component, if the pipeline has several.
    gpu_id (int): A GPU, or -1 for the device that spaCy uses.
    nulls (str): What becomes of a row whose text is null (None or NaN): "error", or "empty", which
        is null in Arrow, None in pandas and in lists, and a row of NaN in an array.
    RAISES (ValueError): If a setting is impossible.
    """

    pipeline: Union[str, Path]
    text: str = "text"
    output: str = "vector"
    layers: Union[str, int] = "mix"
    pool: str = "mean"
    dtype: str = "float16"
    threads: Optional[int] = None
    precision: Optional[Precision] = field(default=None, kw_only=True)
    name: Optional[str] = field(default=None, kw_only=True)
    gpu_id: int = field(default=-1, kw_only=True)
    nulls: str = field(default="error", kw_only=True)
    _loaded: Optional[tuple[Language, Elmo]] = field(
        default=None, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        layers = [*LAYERS, "the number of one"]
        choices = {"layers": layers, "pool": POOLS, "dtype": DTYPES, "nulls": NULLS}
        for setting, allowed in choices.items():
            value = getattr(self, setting)
            if value not in allowed and not (setting == "layers" and isinstance(value, int)):
                raise ValueError(f"{setting} must be one of {', '.join(allowed)}, found {value!r}")
        if not isinstance(self.pipeline, (str, Path)):
            raise ValueError(
                f"pipeline must be a name or a path, found {type(self.pipeline).__name__}: save it "
                "with nlp.to_disk first"
            )
        # Workers may have another working directory.
        self.pipeline = absolute_source(self.pipeline)

    def __reduce__(self) -> tuple[Any, ...]:
        settings = ((x.name, getattr(self, x.name)) for x in fields(self) if x.init)
        return _unpickle, (type(self), *settings)

    def __call__(self, columns: Any) -> Any:
        """Embed a batch.

        columns (Union[Mapping, DataFrame, Table, RecordBatch]): Columns by name, pandas or Arrow.
        RETURNS (Union[dict, DataFrame, Table, RecordBatch]): All columns and the vectors: in a dict
            an array if they are pooled, else a list of arrays; in each cell of a data frame an
            array, inside lists if it has several dimensions.
        RAISES (ValueError): If the columns are not those of a batch, or a text is not one.
        """
        is_frame = isinstance(columns, getattr(sys.modules.get("pandas"), "DataFrame", ()))
        is_arrow = hasattr(columns, "append_column")
        if not (is_frame or is_arrow or isinstance(columns, Mapping)):
            kind = type(columns)
            raise ValueError(
                f"cannot read columns of {kind.__module__}.{kind.__qualname__}: give a dict of "
                "columns, a data frame of pandas, or an Arrow table"
            )
        names = columns.schema.names if is_arrow else list(columns)
        if names.count(self.text) != 1:
            raise ValueError(f"there must be one column {self.text!r} of texts, found {names}")
        if not (is_frame or is_arrow):
            _check_columns(columns, self.text)
            return {**columns, self.output: self.embed(columns[self.text])}
        if is_frame:
            texts = columns[self.text]
            rows, is_null = self._embed(texts)
            cells = [None if null else _nested_lists(x) for x, null in zip(rows, is_null[:-1])]
            series = type(texts)(cells, index=columns.index, dtype=object)
            return columns.assign(**{self.output: series})
        vectors = vectors_to_arrow(*self._embed(columns.column(self.text).to_pylist()))[:-1]
        if self.output in names:
            return columns.set_column(names.index(self.output), self.output, vectors)
        return columns.append_column(self.output, vectors)

    def embed(self, texts: Iterable[Any]) -> Any:
        """Embed rows. RETURNS (Union[ndarray, list]): See `__call__`."""
        check_batch(texts, f"the column {self.text!r}", _BATCH)
        rows, is_null = self._embed(texts)
        if self.pool == "none":
            return [None if null else row for row, null in zip(rows, is_null[:-1])]
        array = numpy.stack(rows)[:-1]
        array[is_null[:-1]] = numpy.nan
        return array

    def _embed(self, texts: Iterable[Any]) -> tuple[list[numpy.ndarray], list[bool]]:
        """RETURNS (tuple): The vectors of each row and of an empty text (so that the type is known
        if there are no rows), and which are null."""
        rows = [(vectors, is_null) for _, vectors, is_null in self.stream([*texts, ""])]
        return [vectors for vectors, _ in rows], [is_null for _, is_null in rows]

    def stream(
        self, texts: Iterable[Any], *, first_row: int = 1
    ) -> Generator[tuple[Doc, numpy.ndarray, bool], None, None]:
        """Embed rows, of which the first has the number `first_row` in messages. Other threads
        wait until all are read.

        YIELDS (tuple): The processed doc, which must not be used after the iteration, the vectors,
            and whether the text is null. Such a row has the vectors of an empty text.
        """
        with one_thread():
            nlp, elmo = self.load()
            settings = pipe_settings(nlp, elmo, keep_layers=self.layers != "mix")
            # The last bits of a type's encoding depend on the types that it is computed with.
            get_session(elmo.model).type_cache.clear()
            rows = list(texts)
            nulls = [self._is_null(text, n) for n, text in enumerate(rows, first_row)]
            with bounded_strings(nlp):
                texts = ("" if is_null else text for text, is_null in zip(rows, nulls))
                docs = (self._make_doc(nlp, text, n) for n, text in enumerate(texts, first_row))
                for doc, is_null in zip(nlp.pipe(docs, **settings), nulls):
                    yield doc, self._choose(doc), is_null

    @one_thread()
    def load(self) -> tuple[Language, Elmo]:
        """RETURNS (tuple): The pipeline and its component, loaded by the first call. Nothing else
        may use them while another thread embeds: spaCy's memory zones free docs of all threads."""
        if self.gpu_id >= 0:  # The device is a setting of each thread.
            spacy.require_gpu(self.gpu_id)
        if self._loaded is None:
            if self.threads is not None:
                torch.set_num_threads(self.threads)
            nlp = load_pipeline(self.pipeline)
            pipes = {name: pipe for name, pipe in nlp.components if isinstance(pipe, Elmo)}
            names = list(pipes), nlp.component_names
            name = choose_component(*names, self.name, "choose one with --name, or name=...")
            self._check(pipes[name])
            self._loaded = nlp, pipes[name]
        return self._loaded

    def _check(self, elmo: Elmo) -> None:
        if self.precision is not None:
            set_precision(elmo.model, self.precision)
        session = get_session(elmo.model)
        if session.settings.precision == "int8" and self.precision != "int8":
            raise ValueError(
                f"{self.pipeline} computes in int8, where the vectors of a row depend on the other "
                "rows of its batch: choose precision 'float32', or name 'int8' to accept that"
            )
        if session.settings.stateful:
            raise ValueError(
                f"{self.pipeline} is stateful: the vectors of a row depend on all rows before; "
                "choose a pipeline with stateful = false"
            )
        n = session.n_layers
        if isinstance(self.layers, int) and not -n <= self.layers < n:
            raise ValueError(f"layers must be from {-n} to {n - 1}, found {self.layers}")

    def _is_null(self, text: Any, number: int) -> bool:
        """RETURNS (bool): Whether a text is None, or what pandas makes of it."""
        is_nan = isinstance(text, float) and math.isnan(text)
        is_null = text is None or is_nan or type(text).__name__ == "NAType"
        if is_null and self.nulls == "error":
            raise ValueError(
                f"row {number} of the column {self.text!r} is null: remove it, or choose nulls "
                "'empty'"
            )
        return is_null

    def _make_doc(self, nlp: Language, text: Any, number: int) -> Doc:
        is_list = isinstance(text, (list, tuple, numpy.ndarray))
        words = list(text) if is_list else [text]
        if not all(isinstance(x, str) and (x or not is_list) for x in words) and not isinstance(
            text, Doc
        ):
            raise ValueError(
                f"row {number} of the column {self.text!r} is neither a string nor a list of "
                f"tokens: {text!r:.80}"
            )
        return make_doc(nlp, words if is_list else text)

    def _choose(self, doc: Doc) -> numpy.ndarray:
        """RETURNS (ndarray): The vectors of a processed doc."""
        if isinstance(self.layers, int):
            vectors = to_numpy(doc._.elmo_layers[self.layers])
        else:
            vectors = to_numpy(LAYERS[self.layers](doc))
        if self.pool == "mean":
            vectors = vectors.sum(axis=-2) / max(sum(not token.is_space for token in doc), 1)
        try:
            with numpy.errstate(over="raise"):
                return vectors.astype(self.dtype)
        except FloatingPointError as error:
            raise ValueError(
                f"a vector of {doc.text!r:.80} does not fit into {self.dtype}: choose dtype "
                "'float32'"
            ) from error


def _nested_lists(vectors: numpy.ndarray) -> Any:
    """RETURNS (Union[ndarray, list]): Lists of vectors: pandas cannot store other arrays."""
    return vectors if vectors.ndim == 1 else list(map(_nested_lists, vectors))


def _check_columns(columns: Mapping[str, Any], text: str) -> None:
    """RAISES (ValueError): If the columns of a dict are one row, or of different lengths."""
    if type(columns).__name__ == "LazyRow":  # Of Hugging Face datasets.
        raise ValueError(f"found one row of a dataset, not a batch: {_BATCH}")
    n_rows = length_hint(columns[text], -1)
    for name in (text, *columns):
        check_batch(columns[name], f"the column {name!r}", _BATCH)
        if (n := length_hint(columns[name], -1)) != n_rows or n < 0:
            raise ValueError(
                f"the column {name!r} has {n} rows, but {text!r} has {n_rows}: {_BATCH}"
            )


@one_thread()
@lru_cache(maxsize=4)
def _unpickle(kind: type[EmbedColumns], *settings: tuple[str, Any]) -> EmbedColumns:
    """Engines unpickle an object for every task. In a process, all are the same one."""
    return kind(**dict(settings))
