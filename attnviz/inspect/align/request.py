"""The options of ``align``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from attnviz.errors import UsageError
from attnviz.options import IndexBase, Options, option

if TYPE_CHECKING:  # these import NumPy
    from attnviz.inspect.align.study import Clips, GoldPairs


@dataclass(frozen=True)
class AlignOptions(Options):
    """The options that give what heads align: sounds of known words, or linked sentence pairs."""

    audio: tuple[str, ...] = option(
        "FILE|DIR",
        "Audio files that --words covers, or a directory of them; may be repeated.",
        (),
        brief="Audio files, or a directory of them.",
    )
    words: Path | None = option(
        "FILE",
        "When each word is spoken: CSV, TSV or JSON with clip, word, start and end columns "
        "(seconds).",
        brief="Table with clip, word, start and end (seconds).",
    )
    pairs: Path | None = option(
        "FILE",
        "Sentence pairs with gold word alignments, one pair per line: source ||| target ||| 0-0 "
        "1?2.",
        brief="Gold word alignments: source ||| target ||| 0-0 1?2.",
    )
    prefix: str = option(
        "TEXT", "Text to put before each source, such as T5's task prefix.", "", words=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pairs is not None:
            if self.audio or self.words is not None:
                raise UsageError("--pairs are texts: leave out --audio and --words")
        elif not self.audio or self.words is None:
            lacks = "--audio FILE" if not self.audio else "--words FILE"
            lacks += "" if self.audio or self.words else " and --words FILE, or --pairs FILE"
            raise UsageError(f"align needs to know when each word is spoken: add {lacks}")
        elif self.prefix:
            raise UsageError("--prefix is for sentence pairs: leave it out next to --audio")

    def read(self, recipe: str | None) -> Clips | GoldPairs:
        """Return the clips or the pairs that the options name. recipe: of ``AlignRequest``.

        Raises LoadError or UsageError for files that are none.
        """
        from attnviz.inspect.align.study import Clips, find_clips, read_gold, read_words

        if self.pairs is not None:
            if recipe is not None:
                raise UsageError("--recipe is for audio: both ways are tried with --pairs")
            return read_gold(self.pairs, self.prefix)
        assert self.words is not None
        words = read_words(self.words)
        return Clips(find_clips(self.audio, words), words)


@dataclass(frozen=True)
class AlignRequest(IndexBase):
    """All options of ``align`` but what heads align.

    recipe: which rows of cross attention are aligned with a sound. ``openai`` (the default) takes
    those that write each token and the end, as OpenAI's code does: they say when a token begins.
    ``transformers`` takes those that read each token, as ``return_token_timestamps`` does: they say
    when it ends, and a token begins where the one before ended, the first at 0.
    """

    most: int = option("N", "Select at most N heads.", 10, min=1, max=64)
    recipe: Literal["openai", "transformers"] | None = option(
        "NAME",
        "How transcript tokens are timestamped: openai (default): a token starts at the step that "
        "predicts it; transformers: a token ends at the step that reads it.",
        brief="Rows aligned with audio: openai, transformers.",
    )
    seed: int = option("N", "Random seed (random sets of heads, bootstrap).", 0, min=0)
