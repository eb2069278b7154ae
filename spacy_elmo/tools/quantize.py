"""Make the weights of a pipeline smaller, and measure what that costs."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Literal, NamedTuple

import torch
from spacy.language import Language
from spacy.tokens import Doc
from torch.nn import functional as F

from ..bilm import BiLM
from ..component import Elmo
from ..formats import fits_half, fits_int8, round_to_half, round_to_int8
from ..inference import Session, Settings, current_session
from ..layers.encoder import get_shim, run_sequences, set_bilm, set_precision
from ..segmenters import Sequences

Stored = Literal["float16", "int8"]

# Tokens of a text that are read. They take some seconds, and tell as much as more would.
MAX_TOKENS = 20_000
# The rate is measured on at least so many tokens, and for at least so many seconds.
_MIN_TOKENS = 2000
_MIN_SECONDS = 2.0


class Cost(NamedTuple):
    """What rounding changes.

    n_tokens (int): Tokens that were compared.
    cosines (list): For each layer, the smallest and the mean cosine of a token's vector with that
        of the float32 biLM.
    before, after (float): Tokens per second, of the same run.
    """

    n_tokens: int
    cosines: list[tuple[float, float]]
    before: float
    after: float


def quantize(nlp: Language, elmo: Elmo, precision: Stored, docs: Iterable[Doc]) -> Cost:
    """Round the weights of a component, and set the precision in which it runs.

    int8 becomes the precision of the component. float16 replaces float32 if the processor has
    products for it: their vectors are the same, and one sentence takes half the time.

    nlp (Language): The pipeline, whose config gets the precision.
    elmo (Elmo): Its component.
    precision (str): int8 or float16.
    docs (Iterable[Doc]): Texts to measure the cost, tokenised. Only the first `MAX_TOKENS` are
        used.
    RETURNS (Cost): The cost.
    RAISES (ValueError): If the weights are rounded already or cannot be rounded, if the texts have
        no tokens, or if PyTorch lacks products of this precision.
    """
    before, shim = elmo.bilm, get_shim(elmo.model)
    settings, asked = shim.usable_settings, shim.settings.precision
    after = _round(before, precision, elmo.name)
    sequences = Sequences.cut(_prepare(nlp, elmo, docs), elmo.model.attrs["segmenter"])
    if not sequences.kept.any():
        raise ValueError("there are no words in the text to measure the cost with")
    set_bilm(elmo.model, after)
    has_products = "fbgemm" in torch.backends.quantized.supported_engines
    if precision == "int8" or (asked == "float32" and has_products):
        set_precision(elmo.model, precision)
        nlp.get_pipe_config(elmo.name)["model"]["precision"] = precision
    return _measure(elmo, sequences, before, settings)


def example_docs(nlp: Language) -> list[Doc]:
    """RETURNS (list[Doc]): spaCy's example sentences in the pipeline's language, tokenised; in
    English, if there are none."""
    try:
        examples = importlib.import_module(f"spacy.lang.{nlp.lang}.examples")
    except ImportError:
        examples = importlib.import_module("spacy.lang.en.examples")
    return [nlp.make_doc(text) for text in examples.sentences]


def _round(bilm: BiLM, precision: Stored, name: str) -> BiLM:
    """RETURNS (BiLM): A rounded copy."""
    if fits_int8(bilm):
        raise ValueError(
            f"the weights of the component {name!r} are int8 already: nothing is gained by "
            "rounding them again, and what int8 lost does not come back"
        )
    if precision == "float16" and fits_half(bilm):
        raise ValueError(
            f"the weights of the component {name!r} are float16 already, and saved so: int8 is "
            "smaller"
        )
    rounded = copy.deepcopy(bilm)
    (round_to_int8 if precision == "int8" else round_to_half)(rounded)
    return rounded


def _prepare(nlp: Language, elmo: Elmo, docs: Iterable[Doc]) -> list[Doc]:
    """RETURNS (list[Doc]): The first docs, processed by the components before this one, which may
    set sentence boundaries."""
    names = nlp.component_names
    later = [name for name in nlp.pipe_names if names.index(name) >= names.index(elmo.name)]
    chosen: list[Doc] = []
    n_tokens = 0
    for doc in nlp.pipe(docs, disable=later):
        chosen.append(doc)
        n_tokens += len(doc)
        if n_tokens >= MAX_TOKENS:
            break
    return chosen


def _measure(elmo: Elmo, sequences: Sequences, bilm: BiLM, settings: Settings) -> Cost:
    """RETURNS (Cost): That of the component's present weights and precision.

    bilm (BiLM), settings (Settings): Those before.
    """
    shim = get_shim(elmo.model)
    exact = current_session(bilm, replace(settings, precision="float32"))
    before = current_session(bilm, settings)
    after = current_session(shim.float32_bilm(), shim.usable_settings)
    smallest, total = torch.ones(exact.n_layers), torch.zeros(exact.n_layers)
    # Batches depend on lengths alone: both sessions have the same tokens in each.
    batches = (run_sequences(sequences, x, elmo.model.ops) for x in (exact, after))
    for (_, x), (_, y) in zip(*batches):
        cosines = F.cosine_similarity(torch.from_numpy(x), torch.from_numpy(y), dim=-1)
        smallest = torch.minimum(smallest, cosines.amin(1))
        total += cosines.sum(1)
    n_tokens = int(sequences.kept.sum())
    rates = _measure_rates(elmo, sequences, [before, after])
    return Cost(n_tokens, list(zip(smallest.tolist(), (total / n_tokens).tolist())), *rates)


def _measure_rates(elmo: Elmo, sequences: Sequences, sessions: Sequence[Session]) -> list[float]:
    """RETURNS (list[float]): Tokens per second of each session, the best of several runs, which
    take turns. Each begins with an empty type cache."""
    n_tokens = len(sequences.tokens)
    times = max(1, -(-_MIN_TOKENS // n_tokens))
    best = [float("inf")] * len(sessions)
    start = perf_counter()
    n_runs = 0
    while n_runs < 2 or perf_counter() - start < _MIN_SECONDS:
        for number, session in enumerate(sessions):
            session.type_cache.clear()
            begin = perf_counter()
            for _ in range(times):
                for _ in run_sequences(sequences, session, elmo.model.ops):
                    pass
            best[number] = min(best[number], perf_counter() - begin)
        n_runs += 1
    return [times * n_tokens / seconds for seconds in best]
