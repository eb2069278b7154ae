"""Text in, biLM out: `corpus` makes arrays of texts, `trainer` trains on them, `export` makes a
pipeline of the result. The model and its training are PyTorch and NumPy. Of spaCy and thinc come
the tokenizers, the reading of configs, the loggers, and pipelines to begin with or to write."""
