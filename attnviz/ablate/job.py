"""All that a scan needs, read, encoded and checked before the first pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attnviz.ablate.choice import choose_ablations
from attnviz.ablate.options import Request
from attnviz.ablate.records import Head
from attnviz.ablate.resume import digest, texts_digest
from attnviz.cli.inputs import Texts, encode_texts, single_token
from attnviz.cli.progress import Advance
from attnviz.engine.effects import Variant
from attnviz.engine.over_text import Choice, attention_kind, target_tokens
from attnviz.engine.scan.options import ScanOptions
from attnviz.engine.scan.run import Scan, open_scan
from attnviz.errors import UsageError
from attnviz.models.fingerprint import weights_fingerprint
from attnviz.models.model import Model, NumpyModel, TwoStackModel
from attnviz.models.own import OwnAttention
from attnviz.records import Kind, Tokens

__all__ = ["Job"]

_DRAWS = 4
"""How many other texts are drawn from for each text where nobody says."""


@dataclass(frozen=True)
class Job:
    """One scan, ready to run.

    written: the texts as they were given, those that are measured on.
    texts, targets: their tokens; targets only of an encoder–decoder.
    references, reference_targets: where replacement values come from; empty where they are zero.
    reference_words: the same in words, None for zero.
    pair: answer and foil as (id, text), or None.
    notes: sentences on what was done to the texts.
    """

    model: Model
    request: Request
    kind: Kind
    written: tuple[str, ...]
    texts: tuple[Tokens, ...]
    targets: tuple[Tokens, ...]
    references: tuple[Tokens, ...]
    reference_targets: tuple[Tokens, ...]
    reference_words: str | None
    variants: tuple[Variant, ...]
    pair: tuple[tuple[int, str], tuple[int, str]] | None
    options: ScanOptions
    notes: tuple[str, ...] = ()

    @classmethod
    def prepare(
        cls,
        model: Model,
        texts: Texts,
        reference: Texts | None,
        request: Request,
    ) -> Job:
        """Encode and check everything.

        reference: the texts of ``--reference``; None for the measured ones.
        Raises UsageError for heads, texts or tokens that do not fit the model.
        """
        ablation, measure, truncate = request.ablation, request.measure, request.truncation.truncate
        choice = Choice(kind=request.kind.kind, target=request.kind.target, truncate=truncate)
        kind = attention_kind(model, Choice(kind=choice.kind))
        two_stacks = "decoder" in model.kinds
        if choice.target is not None and (not two_stacks or len(texts.texts) > 1):
            why = "has one stack and writes none" if not two_stacks else "is to read several texts"
            raise UsageError(f"--target is the text of one decoder: {model.info.name!r} {why}")
        least = 1 if two_stacks or isinstance(model, OwnAttention) else 2
        tokens = encode_texts(model, texts, truncate, least)
        references, words = _references(model, texts, tokens, reference, request)
        targets = _targets(model, tokens, choice)
        reference_targets = _targets(model, references, choice)
        kept: Sequence[int] = range(len(tokens))
        notes = model.notes_for(max(tokens, key=len))
        if ablation.mode == "resample":
            decoder = kind in ("decoder", "cross")
            kept, left_out = _with_partners(
                targets if decoder else tokens, reference_targets if decoder else references
            )
            notes += left_out
        pair = _pair(model, request)
        options = ScanOptions(
            mode=ablation.mode,
            positions=measure.positions,
            pair=(pair[0][0], pair[1][0]) if pair else None,
            draws=(ablation.draws or _DRAWS) if ablation.mode == "resample" else 1,
            seed=request.seed,
            token_losses=request.view.by_token,
            max_memory=measure.memory,
        )
        tokens = tuple(tokens[place] for place in kept)
        targets = tuple(targets[place] for place in kept) if targets else ()
        heads = None
        if not isinstance(model, NumpyModel):  # all of its layers have; to ask would bring torch
            heads = open_scan(model, tokens[:1], kind=kind, targets=targets[:1]).heads
            if len(heads) < model.info.layers and kind == "self":
                notes += (
                    f"{len(heads)} of {model.info.layers} layers have attention heads: the others "
                    "have none to remove",
                )
        return cls(
            model,
            request,
            kind,
            tuple(texts.texts[place] for place in kept),
            tokens,
            targets,
            references,
            reference_targets,
            words,
            choose_ablations(request, model.info, heads),
            pair,
            options,
            notes,
        )

    def scan(self, control: bool = False) -> Scan:
        """The model, ready to be measured: without heads, or with random directions taken off.

        Raises UnsupportedError where the heads of the architecture cannot be removed.
        """
        losses = self.options.token_losses and not control
        return open_scan(
            self.model,
            self.texts,
            replace(self.options, control=control, token_losses=losses),
            kind=self.kind,
            targets=self.targets,
            references=self.references,
            reference_targets=self.reference_targets,
        )

    def drawn(self) -> list[int]:
        """The texts in the order in which a time that may not suffice is spent on them.

        The first one stays in front: it is the one that is shown.
        """
        rest = np.random.default_rng(self.options.seed).permutation(len(self.texts) - 1) + 1
        return [0, *rest.tolist()]

    def gradients(
        self, advance: Advance, texts: Sequence[int], enough: Callable[[], bool] = lambda: False
    ) -> dict[Head, float]:
        """First-order importance of every head that was asked for, mean over the texts.

        texts: their places. enough: asked after each text; True leaves out those that follow.
        Raises UsageError for a model without a loss.
        """
        if isinstance(self.model, OwnAttention):
            raise UsageError(
                f"{self.model.info.name!r} predicts no words: without a loss there is no gradient; "
                "choose --method exact"
            )
        from attnviz.engine.gradient import gradient_importance  # torch only where needed
        from attnviz.engine.scan.models import open_subject, passages_of

        passages = passages_of(self.texts, self.targets)
        read = self.targets or self.texts
        asked = {head for variant in self.variants for head in variant.heads}
        found = gradient_importance(
            open_subject(self.model, self.kind, passages[0]),
            [passages[text] for text in texts],
            special=[read[text].special for text in texts],
            on_progress=lambda done, total: advance(done / total),
            enough=enough,
        )
        return {head: score for head, score in found.items() if head in asked}

    def identity(self) -> Mapping[str, Any]:
        """All that the results depend on, for a resume file to be held against."""
        info, options = self.model.info, self.options
        heads = [variant.heads for variant in self.variants]
        return {
            "model": info.name,
            "weights": weights_fingerprint(self.model),
            "dtype": info.dtype,
            "texts": texts_digest((*self.texts, *self.targets)),
            "kind": self.kind,
            "removals": f"{len(heads)} ({digest(heads)})",
            "mode": options.mode,
            "reference": texts_digest((*self.references, *self.reference_targets)),
            "draws": options.draws,
            "seed": options.seed,
            "positions": options.positions,
            "answer_and_foil": list(options.pair) if options.pair else None,
            "token_losses": options.token_losses,
            "method": self.request.measure.how,
        }


def _references(
    model: Model,
    texts: Texts,
    tokens: tuple[Tokens, ...],
    reference: Texts | None,
    request: Request,
) -> tuple[tuple[Tokens, ...], str | None]:
    """The tokens that replacement values come from, and their name."""
    mode = request.ablation.mode
    if mode == "zero":
        return (), None
    if reference is None:
        if len(texts.texts) > 1:
            other = "another of " if mode == "resample" else ""
            return tokens, f"{other}the {len(tokens)} measured texts"
        return tokens, "the measured text itself"
    place = f"the reference {reference.source}: "
    encoded = encode_texts(model, reference, request.truncation.truncate, 1, place)
    return encoded, f"{len(encoded)} text{'s' * (len(encoded) != 1)} of {reference.source}"


def _pair(model: Model, request: Request) -> tuple[tuple[int, str], tuple[int, str]] | None:
    """Answer and foil as (id, text); None where nobody asked."""
    measure = request.measure
    if measure.answer is None or measure.foil is None:
        return None
    answer = single_token(model, measure.answer, "--answer")
    foil = single_token(model, measure.foil, "--foil")
    if answer[0] == foil[0]:
        raise UsageError(
            f"--answer and --foil are the same token, {answer[1]!r}: name two that differ"
        )
    return answer, foil


def _with_partners(
    tokens: Sequence[Tokens], references: Sequence[Tokens]
) -> tuple[Sequence[int], tuple[str, ...]]:
    """The texts for which another one is long enough to stand in, and a note on those left out.

    All of them where there is none: the scan says what is missing.
    """
    kept = [
        place
        for place, text in enumerate(tokens)
        if any(len(other) >= len(text) and other.ids != text.ids for other in references)
    ]
    left = len(tokens) - len(kept)
    if not kept or not left:
        return range(len(tokens)), ()
    verb = "was" if left == 1 else "were"
    return kept, (
        f"{left} of {len(tokens)} texts {verb} left out: no other text is as long, so that none "
        "can stand in",
    )


def _targets(model: Model, tokens: Sequence[Tokens], choice: Choice) -> tuple[Tokens, ...]:
    """What a decoder writes for each text; empty for models without one."""
    if not isinstance(model, TwoStackModel) or "decoder" not in model.kinds:
        return ()
    return tuple(target_tokens(model, one, choice) for one in tokens)
