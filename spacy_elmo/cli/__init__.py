"""The commands `spacy elmo ...`, one module each. spaCy loads this through an entry point."""

import typer
from spacy.cli import app as spacy_app

from .convert import convert_cli
from .download import download_cli
from .embed import embed_cli
from .export import export_cli
from .info import info_cli
from .init_config import init_config_cli
from .mixes import mixes_cli
from .models import models_cli
from .neighbors import neighbors_cli
from .perplexity import perplexity_cli
from .prepare import prepare_cli
from .pretrain import pretrain_cli
from .quantize import quantize_cli

app = typer.Typer(
    name="elmo",
    help="Contextual word vectors: convert, inspect, run and train with ELMo weights.",
    no_args_is_help=True,
)
app.command("convert")(convert_cli)
app.command("download")(download_cli)
app.command("embed")(embed_cli)
app.command("export")(export_cli)
app.command("info")(info_cli)
app.command("init-config")(init_config_cli)
app.command("mixes")(mixes_cli)
app.command("models")(models_cli)
app.command("neighbors")(neighbors_cli)
app.command("perplexity")(perplexity_cli)
app.command("prepare")(prepare_cli)
app.command(
    "pretrain", context_settings={"allow_extra_args": True, "ignore_unknown_options": True}
)(pretrain_cli)
app.command("quantize")(quantize_cli)
spacy_app.add_typer(app)
