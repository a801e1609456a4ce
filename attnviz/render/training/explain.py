"""A plain reading of a training run, for someone new to it."""

from __future__ import annotations

__all__ = ["EXPLANATION"]

EXPLANATION = (
    "How to read this: the loss is how badly the next token is predicted, in nats; e to the power "
    "of it, the perplexity, is the number of equally likely tokens that would be as hard to guess "
    "among. It falls as the model learns.",
    "Two losses: training loss is on what is learned from, validation loss on text that is never "
    "learned from. Where the first falls on and the second rises while text is read, the model "
    "learns by heart; where nothing but random tokens is read at first, the second rises too.",
    "Bits per byte: the same loss counted by bytes of text; it compares models that cut text into "
    "other tokens.",
    "Repeated tokens: part of what is read are random tokens that stand there twice. Only looking "
    "back helps to predict the second copy, and heads that do it form: induction heads.",
    "Heads: a score is the share of a head's attention that goes where the name says, of 1; even "
    "is what a head gets that looks everywhere alike. The error is that of a mean over sequences.",
)
