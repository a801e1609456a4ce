"""A small corpus: pieces of the passages that the package contains, some of them twice."""

from attnviz.texts import natural_texts

PIECES = [
    " ".join(words[start : start + 14])
    for words in map(str.split, natural_texts())
    for start in range(0, len(words) - 14, 5)
]
TEXTS = [*PIECES[:75], *PIECES[:15], *PIECES[75:]]
"""Two blocks of 64 texts, of which fifteen are there twice."""

TOP = 3
"""The places of each head that are kept."""
