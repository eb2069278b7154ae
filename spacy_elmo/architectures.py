"""The names a config can say in a `model` block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Optional, Union

from spacy.tokens import Doc
from spacy.util import registry
from spacy.vocab import Vocab
from thinc.api import Model, chain
from thinc.types import Floats2d

from .bilm import BiLM, BiLMConfig, CharCNNConfig, LSTMConfig
from .bilm.config import Activation
from .bilm.formats import read_vocabulary
from .bilm.precision import Precision
from .layers.encoder import DocLayers as BatchLayers
from .layers.encoder import ElmoEncoder, Settings
from .layers.encoder import NoWeights as LazyBiLM
from .layers.listener import ANY, LayersListener, mix_docs
from .layers.mixes import Mix
from .layers.objective import make_objective
from .layers.tok2vec import ElmoTok2Vec
from .resolve import DEFAULT, absolute, language_of, load_weights
from .segmenters import Segmenter, sentences


@registry.architectures("spacy-elmo.PretrainedBiLM.v1")
def PretrainedBiLM(
    weights: Optional[str] = DEFAULT,
    segmenter: Optional[Segmenter] = None,
    precision: Precision = Settings.precision,
    max_tokens_per_batch: int = Settings.max_tokens_per_batch,
    type_cache_mb: float = Settings.type_cache_mb,
    stateful: bool = Settings.stateful,
    mixed_precision: bool = Settings.mixed_precision,
) -> Model[list[Doc], BatchLayers]:
    """A biLM with weights from elsewhere. They are read at first use and saved with the pipeline,
    which then never looks for the original file again.

    weights (Optional[str]): The name of weights that come with the package or of an installed
        pipeline package, or a path; None if they are yet to come.
    segmenter (Optional[Segmenter]): How docs are cut into sequences; the default is sentences.
    precision (str): Arithmetic of inference: float32, float16 or int8 on a CPU, float32, tf32 or
        bfloat16 on a GPU. One of the other kind of device runs in float32, with a warning.
    max_tokens_per_batch (int): Tokens that go through the LSTMs at a time.
    type_cache_mb (float): Bound of the cache of word types in MiB; 0 switches it off.
    stateful (bool): Carry LSTM states from batch to batch, as older implementations do.
    mixed_precision (bool): Fine-tune with bfloat16 products.
    RAISES (ValueError): If a setting has an impossible value.
    """
    settings = Settings(precision, max_tokens_per_batch, type_cache_mb, stateful, mixed_precision)
    load = None if weights is None else partial(load_weights, absolute(weights))
    return ElmoEncoder(LazyBiLM(load, language_of(weights)), segmenter or sentences(), settings)


@registry.architectures("spacy-elmo.BiLM.v1")
def build_bilm(
    dim: int,
    projection_dim: int,
    n_layers: int = 2,
    cell_clip: Optional[float] = 3.0,
    proj_clip: Optional[float] = 3.0,
    use_skip_connections: bool = True,
    filters: Optional[Sequence[Sequence[int]]] = None,
    activation: Activation = "relu",
    n_highway: int = 1,
    char_embedding_dim: int = 16,
    max_characters_per_token: int = 50,
    vocabulary: Optional[Union[str, Path]] = None,
    segmenter: Optional[Segmenter] = None,
    precision: Precision = Settings.precision,
    max_tokens_per_batch: int = Settings.max_tokens_per_batch,
    type_cache_mb: float = Settings.type_cache_mb,
    stateful: bool = Settings.stateful,
    mixed_precision: bool = Settings.mixed_precision,
) -> Model[list[Doc], BatchLayers]:
    """A biLM with random weights, to be trained from scratch. Give either `filters` (character
    input) or `vocabulary` (word input). The settings are those of `PretrainedBiLM`.

    dim, projection_dim, n_layers, cell_clip, proj_clip, use_skip_connections: See `LSTMConfig`.
    filters, activation, n_highway, char_embedding_dim, max_characters_per_token: See
        `CharCNNConfig`.
    vocabulary (Optional[Union[str, Path]]): A file of words, `<S> </S> <UNK>` first.
    RAISES (ValueError): If a setting has an impossible value.
    """
    if (filters is None) == (vocabulary is None):
        raise ValueError(
            "spacy-elmo.BiLM.v1: give either filters (character input) or vocabulary (word input)"
        )
    lstm = LSTMConfig(dim, projection_dim, n_layers, cell_clip, proj_clip, use_skip_connections)
    settings = Settings(precision, max_tokens_per_batch, type_cache_mb, stateful, mixed_precision)
    load: Callable[[], BiLM]
    if vocabulary is not None:
        load = partial(_word_bilm, lstm, Path(vocabulary).expanduser().absolute())
    else:
        assert filters is not None
        char_cnn = CharCNNConfig(
            tuple(tuple(pair) for pair in filters),  # type: ignore[misc]
            activation,
            n_highway,
            char_embedding_dim,
            max_characters_per_token,
        )
        load = partial(BiLM, BiLMConfig(lstm, char_cnn))
    return ElmoEncoder(LazyBiLM(load), segmenter or sentences(), settings)


def _word_bilm(lstm: LSTMConfig, vocabulary: Path) -> BiLM:
    words = read_vocabulary(vocabulary)
    return BiLM(BiLMConfig(lstm, n_tokens_vocab=len(words)), words)


@registry.architectures("spacy-elmo.ElmoListener.v1")
def ElmoListener(
    mix: Mix,
    upstream: Union[str, Model[list[Doc], BatchLayers]] = ANY,
    grad_factor: float = 1.0,
) -> Model[list[Doc], list[Floats2d]]:
    """ELMo vectors for a component that takes a tok2vec.

    mix (Mix): How it mixes the layers.
    upstream (Union[str, Model]): The name of the "elmo" component it listens to, or "*" for any.
        `nlp.replace_listeners` writes the block of an own biLM here.
    grad_factor (float): Scales the gradient that goes back to the biLM, if that is not frozen.
    """
    return chain(_source(upstream, grad_factor), mix_docs(mix))


@registry.architectures("spacy-elmo.ElmoTok2Vec.v1")
def build_elmo_tok2vec(
    embed: Model[list[Doc], list[Floats2d]],
    encode: Model[list[Floats2d], list[Floats2d]],
    elmo_input: Optional[Mix] = None,
    elmo_output: Optional[Mix] = None,
    upstream: Union[str, Model[list[Doc], BatchLayers]] = ANY,
    grad_factor: float = 1.0,
) -> Model[list[Doc], list[Floats2d]]:
    """`[x; ELMo] -> encode -> [h; ELMo]` (Peters et al. 2018, section 3.3), over any of spaCy's
    layers for embedding and encoding.

    embed (Model): From docs to vectors x.
    encode (Model): From vectors to contextual vectors h. [x; ELMo] is brought to its width by a
        maxout layer.
    elmo_input (Optional[Mix]): The mix at the input; None for none.
    elmo_output (Optional[Mix]): The mix at the output; None for none.
    upstream, grad_factor: See `ElmoListener`.
    RAISES (ValueError): If there is no mix at all.
    """
    return ElmoTok2Vec(embed, encode, elmo_input, elmo_output, _source(upstream, grad_factor))


@registry.architectures("spacy-elmo.BiLMObjective.v1")
def BiLMObjective(rows: int = 5000) -> Callable[[Vocab, Model], Model[list[Doc], Floats2d]]:
    """For `[pretraining.objective]`: train an elmo component as a language model in the loop of
    `spacy pretrain`. Its weights load with `[initialize] init_tok2vec`.

    rows (int): Words are hashed into so many rows.
    RAISES (ValueError): If rows is not positive; at the start, if pretraining.component is not an
        elmo component.
    """
    if rows < 1:
        raise ValueError(f"spacy-elmo.BiLMObjective.v1: rows must be 1 or more, found {rows}")
    return make_objective(rows)


def _source(
    upstream: Union[str, Model[list[Doc], BatchLayers]], grad_factor: float
) -> Model[list[Doc], BatchLayers]:
    if isinstance(upstream, str):
        return LayersListener(upstream, grad_factor)
    upstream.attrs["grad_factor"] = grad_factor
    return upstream
