"""Pages to look at vectors, in the manner of displaCy. The template `page.jinja` has the HTML, the
style and the script."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any, Optional, Union

import numpy
from jinja2 import Environment, Template
from spacy.language import Language
from spacy.tokens import Doc, Token
from spacy.util import is_in_jupyter
from thinc.api import get_torch_default_device

from ..mix_logger import find_mixes
from ..pretraining.scores import ScoreTokens
from ..weights import DEFAULT
from .vectors import find_nearest, pack, project, read_arrays, read_layer

STYLES = ("similarity", "layers", "senses", "mix", "surprisal")
Label = Union[str, Callable[[Token], Any]]

MAX_WORDS = 20_000  # A browser takes seconds for more.
# What else some have.
_SETTINGS = {"similarity": ("layer",), "senses": ("words", "label", "layer")}
_MAX_BITS = 20  # The surprisal of the strongest colour.
_N_LABELS = 8  # Colours and shapes of the template.
_CONTEXT = 300  # Characters on each side of an occurrence, more than the script shows.


@dataclass
class Word:
    """A word of a page, or a task, which can be selected.

    space (bool): Whether whitespace follows.
    cells (Sequence): What stands below it: texts, and how strong their colour is, from 0 to 1.
    note (str): What else is shown when it is selected.
    before, after (str): Its sentence, on a map; elsewhere the words beside it are.
    x, y (float): Its place on a map, in per cent of its width and height.
    label (int): The number of its label.
    """

    text: str
    space: bool = True
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
    _check_style(docs, style, {"words": words, "label": label, "layer": layer})
    if isinstance(docs, Language):
        content = _mix(docs)
    elif style == "senses":
        content = _senses(_check_docs(docs), words, label, layer)
    else:
        content = _text(_sentences(_check_docs(docs)), style, layer, model)
    html = _template().render(style=style, page=page, **content)
    if not (is_in_jupyter() if jupyter is None else jupyter):
        return html
    _show(html)
    return None


def _check_style(docs: object, style: str, settings: dict[str, Any]) -> None:
    if style not in STYLES:
        raise ValueError(f"unknown style {style!r}: choose one of {', '.join(STYLES)}")
    if isinstance(docs, Language) != (style == "mix"):
        kind = "a trained pipeline" if style == "mix" else "a Doc or a list of them"
        raise ValueError(f"style {style!r} shows {kind}, not {type(docs).__name__}")
    for name, value in settings.items():
        if value not in (None, (), [], "") and name not in _SETTINGS.get(style, ()):
            raise ValueError(f"{name}: it has no meaning with style {style!r}")


def _show(html: str) -> None:
    from IPython.display import HTML, display

    display(HTML(html))


def _text(
    sentences: list[list[Token]], style: str, layer: Optional[int], model: Union[str, Path]
) -> dict[str, Any]:
    if style == "surprisal":
        return _surprisal(sentences, model)
    return _layers(sentences) if style == "layers" else _similarity(sentences, layer)


@cache
def _template() -> Template:
    source = Path(__file__).with_name("page.jinja").read_text(encoding="utf8")
    return Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(source)


def _check_docs(docs: Union[Doc, Iterable[Doc]]) -> Iterator[Doc]:
    for number, doc in enumerate([docs] if isinstance(docs, Doc) else docs):
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
    return Word(token.text, space, **settings)


def _layer_names(n_layers: int) -> list[str]:
    return ["token encoder", *(f"layer {i}" for i in range(1, n_layers))]


def _start(sentences: list[list[Token]]) -> int:
    """RETURNS (int): The number of the word that a page opens with: the first one that another
    sentence has, too, if there is one."""
    counts = Counter(word for x in sentences for word in {token.lower_ for token in x})
    tokens = [token for sentence in sentences for token in sentence]
    shared = (x.is_alpha and not x.is_stop and counts[x.lower_] > 1 for x in tokens)
    return next((number for number, is_shared in enumerate(shared) if is_shared), 0)


def _similarity(sentences: list[list[Token]], layer: Optional[int]) -> dict[str, Any]:
    arrays, source = read_layer([token for x in sentences for token in x], layer)
    groups = [[_word(token) for token in x] for x in sentences]
    data = {"titles": ["Nearest words"], "nearest": find_nearest(arrays, sentences, 8)}
    data |= {"start": _start(sentences), **pack(arrays[0])}
    return {**_content(groups, data, sentences[0][0]), "source": source}


def _layers(sentences: list[list[Token]]) -> dict[str, Any]:
    arrays = read_arrays([token for x in sentences for token in x], True)
    names, lengths = _layer_names(len(arrays)), numpy.linalg.norm(arrays, axis=-1)
    shortest, longest = lengths.min(axis=1, keepdims=True), lengths.max(axis=1, keepdims=True)
    heats = (lengths - shortest) / numpy.maximum(longest - shortest, 1e-9)
    columns = zip(lengths.T.tolist(), heats.T.tolist())
    groups = [[_word(token, cells=_cells(*next(columns))) for token in x] for x in sentences]
    data = {"titles": [f"{name}: length" for name in names], "start": _start(sentences)}
    data["nearest"] = find_nearest(arrays, sentences, 3)
    return {**_content(groups, data, sentences[0][0]), "source": names}


def _cells(values: Iterable[float], heats: Iterable[float]) -> list[tuple[str, float]]:
    return [(f"{value:.1f}", heat) for value, heat in zip(values, heats)]


def _content(
    groups: list[list[Word]], data: dict[str, Any], token: Optional[Token] = None
) -> dict[str, Any]:
    lang = "" if token is None or token.lang_ == "xx" else token.lang_
    return {"groups": groups, "data": data, "lang": lang}


def _surprisal(sentences: list[list[Token]], model: Union[str, Path]) -> dict[str, Any]:
    score = ScoreTokens(model, unit="bits", device=str(get_torch_default_device()))
    groups = []
    for sentence, scores in zip(sentences, score([[x.text for x in s] for s in sentences])):
        words = []
        for token, *pair, is_unknown in zip(sentence, *scores[1:4]):
            bits = [-value for value in pair]
            cells = _cells(bits, [min(value / _MAX_BITS, 1) for value in bits])
            note = "not in the vocabulary: scored as <UNK>" if is_unknown else ""
            words.append(_word(token, cells=cells, note=note))
        groups.append(words)
    data = {"titles": ["forward, in bits:", "backward, in bits:"]}
    content = _content(groups, data, sentences[0][0])
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
    return _content([[word] for word in words], {"titles": []})


def _senses(
    docs: Iterable[Doc],
    words: Union[str, Sequence[str]],
    label: Optional[Label],
    layer: Optional[int],
) -> dict[str, Any]:
    words = [words] if isinstance(words, str) else words
    if not words:
        raise ValueError("style 'senses' shows the occurrences of some words: name them")
    wanted, tokens = {word.lower() for word in words}, []
    for doc in docs:
        tokens += [token for token in doc if token.lower_ in wanted]
        _check_number(len(tokens))
    if missing := [x for x in words if x.lower() not in {token.lower_ for token in tokens}]:
        raise ValueError(f"no token of the docs is {missing[0]!r}: give single words that occur")
    arrays, source = read_layer(tokens, layer)
    places, aspect, shown = project(arrays[0])
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
    nearest = find_nearest(arrays[:, order], [tokens], 5)
    data = {"titles": ["Nearest occurrences"], "nearest": nearest}
    about = {"source": source, "labels": counts, "aspect": aspect, "shown": shown}
    return {**_content([points], data, tokens[0]), **about}


def _context(token: Token) -> tuple[str, str]:
    """RETURNS (tuple): The sentence before and after a token, cut to a window."""
    doc = token.doc
    span = token.sent if doc.has_annotation("SENT_START") else doc[:]
    before = doc[span.start : token.i].text_with_ws
    after = token.whitespace_ + doc[token.i + 1 : span.end].text
    return before[-_CONTEXT:], after[:_CONTEXT]
