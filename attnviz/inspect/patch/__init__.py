"""Activation patching: what carries the difference between two prompts, and how much of it."""

from attnviz import _callable

_callable(__name__)
