"""Push pipelines to Hugging Face, whose library checks, resumes and logs in. `download.py` reads
what this writes."""

from __future__ import annotations

from pathlib import Path

from .download import hub_library, is_visible

CARD = "README.md"


def push_folder(
    folder: Path, repository: str, card: str, *, private: bool, message: str, quiet: bool
) -> str:
    """Make the main branch of a repository the files of a folder, and a model card, in one commit.
    A README.md in the folder takes the place of the card. Hidden files are left out.

    repository (str): "owner/name"; it is made if there is none.
    private (bool): Only its owner may see it; of a new repository alone.
    RETURNS (str): Its address.
    RAISES (ValueError): If it cannot be written, or has something else than a pipeline.
    """
    hub, api = hub_library(quiet)
    paths = {file.relative_to(folder).as_posix(): file for file in sorted(folder.rglob("*"))}
    files: dict = {name: x for name, x in paths.items() if x.is_file() and is_visible(name)}
    files.setdefault(CARD, card.encode())
    try:
        url = api.create_repo(repository, private=private, exist_ok=True)
        there = {x for x in api.list_repo_files(repository) if is_visible(x)}
        if there - {CARD} and "config.cfg" not in there:
            raise ValueError(f"it has other files than those of a pipeline: {sorted(there)[:3]}")
        gone = there - {*files}
        changes = [hub.CommitOperationDelete(x) for x in sorted(gone)]
        changes += [hub.CommitOperationAdd(name, x) for name, x in files.items()]
        api.create_commit(repository, changes, commit_message=message)
    except Exception as error:  # Those of Hugging Face have no class in common.
        status = getattr(getattr(error, "response", None), "status_code", None)
        reason = (
            "you are not logged in, or may not write there: run `hf auth login`, or set HF_TOKEN "
            "to a token that may"
            if status in (401, 403)
            else error
        )
        raise ValueError(f"cannot push to hf:{repository}: {reason}") from error
    return str(url)
