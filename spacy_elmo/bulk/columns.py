"""Embed columns of texts, for engines that hand batches of rows to a function, such as Ray Data,
Hugging Face datasets, Dask and Spark. None of them is imported."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterable, Mapping, Sequence
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
from ..component import Elmo, get_component, pipe_settings
from ..inference.settings import Precision
from ..layers.encoder import get_session, get_shim, set_precision
from ..strings import bounded_strings, one_thread
from ..tools.records import check_text, import_arrow
from ..tools.texts import make_doc
from ..weights import absolute_source, load_pipeline

_CHOICES: dict[str, tuple[str, ...]] = {
    "layers": ("all", "top", "mix", "mean", "the number of one"),
    "pool": ("doc", "mean", "none"),
    "dtype": ("float16", "float32"),
    "nulls": ("error", "empty"),
}
_BATCH = "give a list with an item for each row; Dataset.map does so with batched=True"


@dataclass
class EmbedColumns:
    """Adds a column of vectors to the columns of a batch. It pickles as its settings alone. The
    first call loads the pipeline, once per process for all copies that were pickled.

    The vectors of a row depend on its text alone, apart from rounding to the last bit. The same
    batch always has the same bits. Threads may share the object: they take turns.

    text (str): The column of texts. A row is a string, a list of tokens (one sentence), or a doc.
    layers (Union[str, int]): "mix" (the component's), "top", "mean" (of all layers), or the number
        of a layer: 0 is the token encoder. "all": all of them, in a first dimension of their own.
    pool (str): "doc": with "mix", what `doc._.elmo` is (see the component's setting `pooling`,
        which has layers of its own); of other layers the same as "mean": the mean over the tokens
        of a row, without whitespace, or zeros if there are none. "none": a vector for each token,
        in the last dimension but one; whitespace has zeros.
    precision (Optional[str]): Arithmetic; None is that of the pipeline.
    nulls (str): What becomes of a row whose text is null (None or NaN): "error", or "empty", which
        is null in Arrow, None in pandas and in lists, and a row of NaN in an array.
    """

    pipeline: Union[str, Path]
    text: str = "text"
    output: str = "vector"
    layers: Union[str, int] = "mix"
    pool: str = "doc"
    dtype: str = "float16"
    threads: Optional[int] = None
    precision: Optional[Precision] = field(default=None, kw_only=True)
    name: Optional[str] = field(default=None, kw_only=True)
    gpu_id: int = field(default=-1, kw_only=True)
    nulls: str = field(default="error", kw_only=True)
    _loaded: Any = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if str(self.layers).removeprefix("-").isdecimal():
            self.layers = int(self.layers)
        for setting, allowed in _CHOICES.items():
            value = getattr(self, setting)
            if value not in allowed and not (setting == "layers" and isinstance(value, int)):
                raise ValueError(f"{setting} must be one of {', '.join(allowed)}, found {value!r}")
        self.pipeline = absolute_source(self.pipeline)  # Workers may be in another folder.

    def __repr__(self) -> str:
        settings = ((x, getattr(self, x.name)) for x in fields(self) if x.repr)
        shown = ", ".join(f"{x.name}={value!r}" for x, value in settings if value != x.default)
        facts = {"": "not loaded yet"}
        if self._loaded is not None:
            facts = get_shim(self._loaded[1].model).facts()
        return f"EmbedColumns({shown}: {', '.join(facts.values())})"

    def __reduce__(self) -> tuple[Any, ...]:
        settings = ((x.name, getattr(self, x.name)) for x in fields(self) if x.init)
        return _unpickle, (type(self), *settings)

    def __call__(self, columns: Any) -> Any:
        """Embed a dict of columns, a data frame of pandas, or a table or a batch of Arrow.

        RETURNS (Union[dict, DataFrame, Table, RecordBatch]): All columns and the vectors: in a dict
            an array if they are pooled, else a list of arrays; in each cell of a data frame an
            array, inside lists if it has several dimensions.
        """
        is_frame = isinstance(columns, getattr(sys.modules.get("pandas"), "DataFrame", ()))
        is_arrow = hasattr(columns, "append_column")
        names = columns.schema.names if is_arrow else list(columns)
        is_known = is_frame or is_arrow or isinstance(columns, Mapping)
        if not is_known or names.count(self.text) != 1:
            kinds = "in a dict, a data frame of pandas, or an Arrow table"
            raise ValueError(f"no single column {self.text!r} of texts {kinds}, found {names}")
        if is_frame:
            rows, is_null = self._embed(columns[self.text])
            cells = [None if null else _nested_lists(x) for x, null in zip(rows, is_null[:-1])]
            series = type(columns[self.text])(cells, index=columns.index, dtype=object)
            return columns.assign(**{self.output: series})
        if is_arrow:
            vectors = vectors_to_arrow(*self._embed(columns.column(self.text).to_pylist()))[:-1]
            if self.output in names:
                return columns.set_column(names.index(self.output), self.output, vectors)
            return columns.append_column(self.output, vectors)
        # Hugging Face datasets have a class for one row.
        n_rows = -1 if type(columns).__name__ == "LazyRow" else length_hint(columns[self.text], -1)
        for name in (self.text, *columns):
            check_batch(columns[name], f"the column {name!r}", _BATCH)
            if (n := length_hint(columns[name], -1)) != n_rows or n < 0:
                raise ValueError(f"the column {name!r} has {n} rows, not {n_rows}: {_BATCH}")
        return {**columns, self.output: self.embed(columns[self.text])}

    def embed(self, texts: Iterable[Any]) -> Any:
        """RETURNS (Union[ndarray, list]): The vectors of rows; see `__call__`."""
        check_batch(texts, f"the column {self.text!r}", _BATCH)
        rows, is_null = self._embed(texts)
        if self.pool == "none":
            return [None if null else row for row, null in zip(rows, is_null[:-1])]
        array = numpy.stack(rows)[:-1]
        array[is_null[:-1]] = numpy.nan
        return array

    def _embed(self, texts: Iterable[Any]) -> tuple[list[numpy.ndarray], list[bool]]:
        """RETURNS (tuple): The vectors, and which are null, also of an empty text, for the type."""
        rows = [(vectors, is_null) for _, vectors, is_null in self.stream([*texts, ""])]
        return [vectors for vectors, _ in rows], [is_null for _, is_null in rows]

    def stream(
        self, texts: Iterable[Any]
    ) -> Generator[tuple[Doc, numpy.ndarray, bool], None, None]:
        """Embed rows. Other threads wait until all are read.
        YIELDS (tuple): The processed doc, which must not be used after the iteration, the vectors,
            and whether the text is null. Such a row has the vectors of an empty text."""
        with one_thread():
            nlp, elmo = self.load()
            settings = pipe_settings(nlp, elmo, keep_layers=self.layers != "mix")
            # The last bits of a type's encoding depend on the types that it is computed with.
            get_session(elmo.model).type_cache.clear()
            name = f"of the column {self.text!r}"
            rows = [check_text(x, self.nulls, f"row {i} {name}") for i, x in enumerate(texts, 1)]
            with bounded_strings(nlp):
                docs = (make_doc(nlp, "" if text is None else text) for text in rows)
                for doc, text in zip(nlp.pipe(docs, **settings), rows):
                    yield doc, self._choose(doc), text is None

    @one_thread()
    def load(self) -> tuple[Language, Elmo]:
        """RETURNS (tuple): The pipeline and its component, loaded by the first call. Nothing may
        use them while another thread embeds: spaCy's memory zones free docs of all threads."""
        if self.gpu_id >= 0:  # The device is a setting of each thread.
            spacy.require_gpu(self.gpu_id)
        if self._loaded is None:
            if self.threads is not None:
                torch.set_num_threads(self.threads)
            nlp = load_pipeline(self.pipeline)
            elmo = get_component(nlp, self.name)
            self._check_component(elmo)
            self._loaded = nlp, elmo
        return self._loaded

    def _check_component(self, elmo: Elmo) -> None:
        if self.precision is not None:
            set_precision(elmo.model, self.precision)
        session = get_session(elmo.model)
        n = session.n_layers
        problem = ""
        if session.settings.stateful:
            problem = "it is stateful: the vectors of a row depend on all rows before"
        elif isinstance(self.layers, int) and not -n <= self.layers < n:
            problem = f"layers must be from {-n} to {n - 1}, found {self.layers}"
        if problem:
            raise ValueError(f"{self.pipeline}: {problem}")

    def _choose(self, doc: Doc) -> numpy.ndarray:
        if self.pool == "doc" and self.layers == "mix":
            return self._cast(to_numpy(doc._.elmo), doc)
        vectors = doc._.elmo_tokens if self.layers == "mix" else doc._.elmo_layers
        if self.layers == "mean":
            vectors = vectors.mean(axis=0)
        elif self.layers not in ("mix", "all"):
            vectors = vectors[-1 if self.layers == "top" else self.layers]
        vectors = to_numpy(vectors)
        if self.pool != "none":
            vectors = vectors.sum(axis=-2) / max(sum(not token.is_space for token in doc), 1)
        return self._cast(vectors, doc)

    def _cast(self, vectors: numpy.ndarray, doc: Doc) -> numpy.ndarray:
        try:
            with numpy.errstate(over="raise"):
                return vectors.astype(self.dtype)
        except FloatingPointError as error:
            raise ValueError(f"a vector of {doc.text!r:.80} needs dtype 'float32'") from error


def vectors_to_arrow(vectors: Sequence[numpy.ndarray], is_null: Sequence[bool]) -> Any:
    """RETURNS (Array): A column of vectors of shape (width,), (n, width) or (m, n, width), one row
    at least, as lists of a fixed size, inside lists for tokens and for layers."""
    arrow = import_arrow()
    flat = numpy.concatenate([row.reshape(-1) for row in vectors])
    column = arrow.FixedSizeListArray.from_arrays(flat, vectors[0].shape[-1])
    inner = [len(x) for row in vectors for x in row] if vectors[0].ndim == 3 else []
    sizes = [inner, [len(row) for row in vectors]]
    for lengths in sizes[3 - vectors[0].ndim :]:  # From the inside out.
        offsets = numpy.cumsum([0, *lengths], dtype=numpy.int32)
        column = arrow.ListArray.from_arrays(offsets, column)
    numbers = [None if null else number for number, null in enumerate(is_null)]
    return column.take(arrow.array(numbers, arrow.int64())) if any(is_null) else column


def _nested_lists(vectors: numpy.ndarray) -> Any:
    return vectors if vectors.ndim == 1 else list(map(_nested_lists, vectors))  # For pandas.


@one_thread()
@lru_cache(maxsize=4)
def _unpickle(kind: type[EmbedColumns], *settings: tuple[str, Any]) -> EmbedColumns:
    """Engines unpickle an object for every task. In a process, all are the same one."""
    return kind(**dict(settings))
