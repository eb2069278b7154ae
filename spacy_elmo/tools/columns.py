"""Embed columns of texts, for engines that hand batches of rows to a function, such as Ray Data,
Hugging Face datasets, Dask and Spark. None of them is imported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, Optional, Union

import numpy
import spacy
import torch
from spacy.language import Language
from spacy.tokens import Doc
from thinc.api import to_numpy

from ..component import Elmo, pipe_settings
from ..inference.settings import Precision
from ..layers.encoder import get_session, set_precision
from ..strings import bounded_strings, one_thread
from ..weights import absolute_source, choose_component, load_pipeline
from .arrow import vectors_to_arrow
from .texts import replace_surrogates

POOLS = ("mean", "tokens", "layers")
DTYPES = ("float16", "float32")


@dataclass
class Embed:
    """Adds a column of vectors to the columns of a batch. It pickles as its settings alone. The
    pipeline is loaded by the first call, and once per process for all copies that were pickled.

    The vectors of a row depend on its text alone, apart from rounding to the last bit. The same
    batch has the same bits, whatever was computed before. Threads may share it: they take turns.

    pipeline (Union[str, Path]): A pipeline or weights, by name or path.
    text (str): The column of texts. A row is a string, or a list of tokens (one sentence).
    output (str): The column to add; it replaces one of this name.
    pool (str): "mean": the mean over the tokens of a row, shape (width,). "tokens": shape
        (tokens, width). "layers": all layers of the biLM, shape (L+1, tokens, 2P). Whitespace
        tokens have zeros, and do not count in the mean. The mean of no tokens is zeros.
    layer (Optional[int]): For "mean" and "tokens", a layer; 0 is the token encoder, -1 the top.
        None: the component's mix.
    dtype (str): How the vectors are stored, "float16" or "float32".
    threads (Optional[int]): Threads of PyTorch in the process; None leaves their number.
    precision (Optional[str]): Arithmetic; None is that of the pipeline. int8 has to be named here:
        its values depend on the other rows of a batch.
    name (Optional[str]): The elmo component, if the pipeline has several.
    gpu_id (int): A GPU, or -1 for the device that spaCy uses.
    RAISES (ValueError): If a setting is impossible.
    """

    pipeline: Union[str, Path]
    text: str = "text"
    output: str = "vector"
    pool: str = "mean"
    layer: Optional[int] = None
    dtype: str = "float16"
    threads: Optional[int] = None
    precision: Optional[Precision] = field(default=None, kw_only=True)
    name: Optional[str] = field(default=None, kw_only=True)
    gpu_id: int = field(default=-1, kw_only=True)
    _loaded: Optional[tuple[Language, Elmo]] = field(
        default=None, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        for setting, allowed in (("pool", POOLS), ("dtype", DTYPES)):
            value = getattr(self, setting)
            if value not in allowed:
                raise ValueError(f"{setting} must be one of {', '.join(allowed)}, found {value!r}")
        if self.pool == "layers" and self.layer is not None:
            raise ValueError(
                f"pool 'layers' writes all layers, not layer {self.layer}: leave layer out, or "
                "choose pool 'tokens'"
            )
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"threads must be 1 or more, found {self.threads}")
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

        columns (Union[Mapping, Table, RecordBatch]): Columns by name, or Arrow's.
        RETURNS (Union[dict, Table, RecordBatch]): All columns and the vectors. In a dict, these are
            an array (rows, width) for "mean", else a list of arrays.
        RAISES (ValueError): If the pipeline cannot be loaded, or a text is not one. The message
            names the row, from 1.
        """
        is_mapping = isinstance(columns, Mapping)
        if not (is_mapping or hasattr(columns, "append_column")):
            raise ValueError(
                f"cannot read columns of a {type(columns).__name__}: give a dict of columns, or an "
                "Arrow table"
            )
        names = list(columns) if is_mapping else columns.schema.names
        if self.text not in names:
            raise ValueError(f"there is no column {self.text!r} of texts, only {names}")
        if is_mapping:
            return {**columns, self.output: self.embed(columns[self.text])}
        # The text of an empty batch gives the type.
        texts = columns.column(self.text).to_pylist() or [""]
        vectors = vectors_to_arrow(self.embed(texts))[: columns.num_rows]
        if self.output in names:
            return columns.set_column(names.index(self.output), self.output, vectors)
        return columns.append_column(self.output, vectors)

    @one_thread()
    def embed(self, texts: Sequence[Any]) -> Union[numpy.ndarray, list[numpy.ndarray]]:
        """Embed rows. RETURNS (Union[ndarray, list]): See `__call__`."""
        nlp, elmo = self.load()
        keep_layers = self.pool == "layers" or self.layer is not None
        settings = pipe_settings(nlp, elmo, keep_layers=keep_layers)
        # The last bits of a type's encoding depend on the types that it is computed with.
        get_session(elmo.model).type_cache.clear()
        with bounded_strings(nlp):
            rows = [self._pool(doc) for doc in nlp.pipe(self._make_docs(nlp, texts), **settings)]
        if self.pool != "mean":
            return rows
        return numpy.stack(rows) if rows else self.embed([""])[:0]  # Which has the width.

    @one_thread()
    def load(self) -> tuple[Language, Elmo]:
        """RETURNS (tuple): The pipeline and its component, loaded by the first call. Nothing else
            may use them while another thread embeds: spaCy's memory zones free docs of all threads.
        RAISES (ValueError): If they cannot be, or do not fit the settings."""
        if self.gpu_id >= 0:  # The device is a setting of each thread.
            spacy.require_gpu(self.gpu_id)
        if self._loaded is None:
            if self.threads is not None:
                torch.set_num_threads(self.threads)
            nlp = load_pipeline(self.pipeline)
            pipes = {name: pipe for name, pipe in nlp.components if isinstance(pipe, Elmo)}
            advice = "choose one by name"
            name = choose_component(list(pipes), nlp.component_names, self.name, advice)
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
        if self.layer is not None and not -session.n_layers <= self.layer < session.n_layers:
            raise ValueError(
                f"layer must be from {-session.n_layers} to {session.n_layers - 1}, found "
                f"{self.layer}"
            )

    def _make_docs(self, nlp: Language, texts: Sequence[Any]) -> Iterator[Doc]:
        for number, text in enumerate(texts, start=1):
            if isinstance(text, str):
                # Not `nlp.make_doc`: it refuses long texts, because of parsers.
                yield nlp.tokenizer(replace_surrogates(text))
                continue
            words: list[Any] = (
                list(text) if isinstance(text, (list, tuple, numpy.ndarray)) else [None]
            )
            if not all(isinstance(word, str) and word for word in words):
                raise ValueError(
                    f"row {number} of the column {self.text!r} is neither a string nor a list of "
                    f"tokens: {text!r:.80}"
                )
            words = list(map(replace_surrogates, words))
            yield Doc(nlp.vocab, words=words, sent_starts=[i == 0 for i in range(len(words))])

    def _pool(self, doc: Doc) -> numpy.ndarray:
        """RETURNS (ndarray): The row of a processed doc."""
        if self.pool == "layers":
            vectors = to_numpy(doc._.elmo_layers)
        elif self.layer is not None:
            vectors = to_numpy(doc._.elmo_layers[self.layer])
        else:
            vectors = to_numpy(doc._.elmo_tokens)
        if self.pool == "mean":
            vectors = vectors.sum(axis=0) / max(sum(not token.is_space for token in doc), 1)
        try:
            with numpy.errstate(over="raise"):
                return vectors.astype(self.dtype)
        except FloatingPointError as error:
            raise ValueError(
                f"a vector of {doc.text!r:.80} does not fit into {self.dtype}: choose dtype "
                "'float32'"
            ) from error


@one_thread()
@lru_cache(maxsize=4)
def _unpickle(kind: type[Embed], *settings: tuple[str, Any]) -> Embed:
    """Engines unpickle an `Embed` for every task. In a process, all are the same one."""
    return kind(**dict(settings))
