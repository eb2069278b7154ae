"""The fastest precision of a device whose vectors are almost those of float32."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch.nn import functional as F

from ..bilm.mixed_precision import bfloat16_is_faster
from ..torch_private import has_quantized_products
from .settings import Precision, Settings

if TYPE_CHECKING:
    from ..bilm import BiLM

logger = logging.getLogger("spacy.elmo")  # spaCy's commands show what loggers of spaCy say.

# Of each token and layer, with float32.
MIN_COSINE = 0.9999

_SAMPLE = [
    text.split()
    for text in (
        "Yes .",
        "The river bank was closed on 3 May 2019 , because of the flood .",
        "“ It 's one of the strangest things I 've ever seen , ” she told http://example.org/news "
        "after a long , tiring and altogether unsuccessful day in Kraków , where nobody - not even "
        "the mayor himself - had wanted to talk to her about money , time or the weather .",
        "WE NEED MORE INTERNATIONALIZATION !!!",
    )
]
_CHOSEN: WeakKeyDictionary[BiLM, dict[tuple[torch.device, str], Precision]] = WeakKeyDictionary()


def choose_precision(bilm: BiLM, settings: Settings) -> Settings:
    """Choose by the kind of device, and compare with float32 on a small sample. RETURNS (Settings):
    With the same precision for later weights of this network on this device."""
    from .session import Session  # It imports this file.

    chosen, key = _CHOSEN.setdefault(bilm, {}), (bilm.device, settings.kernel)
    if key not in chosen:
        chosen[key] = "float32"
        trial = Settings("float32", type_cache_mb=0, kernel=settings.kernel)
        for candidate in _candidates(bilm.device):
            exact, vectors = (
                Session(bilm, replace(trial, precision=precision)).embed(_SAMPLE)
                for precision in ("float32", candidate)
            )
            cosines = (F.cosine_similarity(*pair, dim=-1).min() for pair in zip(exact, vectors))
            if min(cosines) >= MIN_COSINE:
                chosen[key] = candidate
                break
        logger.info("precision 'auto': the biLM runs in %s on %s", chosen[key], bilm.device)
    return replace(settings, precision=chosen[key])


def _candidates(device: torch.device) -> list[Precision]:
    """RETURNS (list): What may be faster than float32 and reach `MIN_COSINE`, the fastest first."""
    if device.type == "cpu":
        if bfloat16_is_faster():
            return ["bfloat16"]
        return ["float16"] if has_quantized_products() else []
    is_recent = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    return ["bfloat16", "tf32"] if is_recent else []
