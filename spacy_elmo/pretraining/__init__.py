"""Text in, biLM out: `corpus` turns texts into arrays, `trainer` trains on them, `export` writes a
pipeline. The model and its training use PyTorch and NumPy. The tokenizers, the reading of configs,
the loggers, and pipelines to start from or to write use spaCy and thinc."""
