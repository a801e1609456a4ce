"""Change a running model and measure what follows: ``ablate``, ``patch`` and ``path``."""
