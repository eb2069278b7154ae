"""Pages to look at vectors, in the manner of displaCy. The template `visualize.jinja` beside this
file has the HTML, the style and the script."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, Optional, Union

import numpy
from jinja2 import Environment, Template
from spacy.language import Language
from spacy.tokens import Doc, Token
from spacy.util import is_in_jupyter
from thinc.api import to_numpy

from .extensions import get_layers
from .mix_logger import find_mixes
from .pretraining.scores import ScoreTokens
from .weights import DEFAULT

STYLES = ("similarity", "layers", "senses", "mix", "surprisal")
Label = Union[str, Callable[[Token], Any]]

MAX_WORDS = 20_000  # A browser takes seconds for more.
_VECTOR_BYTES = 1_500_000  # Of all vectors of a page, of which base64 makes four thirds.
_ROWS = 500  # That are compared with all others at once.
_MAX_BITS = 20  # The surprisal of the strongest colour.
_N_LABELS = 8  # Colours and shapes of the template.
_CONTEXT = 200  # Characters on each side of an occurrence.


@dataclass
class Word:
    """A word of a page, or a task, which can be selected.

    space (bool): Whether whitespace follows.
    is_quiet (bool): Whether it is left out where the nearest words are listed: punctuation.
    cells (Sequence): What stands below it: texts, and how strong their colour is, from 0 to 1.
    note (str): What else is shown when it is selected.
    before, after (str): Its sentence, on a map; elsewhere the words beside it are.
    x, y (float): Its place on a map, in per cent of its width and height.
    label (int): The number of its label.
    """

    text: str
    space: bool = True
    is_quiet: bool = False
    cells: Sequence[tuple[str, float]] = ()
    note: str = ""
    before: str = ""
    after: str = ""
    x: float = 0.0
    y: float = 0.0
    label: int = 0


def render(
    docs: Union[Doc, Iterable[Doc], Language],
    style: str = "similarity",
    *,
    page: bool = False,
    jupyter: Optional[bool] = None,
    words: Union[str, Sequence[str]] = (),
    label: Optional[Label] = None,
    layer: Optional[int] = None,
    model: Union[str, Path] = DEFAULT,
) -> Optional[str]:
    """Make HTML to look at vectors. It needs no other file.

    docs (Union[Doc, Iterable[Doc], Language]): Docs that an elmo component has processed; for
        "surprisal" tokenised ones are enough; for "mix" a trained pipeline.
    style (str): "similarity": the cosines of all words with a selected one, and the nearest words
        of other sentences. "layers": the length of each word's vector in each layer, and the
        nearest words there. "senses": a map of all occurrences of some words. "mix": which layers
        each task of a pipeline uses. "surprisal": how unexpected each word is.
    page (bool): Make a whole page, not the part of one.
    jupyter (Optional[bool]): Show it in a notebook, and return None. By default in a notebook.
    words (Sequence[str]): For "senses": the words, in any case.
    label (Union[str, Callable]): For "senses": what colours an occurrence, as an attribute of the
        token ("pos_", "_.sense") or a function of it. The word, if there is none.
    layer (Optional[int]): For "similarity" and "senses": 0 for the token encoder, -1 for the top;
        None for the component's mix.
    model (Union[str, Path]): For "surprisal": the model with an output layer, as in `ScoreTokens`.
    RETURNS (Optional[str]): The HTML.
    RAISES (ValueError): If the docs have no vectors or no words, or too many, or lack one of
        `words`, or if the style is unknown.
    """
    if style not in STYLES:
        raise ValueError(f"unknown style {style!r}: choose one of {', '.join(STYLES)}")
    if isinstance(docs, Language) != (style == "mix"):
        kind = "a trained pipeline" if style == "mix" else "a Doc or a list of them"
        raise ValueError(f"style {style!r} shows {kind}, not {type(docs).__name__}")
    if isinstance(docs, Language):
        content = _mix(docs)
    else:
        each = _check_docs([docs] if isinstance(docs, Doc) else docs)
        if style == "senses":
            content = _senses(each, [words] if isinstance(words, str) else words, label, layer)
        elif style == "surprisal":
            content = _surprisal(_sentences(each), model)
        else:
            content = _vectors(_sentences(each), style, layer)
    html = _template().render(style=style, page=page, **content)
    if jupyter or (jupyter is None and is_in_jupyter()):
        from IPython.display import HTML, display

        display(HTML(html))
        return None
    return html


@cache
def _template() -> Template:
    source = Path(__file__).with_name("visualize.jinja").read_text(encoding="utf8")
    return Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(source)


def _check_docs(docs: Iterable[Doc]) -> Iterator[Doc]:
    for number, doc in enumerate(docs):
        if not isinstance(doc, Doc):
            raise ValueError(f"doc {number} is no Doc, but {type(doc).__name__}: {doc!r:.80}")
        yield doc


def _sentences(docs: Iterable[Doc]) -> list[list[Token]]:
    """RETURNS (list): The words of each sentence, or of each doc without boundaries."""
    sentences: list[list[Token]] = []
    n_words = 0
    for doc in docs:
        for span in doc.sents if doc.has_annotation("SENT_START") else [doc[:]]:
            if sentence := [token for token in span if not token.is_space]:
                sentences.append(sentence)
                n_words += len(sentence)
                _check_number(n_words)
    if not sentences:
        raise ValueError("nothing to show: the docs have no words")
    return sentences


def _check_number(n_words: int) -> None:
    if n_words > MAX_WORDS:
        raise ValueError(f"a page can show {MAX_WORDS:,} words, not more: give fewer docs")


def _word(token: Token, **settings: Any) -> Word:
    rest = token.doc[token.i + 1 : token.i + 2]
    space = bool(token.whitespace_) or any(x.is_space for x in rest)
    return Word(token.text, space, token.is_punct, **settings)


def _arrays(tokens: Sequence[Token], layer: Union[int, slice, None]) -> numpy.ndarray:
    """RETURNS (ndarray): The vectors of tokens in the mix or in layers, (layers, tokens, width)."""
    groups = (list(group) for _, group in groupby(tokens, lambda token: token.doc))
    arrays = [_rows(group, layer) for group in groups]
    if len({(len(array), array.shape[2]) for array in arrays}) > 1:
        raise ValueError("the docs have vectors of several widths: process all by one pipeline")
    return numpy.concatenate(arrays, axis=1, dtype="float32")


def _rows(tokens: list[Token], layer: Union[int, slice, None]) -> numpy.ndarray:
    """RETURNS (ndarray): The same for tokens of one doc."""
    doc = tokens[0].doc
    if layer is None:
        # Each of them compares its word, so that a retokenised doc is an error.
        rows = [token._.elmo for token in tokens]
        if rows[0] is not None:
            return numpy.stack([to_numpy(row) for row in rows])[None]
        what, where = "vectors", "an elmo component"
    elif (layers := get_layers(doc)) is not None:
        numbers = range(len(layers))
        if isinstance(layer, int) and not -len(layers) <= layer < len(layers):
            raise ValueError(f"no layer {layer}: the docs have layers 0 to {len(layers) - 1}")
        chosen = [numbers[layer]] if isinstance(layer, int) else [*numbers[layer]]
        return to_numpy(layers)[chosen][:, [token.i for token in tokens]]
    else:
        what, where = "layers", "an elmo component that has keep_layers = true"
    raise ValueError(f"no ELMo {what} in the doc '{doc.text:.50}': process it with {where}")


def _nearest(
    units: numpy.ndarray, groups: list[list[Word]], n: int
) -> list[list[list[tuple[int, int]]]]:
    """RETURNS (list): By layer and word, the nearest words of other sentences, or of the only one:
    their numbers and cosines in per cent, best first."""
    sentence = numpy.repeat(numpy.arange(len(groups)), [len(group) for group in groups])
    is_quiet = numpy.array([word.is_quiet for group in groups for word in group])
    found: list[list] = [[] for _ in units]
    for layer, rows in zip(units, found):
        for start in range(0, len(layer), _ROWS):
            part = slice(start, start + _ROWS)
            cosines = layer[part] @ layer.T
            if len(groups) > 1:
                cosines[sentence[part, None] == sentence] = -numpy.inf
            cosines[:, is_quiet] = -numpy.inf
            numpy.fill_diagonal(cosines[:, part], -numpy.inf)
            best = numpy.argpartition(-cosines, min(n, len(layer)) - 1, axis=1)[:, :n]
            for row, chosen in zip(cosines, best):
                chosen = chosen[numpy.argsort(-row[chosen], kind="stable")]
                rows.append([(int(j), round(100 * float(row[j]))) for j in chosen if row[j] >= -2])
    return found


def _pack(units: numpy.ndarray) -> dict[str, Any]:
    """RETURNS (dict): What the script computes colours from: unit vectors in 8 bits, projected to
    their principal directions where a page would be too large."""
    n_words, width = units.shape
    n_kept = min(width, _VECTOR_BYTES // n_words)
    if n_kept < width:
        units = units @ numpy.linalg.eigh(units.T @ units).eigenvectors[:, -n_kept:]
        units = _normalize(units)
    scale = max(float(numpy.abs(units).max()), 1e-9) / 127
    codes = numpy.rint(units / scale).astype("int8")
    vectors = base64.b64encode(codes.tobytes()).decode("ascii")
    return {"width": n_kept, "scale": scale**2, "vectors": vectors}


def _normalize(vectors: numpy.ndarray) -> numpy.ndarray:
    norms = numpy.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / numpy.where(norms > 0, norms, 1)


def _source(layer: Optional[int]) -> str:
    return "the component's mix of the layers" if layer is None else f"layer {layer}"


def _layer_names(n_layers: int) -> list[str]:
    return ["token encoder", *(f"layer {i}" for i in range(1, n_layers))]


def _vectors(sentences: list[list[Token]], style: str, layer: Optional[int]) -> dict[str, Any]:
    """RETURNS (dict): What the template shows of the styles "similarity" and "layers"."""
    tokens = [token for sentence in sentences for token in sentence]
    arrays = _arrays(tokens, slice(None) if style == "layers" else layer)
    groups = [[_word(token) for token in sentence] for sentence in sentences]
    content, units = _content(groups, tokens), _normalize(arrays)
    if style == "layers":
        names = _layer_names(len(arrays))
        lengths = numpy.linalg.norm(arrays, axis=-1)
        shortest, longest = lengths.min(axis=1), lengths.max(axis=1)
        heats = (lengths - shortest[:, None]) / numpy.maximum(longest - shortest, 1e-9)[:, None]
        words = (word for group in groups for word in group)
        for word, values, heat in zip(words, lengths.T.tolist(), heats.T.tolist()):
            word.cells = [(f"{value:.1f}", strength) for value, strength in zip(values, heat)]
        data = {"titles": [f"{x}: length" for x in names], "nearest": _nearest(units, groups, 3)}
    else:
        data = {"titles": ["Nearest words"], "nearest": _nearest(units, groups, 8)}
        data |= _pack(units[0])
    # The page opens with a word that is in another sentence, too, if there is one.
    n_sentences = Counter(word for x in sentences for word in {token.lower_ for token in x})
    is_start = [token.is_alpha and not token.is_stop for token in tokens]
    counts = [is_word * n_sentences[token.lower_] for is_word, token in zip(is_start, tokens)]
    data["start"] = counts.index(max(counts))
    return {**content, "data": data, "source": _source(layer) if style == "similarity" else names}


def _content(groups: list[list[Word]], tokens: Sequence[Token] = ()) -> dict[str, Any]:
    lang = tokens[0].lang_ if tokens else ""
    return {"groups": groups, "lang": "" if lang == "xx" else lang, "data": {"titles": []}}


def _surprisal(sentences: list[list[Token]], model: Union[str, Path]) -> dict[str, Any]:
    score = ScoreTokens(model, unit="bits")
    groups = []
    for sentence, scores in zip(sentences, score([[x.text for x in s] for s in sentences])):
        words = [_word(token) for token in sentence]
        for word, *pair, is_unknown in zip(
            words, -scores.forward, -scores.backward, scores.unknown
        ):
            word.cells = [(f"{bits:.1f}", min(bits / _MAX_BITS, 1)) for bits in pair]
            word.note = "not in the vocabulary: scored as <UNK>" if is_unknown else ""
        groups.append(words)
    content = _content(groups, sentences[0])
    content["data"]["titles"] = ["forward, in bits:", "backward, in bits:"]
    return {**content, "source": str(model), "max_bits": _MAX_BITS}


def _mix(nlp: Language) -> dict[str, Any]:
    words = []
    for task, mix in find_mixes(nlp):
        named = zip(_layer_names(len(mix.weights or ())), mix.weights or ())
        cells = [(f"{name} {weight:.3f}", weight) for name, weight in named]
        cells += [] if mix.gamma is None else [(f"γ {mix.gamma:.3f}", 0)]
        note = mix.kind if cells else f"{mix.kind}, no layer weights"
        words.append(Word(task, cells=cells, note=note))
    if not words:
        raise ValueError("the pipeline has no component that listens to ELMo")
    return _content([[word] for word in words])


def _senses(
    docs: Iterable[Doc], words: Sequence[str], label: Optional[Label], layer: Optional[int]
) -> dict[str, Any]:
    if not words:
        raise ValueError("style 'senses' shows the occurrences of some words: name them")
    wanted, tokens = {word.lower() for word in words}, []
    for doc in docs:
        tokens += [token for token in doc if token.lower_ in wanted]
        _check_number(len(tokens))
    if missing := [x for x in words if x.lower() not in {token.lower_ for token in tokens}]:
        raise ValueError(f"no token of the docs is {missing[0]!r}: give single words that occur")
    arrays = _arrays(tokens, layer)
    places, aspect, shown = _project(arrays[0])
    # Arrow keys go from left to right.
    order = numpy.argsort(places[:, 0], kind="stable").tolist()
    tokens = [tokens[i] for i in order]
    get = attrgetter(label) if isinstance(label, str) else label or attrgetter("lower_")
    labels = [str(x) if (x := get(token)) not in (None, "") else "no label" for token in tokens]
    counts = Counter(labels).most_common()
    if len(counts) > _N_LABELS:  # The last colour is for all others.
        rest = sum(n for _, n in counts[_N_LABELS - 1 :])
        counts = [*counts[: _N_LABELS - 1], (f"{len(counts) - _N_LABELS + 1} others", rest)]
    numbers = {name: number for number, (name, _) in enumerate(counts)}
    points = []
    for token, (x, y), name in zip(tokens, places[order].tolist(), labels):
        word = _word(token, x=x, y=y, note=name, label=numbers.get(name, _N_LABELS - 1))
        word.before, word.after = _context(token)
        points.append(word)
    content = _content([points], tokens)
    nearest = _nearest(_normalize(arrays[:, order]), [points], 5)
    content["data"] = {"titles": ["Nearest occurrences"], "nearest": nearest}
    about = {"source": _source(layer), "labels": counts, "aspect": aspect, "shown": shown}
    return {**content, **about}


def _project(vectors: numpy.ndarray) -> tuple[numpy.ndarray, float, float]:
    """RETURNS (tuple): The places of vectors on a map of their two principal components, in per
    cent of its width and height; width / height; and how much of the variance it shows."""
    centred = vectors - vectors.mean(axis=0)
    left, values, _ = numpy.linalg.svd(centred, full_matrices=False)
    places = numpy.zeros((len(vectors), 2))
    places[:, : len(values)] = (left * values)[:, :2]
    centre = (places.max(axis=0) + places.min(axis=0)) / 2
    # Both axes have one scale. The map is neither very flat nor higher than wide.
    width, height = numpy.maximum(numpy.ptp(places, axis=0), 1e-6)
    width, height = max(width, height), max(height, width / 2)
    places = 50 + 92 * (places - centre) / (width, -height)
    total = (values**2).sum()
    shown = float((values[:2] ** 2).sum() / total) if total else 1.0
    return places, float(width / height), shown


def _context(token: Token) -> tuple[str, str]:
    """RETURNS (tuple): The sentence before and after a token, cut to a window."""
    doc = token.doc
    span = token.sent if doc.has_annotation("SENT_START") else doc[:]
    before = doc[span.start : token.i].text_with_ws
    after = token.whitespace_ + doc[token.i + 1 : span.end].text
    return before[-_CONTEXT:], after[:_CONTEXT]
