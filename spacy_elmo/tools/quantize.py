"""Make the weights of a pipeline smaller, and measure what that costs."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import replace

import torch
from spacy.language import Language
from spacy.tokens import Doc
from torch.nn import functional as F

from ..component import Elmo
from ..formats import fits_half, fits_int8, round_to_half, round_to_int8
from ..inference import Session, current_session
from ..layers.encoder import get_shim, run_sequences, set_bilm, set_precision
from ..segmenters import Sequences
from .records import Progress

# Tokens of a text that are read. They take some seconds, and tell as much as more would.
MAX_TOKENS = 20_000


def quantize(
    nlp: Language, elmo: Elmo, precision: str, docs: Iterable[Doc], progress: Progress = None
) -> torch.Tensor:
    """Round the weights of a component to int8 or float16, and set the precision in which it runs.

    int8 becomes the precision of the component. With float16, it keeps its own: float32 is exact
    for such weights, and as fast.

    docs (Iterable[Doc]): Tokenised texts to measure the cost, up to `MAX_TOKENS`.
    progress (Optional[Callable]): Called with tokens that were compared, and the number of all.
    RETURNS (Tensor): The cosines of the vectors with those of float32, shape (L+1, tokens).
    RAISES (ValueError): If the weights are rounded already or cannot be rounded, or if the texts
        have no tokens.
    """
    before, shim = elmo.bilm, get_shim(elmo.model)
    if fits_int8(before) or (precision == "float16" and fits_half(before)):
        stored = "int8" if fits_int8(before) else "float16"
        what = f"the weights of the component {elmo.name!r} are {stored} already"
        raise ValueError(f"{what}: what rounding lost does not come back")
    settings = shim.usable_settings
    after = copy.deepcopy(before)
    (round_to_int8 if precision == "int8" else round_to_half)(after)
    # Components before this one may set sentence boundaries.
    names = nlp.component_names
    later = [name for name in nlp.pipe_names if names.index(name) >= names.index(elmo.name)]
    chosen: list[Doc] = []
    for doc in nlp.pipe(docs, disable=later):
        chosen.append(doc)
        if sum(map(len, chosen)) >= MAX_TOKENS:
            break
    sequences = Sequences.cut(chosen, elmo.model.attrs["segmenter"])
    if not sequences.kept.any():
        raise ValueError("there are no words in the text to measure the cost with")
    set_bilm(elmo.model, after)
    if precision == "int8":
        set_precision(elmo.model, "int8")
        nlp.get_pipe_config(elmo.name)["model"]["precision"] = "int8"
    exact = current_session(before, replace(settings, precision="float32"))
    return _cosines(exact, elmo, sequences, progress)


def _cosines(exact: Session, elmo: Elmo, sequences: Sequences, progress: Progress) -> torch.Tensor:
    """RETURNS (Tensor): Those of a session's vectors with the component's, shape (L+1, tokens)."""
    shim = get_shim(elmo.model)
    rounded = current_session(shim.float32_bilm(), shim.usable_settings)
    # Batches depend on lengths alone: both sessions have the same tokens in each.
    runs = [run_sequences(sequences, x, elmo.model.ops) for x in (exact, rounded)]
    cosines = []
    for batches in zip(*runs):
        x, y = (torch.from_numpy(layers) for _, layers in batches)
        cosines.append(F.cosine_similarity(x, y, dim=-1))
        if progress is not None:
            progress(x.shape[1], int(sequences.kept.sum()))
    return torch.cat(cosines, dim=1)
