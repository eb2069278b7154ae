"""Copy the ready-made configs of spacy-elmo to a folder. Files that are there already are kept.

python scripts/configs.py configs
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from wasabi import msg

import spacy_elmo
from spacy_elmo.files import atomic_file, clear_temporary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    target = parser.parse_args().folder
    source = Path(spacy_elmo.__file__).parent / "configs"
    for path in sorted(source.rglob("*.cfg")):
        copy = target / path.relative_to(source)
        clear_temporary(copy.parent, copy.name)
        if not copy.exists():
            with atomic_file(copy) as temporary:
                shutil.copyfile(path, temporary)
        elif copy.read_bytes() != path.read_bytes():
            msg.warn(f"{copy} differs from that of the package: kept; remove it to get the new one")


if __name__ == "__main__":
    main()
