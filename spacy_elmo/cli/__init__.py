"""The commands `spacy elmo ...`, one module each. spaCy loads this through an entry point."""

from importlib import import_module

import typer
from spacy.cli import app as spacy_app

# Each is the function NAME_cli in the module NAME.
COMMANDS = (
    "convert download embed export fit-pooling info init-config mixes models neighbors perplexity "
    "prepare pretrain push quantize visualize"
)
# They take settings of a config as options.
_OVERRIDES = {"allow_extra_args": True, "ignore_unknown_options": True}

app = typer.Typer(
    name="elmo",
    help="Contextual word vectors: convert, inspect, run and train with ELMo weights.",
    no_args_is_help=True,
)
for name in COMMANDS.split():
    module = name.replace("-", "_")
    function = getattr(import_module(f".{module}", __name__), f"{module}_cli")
    app.command(name, context_settings=_OVERRIDES if name == "pretrain" else None)(function)
spacy_app.add_typer(app)
