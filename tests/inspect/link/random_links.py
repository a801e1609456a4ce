"""Links of models with random weights over random words, in which nothing is to be found."""

from dataclasses import replace

import numpy as np

from attnviz.attention.family_reading import llama_stack
from attnviz.inspect.link.link import link
from attnviz.inspect.link.request import LinkRequest
from attnviz.models.bundled import Bundled
from attnviz.prompts.study import Prompt

WORDS = 10
"""The words of a prompt, as few as the control replaces many of."""


def random_link(seed, prompts):
    """Return the report on a head of a random model over random prompts.

    The prompts differ from their controls in nothing but the draw, so that each part that stands
    out is a false alarm. The head and the key are drawn, not chosen because the link is strong.
    """
    model, generator = Bundled(seed=seed), np.random.default_rng(seed)
    large = {name: each * 4 if each.ndim > 1 else each for name, each in model.tensors.items()}
    model.stack = llama_stack(model.checkpoint.config, large, "float32")  # so that heads are sharp
    vocabulary = model.vocabulary()
    texts = vocabulary.texts(vocabulary.plain.tolist())
    words = [text for text in texts if text.startswith(" ") and text.strip().isalpha()]
    drawn = ["".join(generator.choice(words, WORDS)).strip() for _ in range(prompts)]
    head, key = f"L{generator.integers(1, 3)}H{generator.integers(4)}", generator.integers(1, WORDS)
    asked = [Prompt(text) for text in drawn]
    report = link(model, asked, LinkRequest(head=head, key=str(key), seed=seed))
    # A random model has no p at all; as if a checkpoint held these weights.
    return replace(report, model=replace(report.model, weights="checkpoint"))
