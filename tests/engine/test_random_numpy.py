"""Whatever the shape of a model of any family, scans and patches in NumPy are those of the loop."""

import random
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from attnviz.attention.families import FAMILIES, NotUnderstoodError
from attnviz.engine.effects import Variant
from attnviz.engine.patching import Patch

from ..attention.test_random_configs import UNBUILT, drawn
from .ablation_loop import MASK
from .scan.test_on_numpy import compared, looped, outputs
from .stacks import of_model
from .test_patching_numpy import SORTS, has_values, sorts_of
from .test_patching_numpy import compared as patches_compared
from .test_patching_numpy import looped as patches_looped

ANY = 1e9
"""How far torch in float32 may be off: logits of weights of any size are rounded away."""

PREDICTING = ("LM", "LMHeadModel")
TYPES = [family.model_types[0] for family in FAMILIES]


def made(draw, model_type, directory):
    """A model of a family with random sizes and settings, which NumPy runs."""
    family = next(one for one in FAMILIES if model_type in one.model_types)
    named = [name for name in sorted(family.heads) if name.endswith(PREDICTING)]
    for attempt in range(60):
        model_class = getattr(transformers, draw.choice(named))
        settings, _ = drawn(draw, model_class)
        place = directory / str(attempt)
        try:
            config = model_class.config_class(**settings)
            config._attn_implementation = "eager"
            model = model_class(config).eval()
        except UNBUILT:
            continue
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(4.0) if parameter.dim() > 1 else parameter.add_(0.1)
        model.save_pretrained(place)
        try:
            return of_model(model, place)
        except NotUnderstoodError:
            continue
    raise AssertionError(f"no {model_type} was understood")


def ids_of(draw, tokens):
    words = [word for word in range(4, 101) if word != MASK]
    return [draw.choice(words) for _ in range(tokens)]


def scan_is_the_loop(draw, model):
    tokens = draw.choice([2, 5]) if model.masked else draw.choice([2, 3, 9, 19])
    ids, other = ids_of(draw, tokens), ids_of(draw, tokens)
    heads = model.heads
    chosen = [draw.sample(heads, min(len(heads), draw.choice([1, 1, 2, 4]))) for _ in range(4)]
    variants = list(dict.fromkeys(Variant(tuple(sorted(some))) for some in chosen))
    value, options = None, {}
    if draw.random() < 0.4 and not model.masked:
        value, options = outputs(model, other), {"mode": "resample"}
    expected = [looped(model, variant, ids, value) for variant in variants]
    compared(model, variants, model.scans([ids], [other], pair=(5, 7), **options), expected, ANY)


def patching_is_the_loop(draw, model):
    tokens = draw.choice([3, 9, 19])
    clean = ids_of(draw, tokens)
    corrupt = [word if draw.random() < 0.7 else draw.choice([50, 60, 70]) for word in clean]
    position = tokens - 1
    if model.masked:
        position = draw.randrange(tokens)
        clean[position] = corrupt[position] = MASK
    if clean == corrupt:
        corrupt[(position + 1) % tokens] = 99
    direction = draw.choice(["denoise", "noise"])
    base, source = (corrupt, clean) if direction == "denoise" else (clean, corrupt)
    found = model.patchings(clean, corrupt, direction=direction)
    at = sorted(draw.sample(range(tokens), draw.choice([1, 2])))
    sorts = [what for what in sorts_of(model) if what != "pattern" or has_values(model)]
    sites = [
        draw.choice(found[0].sites(what, [None, tuple(at)]))
        for what in draw.sample(sorts, min(3, len(sorts)))
    ]
    patches = [Patch((site,)) for site in sites]
    if all(site.what != "pattern" for site in sites):  # the loop mixes the base run's own values
        patches.append(Patch(tuple(sites)))
    expected = patches_looped(model, base, source, clean, patches, position)
    patches_compared(found, patches, expected, ANY)
    assert set(sorts) <= set(SORTS)


@pytest.mark.parametrize(
    ("model_type", "seed"),
    [
        *((model_type, 0) for model_type in TYPES[::4]),
        *(
            pytest.param(model_type, seed, marks=pytest.mark.long)
            for model_type in TYPES
            for seed in range(1, 4)
        ),
    ],
)
def test_a_random_shape(model_type, seed, tmp_path):
    draw: Any = random.Random(f"{model_type} {seed}")
    torch.manual_seed(seed)
    model = made(draw, model_type, tmp_path)
    assert np.isfinite(model.numpy.stack.logits([5, 6])).all()
    scan_is_the_loop(draw, model)
    patching_is_the_loop(draw, model)
