"""One folder per operation: ``reference.py`` in plain PyTorch is the truth its fast twins meet."""
