"""A byte-level BPE tokenizer (Sennrich et al. 2016; bytes as in GPT-2) made from a text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from attnviz.errors import UsageError

__all__ = ["BEGINNING", "make_tokenizer"]

BEGINNING = 0
"""Id of the token that stands at the start of every sequence and between two texts."""

_BEGINNING_TEXT = "<|endoftext|>"
_USUAL = 4096
_LEAST_PAIRS = 2
"""How often a pair of tokens must occur to become a token: what occurs once teaches nothing."""

_LONGEST_WORD = 1000
_LONG_WORD = re.compile(rf"(?<!\S)\S{{{_LONGEST_WORD + 1},}}")


def make_tokenizer(texts: Sequence[str], vocabulary: int | None) -> Tokenizer:
    """A tokenizer of exactly ``vocabulary`` tokens that puts ``BEGINNING`` first.

    vocabulary: None for 4,096, or fewer where the text does not allow as many.
    Raises UsageError where the text does not allow that many, with the number that it does.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary or _USUAL,
        min_frequency=_LEAST_PAIRS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[AddedToken(_BEGINNING_TEXT, special=True, normalized=False)],
        show_progress=False,
    )
    tokenizer.train_from_iterator(_pieces(texts), trainer)
    made = tokenizer.get_vocab_size()
    if vocabulary is not None and made < vocabulary:
        raise UsageError(
            f"a vocabulary of {vocabulary:,} is larger than the text allows: it has pairs that "
            f"repeat for {made:,} tokens; ask for at most that many, or give more text"
        )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{_BEGINNING_TEXT} $A", special_tokens=[(_BEGINNING_TEXT, BEGINNING)]
    )
    return tokenizer


def _pieces(texts: Iterable[str]) -> Iterator[str]:
    """Paragraphs, for the trainer splits at white space anyway and reads them in parallel.

    Longer words are cut: it goes through a whole word again for each pair that it joins there.
    """
    for text in texts:
        for line in text.splitlines(True):
            start = 0
            for word in _LONG_WORD.finditer(line) if len(line) > _LONGEST_WORD else ():
                for end in range(word.start() + _LONGEST_WORD, word.end(), _LONGEST_WORD):
                    yield line[start:end]
                    start = end
            yield line[start:]
