"""What files and folders of other programs are, for messages. Nothing is unpacked."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Optional

_WORD_VECTORS = (
    "a file of word vectors without context (word2vec, GloVe, fastText), and no biLM: use it with "
    "`spacy init vectors`"
)
# By the names in a folder, one per line and sorted, or by the name of a file.
_NAMES = {
    r"^(saved_model\.pb|tfhub_module\.pb)$": (
        "a TensorFlow SavedModel, which is not read. That of TF Hub (google/elmo) has the weights "
        "of AllenNLP's original model: take its options.json and HDF5"
    ),
    r"^config\.json$(?s:.*)^(model\.safetensors|pytorch_model\.bin|tf_model\.h5)$": (
        "a model of Hugging Face's transformers, and no ELMo: use it with spacy-transformers or "
        "spacy-curated-transformers"
    ),
    r"^config\.cfg$": "a packed pipeline of spaCy: install it with pip, or unpack it",
    r"^(glove\..*\.txt|.*\.vec|GoogleNews-vectors.*\.bin)(\.gz)?$": _WORD_VECTORS,
}
# By the start of a file.
_STARTS = {
    rb"\Z": "empty",
    rb"\s*\{": "options or other JSON, not weights: were the two files swapped?",
    rb"(?s)(\x80|PK\x03\x04).*is_forward_lm": "a language model of flair: use it with flair",
    rb"(?s)\x80|PK.{,512}/data\.pkl": (
        "a pickle (a PyTorch checkpoint?), which may execute code when read: refused. Convert it "
        "to safetensors where you trust it; of ELMoForManyLangs and AllenNLP, give the whole folder"
    ),
    rb"PK|(?s:.{257})ustar|\x1f\x8b|BZh|\xfd7zXZ": "packed: unpack it, or give the archive alone",
    rb"\xba\x16\x4f\x2f|\d+ \d+\s*\n|\S+( -?\d+\.\d+(e-?\d+)?){8}": _WORD_VECTORS,
}


def describe_other(path: Path) -> Optional[str]:
    """RETURNS (Optional[str]): What a file or folder is, and what to do about it."""
    names = sorted(file.name for file in path.iterdir()) if path.is_dir() else [path.name]
    kinds = [what for pattern, what in _NAMES.items() if re.search(pattern, "\n".join(names), re.M)]
    if path.is_file():
        with path.open("rb") as file:
            start = file.read(4096)
        kinds = [what for pattern, what in _STARTS.items() if re.match(pattern, start)] + kinds
    return kinds[0] if kinds else None
