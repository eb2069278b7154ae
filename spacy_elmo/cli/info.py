"""spacy elmo info: describe a biLM."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import srsly
import torch
import typer
from wasabi import msg

from ..bilm import BiLM
from ..bilm.mixed_precision import bfloat16_is_faster, bfloat16_speed
from ..component import Elmo, list_components
from ..files import sha256
from ..formats import find_format, fits_half, fits_int8, load, unpacked
from ..inference.packed import runs_layers
from ..inference.settings import CPU_PRECISIONS
from ..kernels import Kernel, load_kernels
from ..layers.encoder import get_session, get_shim
from ..layers.mixes import with_trained
from ..weights import find_source, is_pipeline, load_pipeline, source_language
from .util import exit_on_error


def info_cli(
    model: str = typer.Argument(..., help="A pipeline, or weights in any format"),
    as_json: bool = typer.Option(False, "--json", help="Print JSON"),
) -> None:
    """
    Show the settings, the size and the origin of a biLM.
    """
    with exit_on_error():
        path = find_source(model)
        describe = _describe_pipeline if is_pipeline(path) else _describe_weights
        report = describe(model, path)
    if as_json:
        print(srsly.json_dumps(report, indent=2))
        return
    for name, facts in report.items():
        msg.divider(name)
        msg.table(list(facts.items()), aligns=("r", "l"))


def _describe_pipeline(source: str, path: Path) -> dict[str, dict[str, Any]]:
    """RETURNS (dict): The facts about each elmo component, by its name.
    RAISES (ValueError): If there is none, or it cannot be read."""
    nlp = load_pipeline(source)
    components = list_components(nlp)
    if not components:
        raise ValueError(f"the pipeline {source} has no elmo component, only {nlp.component_names}")
    origin = ("lang", "name", "version", "description", "author", "license", "sources")
    meta = {key: nlp.meta[key] for key in origin if nlp.meta.get(key)}
    return {
        name: {
            "format": "spaCy pipeline",
            **meta,
            **_describe_bilm(elmo.bilm),
            **_describe_file(path / name / "model"),
            **_describe_settings(elmo),
        }
        for name, elmo in components.items()
    }


def _describe_settings(elmo: Elmo) -> dict[str, str]:
    settings = get_shim(elmo.model).settings
    mix = with_trained(elmo.mix, elmo.bilm.trained_mix).attrs.get("settings")
    segmenter = elmo.model.attrs["segmenter"]
    mix_settings = [f"{key}={x}" for key, x in vars(mix).items()] if mix is not None else []
    precision = get_session(elmo.model).settings.precision
    asked = "" if settings.precision == precision else f" (asked for: {settings.precision})"
    return {
        "mix": " ".join([elmo.mix.name, *mix_settings]),
        "segmenter": str(getattr(segmenter, "keywords", segmenter)),
        "precision": f"{precision}{asked}",
        "type cache": f"{settings.type_cache_mb:g} MiB",
        **_describe_processor(settings.kernel),
    }


def _describe_weights(source: str, path: Path) -> dict[str, dict[str, Any]]:
    with unpacked(path) as unpacked_path:
        bilm = load(unpacked_path)
        format, file = find_format(unpacked_path)
    is_packed = unpacked_path != path
    return {
        source: {
            "format": f"{format.NAME}{', packed' if is_packed else ''}",
            "language": source_language(source) or "unknown",
            **_describe_bilm(bilm),
            **_describe_file(path if is_packed else file),
            **_describe_processor(),
        }
    }


def _describe_processor(kernel: Kernel = "auto") -> dict[str, str]:
    """RETURNS (dict): What runs the LSTMs on this processor, and what speaks for bfloat16."""
    cell = load_kernels(kernel, torch.device("cpu"), torch.float32, torch.float32)
    layers = [precision for precision in CPU_PRECISIONS if runs_layers(cell, precision)]
    name = f"compiled C (whole layers in {', '.join(layers) or 'none'})"
    if kernel != "torch" and find_spec("spacy_elmo.kernels._kernels") is None:
        name = "PyTorch (slower: there was no C compiler when the package was installed)"
    elif cell is None:
        name = "PyTorch"
    choice = "use it" if bfloat16_is_faster() else "do without"
    speed = f"{bfloat16_speed():.2g} times as fast as float32"
    return {"kernels": name, "bfloat16": f"{speed}: precision auto and mixed_precision {choice}"}


def _describe_file(path: Path) -> dict[str, Any]:
    if path.is_dir():
        return {"bytes on disk": sum(x.stat().st_size for x in path.rglob("*") if x.is_file())}
    return {"bytes on disk": path.stat().st_size, "sha256": sha256(path)}


def _describe_bilm(bilm: BiLM) -> dict[str, Any]:
    """RETURNS (dict): The settings of the options, and what they and the weights imply."""
    options = bilm.config.to_options()
    settings = {**options.get("char_cnn", {}), **options["lstm"]}
    characters = settings.pop("characters", None)  # Of a model of ELMoForManyLangs.
    return {
        "input": "characters" if bilm.config.char_cnn else "words",
        **({"characters": f"{len(characters):,} of Unicode"} if characters else {}),
        **({"words": len(bilm.vocabulary)} if bilm.vocabulary else {}),
        **settings,
        "vectors": f"{bilm.config.n_activations} layers of width {bilm.config.output_dim}",
        "docs and spans": f"pooled, width {bilm.pooling.width}" if bilm.pooling else "the mean",
        "parameters": sum(p.numel() for p in bilm.parameters()),
        "exact in": "int8" if fits_int8(bilm) else "float16" if fits_half(bilm) else "float32",
    }
