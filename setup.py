"""What pyproject.toml cannot say: the extension, and a README whose links work elsewhere."""

import os
import re
import sys
from pathlib import Path

from setuptools import Extension, setup

# CFLAGS come before these: with -ffast-math among them, a value that is not a number could go
# unnoticed, and the linker would switch off small numbers for the whole process.
EXACT = ["-O3", "-fno-fast-math"]
# Without these, GCC does not vectorise the loops. What debuggers read is two thirds of the file.
COMPILE_ARGS = [*EXACT, "-fno-math-errno", "-fno-trapping-math", "-fopenmp-simd", "-g0"]

README = Path(__file__).with_name("README.md").read_text(encoding="utf8")

setup(
    # An index shows it alone: links to other files of the repository would lead nowhere.
    long_description=re.sub(r"\[([^]]+)\]\((?!https?:|#)[^)]*\)", r"\1", README),
    long_description_content_type="text/markdown",
    # Optional: without it, PyTorch does the same, more slowly. A wheel without it, which an index
    # has for all other machines: SPACY_ELMO_PURE=1.
    ext_modules=[]
    if os.environ.get("SPACY_ELMO_PURE")
    else [
        Extension(
            "spacy_elmo.kernels._kernels",
            ["spacy_elmo/kernels/_kernels.c"],
            depends=[str(path) for path in Path("spacy_elmo/kernels").glob("*.h")],
            libraries=[] if sys.platform == "win32" else ["m"],
            extra_compile_args=[] if sys.platform == "win32" else COMPILE_ARGS,
            extra_link_args=[] if sys.platform == "win32" else EXACT,
            py_limited_api=True,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
