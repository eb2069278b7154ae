"""spacy elmo push: publish a pipeline."""

from __future__ import annotations

import typer
from wasabi import msg

from ..catalogue import hub_repository
from ..component import list_components
from ..tools.model_card import model_card
from ..upload import push_folder
from ..weights import find_source, is_pipeline, load_pipeline
from .util import exit_on_error


def push_cli(
    pipeline: str = typer.Argument(..., help="A folder, or the name of a pipeline"),
    target: str = typer.Argument(..., help="hf:owner/name; made if there is no such repository"),
    private: bool = typer.Option(False, "--private", help="Hide a new repository from others"),
    message: str = typer.Option("Push a pipeline", "--message", "-m", help="Of the commit"),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress bar"),
) -> None:
    """
    Push a pipeline to Hugging Face, with a model card.

    spacy elmo download reads what this writes. The card is made of the meta.json of the pipeline
    (description, license, author, performance); a README.md in its folder takes its place. What is
    in the repository already is replaced. Log in with `hf auth login`, or set HF_TOKEN.
    """
    with exit_on_error():
        repository = hub_repository(target)
        path = find_source(pipeline)
        if not is_pipeline(path):
            raise ValueError(
                f"{pipeline} has weights alone: make a pipeline of them with `spacy elmo convert "
                f"{pipeline} FOLDER`"
            )
        nlp = load_pipeline(pipeline)
        if not list_components(nlp):
            raise ValueError(f"{pipeline} has no elmo component, only {nlp.component_names}")
        card = model_card(nlp, repository)
        url = push_folder(path, repository, card, private=private, message=message, quiet=quiet)
    msg.good(f"Pushed {pipeline} to {url}", f"Get it with python -m spacy elmo download {target}")
