"""Text in, biLM out. Pure PyTorch: spaCy only tokenises, in `tokenize`."""
