"""Comparing data sets with the checksums in project.yml.

`spacy project assets` names a file with a wrong checksum, but leaves it where it is and ends with
exit code 0: whoever reads the file has to look again.
"""

from __future__ import annotations

from pathlib import Path

import srsly
from weasel.util import get_checksum

PROJECT = Path(__file__).parents[1]


def check_assets(folder: Path, project: Path = PROJECT) -> None:
    """Check the files of a folder that `spacy project assets` fills. Mirrors have their own files.

    folder (Path): For example assets/ag_news.
    project (Path): The folder of project.yml.
    RAISES (ValueError): If the checksum of a file is another one.
    """
    for asset in srsly.read_yaml(project / "project.yml")["assets"]:
        path = project / asset["dest"]
        if path.parent.resolve() != folder.resolve() or not path.is_file():
            continue
        if (checksum := get_checksum(path)) != asset["checksum"]:
            raise ValueError(
                f"{path} has the checksum {checksum} instead of {asset['checksum']}: it is "
                "damaged, or another version. Remove it and run `spacy project assets`; a data set "
                "of your own goes into another folder, named in vars.mirror"
            )
