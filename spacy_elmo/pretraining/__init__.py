"""Text in, biLM out. PyTorch and NumPy, but for `tokenize` and `reading`, which take texts apart
with spaCy, and `export`, which makes a pipeline of the result."""
