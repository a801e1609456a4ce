"""Open a model for scoring its heads: its inputs, whether it is causal, its random twin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from attnviz.engine.backend import backend_of
from attnviz.engine.capture import Choice, capture, kind_of, reading_segments, target_tokens
from attnviz.engine.head_run import KeepLayers, ReadLayer, Run
from attnviz.engine.observer import BLOCK_CELLS, Held, Observer, SumsReader
from attnviz.errors import UsageError
from attnviz.measures.reduced import ReducedLayer
from attnviz.models.model import Model, TwoStackModel, random_copies
from attnviz.models.resolve import random_twin
from attnviz.records import Input, Kind, Tokens

_TRIAL = "The cat sat on the mat."

_FEWEST = 8
"""The least number of tokens of a decoder text that a model wrote; a shorter one is not used."""


@dataclass(frozen=True)
class Probing:
    """A model opened for measuring pattern scores of its heads, with one kind of attention.

    causal: True if no query sees a later key, as found on a short text.
    """

    model: Model
    kind: Kind
    causal: bool

    @property
    def ranked(self) -> bool:
        """Return True if the tokens' order in the vocabulary is that of their frequency."""
        return self.model.vocabulary().ranked

    def input_of(self, text: str, tokens: Tokens | None = None, *, truncate: bool = True) -> Input:
        """Return the model's input for ``text``, cut to the model's context.

        A decoder gets the same text, or for cross attention the text that the model itself
        generates. tokens: of the text, if they are known.
        truncate: False refuses a text that is too long for the decoder, by UsageError.
        """
        tokens = tokens or self.model.encode(text, self.model.context)
        if self.kind not in ("decoder", "cross"):
            return Input(tokens)
        return Input(tokens, self._target(text, tokens, truncate))

    def inputs_of(
        self, texts: Sequence[str], encoded: Sequence[Tokens], truncate: bool
    ) -> list[Input]:
        """Return the model's input for each text. encoded: their tokens; see ``input_of``."""
        pairs = zip(texts, encoded, strict=True)
        return [self.input_of(text, tokens, truncate=truncate) for text, tokens in pairs]

    def _target(self, text: str, tokens: Tokens, truncate: bool) -> Tokens | None:
        model = self.model
        if not isinstance(model, TwoStackModel):
            return None
        if self.kind == "cross":
            try:
                written = target_tokens(model, tokens, Choice())
            except UsageError:  # a model without a language-model head cannot write
                written = Tokens.bare(())
            if len(written) >= _FEWEST:
                return written
        same, most = model.encode_target(text), model.target_context
        if not truncate and most is not None and len(same) > most:
            raise UsageError(
                f"a text has {len(same):,} tokens, the decoder of {model.info.name!r} takes at "
                f"most {most:,}: shorten it, or add --truncate to cut it there"
            )
        return same.cut(most)

    def copies(self, length: int, copies: int, seed: int) -> Input | None:
        """Return ``length`` random tokens ``copies`` times; None if they do not fit the context."""
        vocabulary = self.model.vocabulary()
        if len(vocabulary.plain) < length or self.kind == "cross":
            return None
        tokens = random_copies(vocabulary, length, copies, seed)
        context = self.model.context
        if self.kind == "decoder" and isinstance(self.model, TwoStackModel):
            context = self.model.target_context
            source = self.model.encode(_TRIAL)
            start = self.model.encode_target(_TRIAL, 1)
            plain = random_copies(vocabulary.bare(), length, copies, seed)
            target = Tokens(
                start.ids + plain.ids, start.texts + plain.texts, start.special + plain.special
            )
            return Input(source, target) if _fits(target, context) else None
        return Input(tokens) if _fits(tokens, context) else None

    def notes_for(self, inputs: Sequence[Input]) -> tuple[str, ...]:
        """Return notes about these inputs, in addition to the model's own notes."""
        if not inputs:
            return ()
        return self.model.notes_for(max((given.text for given in inputs), key=len))

    def open_heads(self, given: Input) -> tuple[Run, tuple[str, ...]]:
        """Return a function that runs inputs and observes heads; see ``Backend.open_heads``."""
        predicts = self.causal if self.kind == "self" else self.kind != "encoder"
        return backend_of(self.model).open_heads(self.kind, given, predicts)

    def run(
        self,
        observer: Observer,
        inputs: Sequence[Input],
        *,
        cells: int | None = BLOCK_CELLS,
        held: Held = "auto",
    ) -> None:
        """Run inputs of one length, and hand attention to ``observer``; see ``Backend.observe``."""
        with reading_segments(self.model, inputs[0].text):
            backend_of(self.model).observe(observer, inputs, cells=cells, held=held)

    def read_sums(self, reader: SumsReader, inputs: Sequence[Input]) -> None:
        """Run the model over inputs of one length; see ``Backend.read_sums``."""
        with reading_segments(self.model, inputs[0].text):
            backend_of(self.model).read_sums(reader, inputs)

    def read_layers(
        self, given: Input, read: Callable[[ReducedLayer], ReadLayer]
    ) -> dict[int, ReadLayer]:
        """Return what ``read`` computes from each layer's sums, see ``Backend.read_sums``."""
        reader = KeepLayers(self.kind, read)
        self.read_sums(reader, [given])
        return reader.layers

    def twin(self, seed: int) -> Probing:
        """Return the architecture with random parameters, opened for the same kind of attention."""
        return Probing(random_twin(self.model, seed), self.kind, self.causal)


def _fits(tokens: Tokens, context: int | None) -> bool:
    return context is None or len(tokens) <= context


def open_probing(model: Model, kind: Kind | None = None) -> Probing:
    """Return a model opened for one kind of attention; UsageError if it lacks it."""
    kind = kind_of(model, kind)
    if kind == "cross":
        return Probing(model, kind, causal=False)
    target = None
    if kind == "decoder" and isinstance(model, TwoStackModel):
        target = model.encode_target(_TRIAL)
    trial = getattr(model, "trial", None) or model.encode(_TRIAL)  # of pictures, one of its own
    record = capture(model, trial, kind=kind, target=target)
    return Probing(model, kind, record.causal)
