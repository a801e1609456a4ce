"""A case whose truth is known: a coloured square on noise, which tells the class."""

import numpy as np
import pytest
import torch

from attnviz.inspect.picture.picture import picture
from attnviz.inspect.picture.request import PictureRequest
from attnviz.models.pictures import read_picture
from attnviz.models.vision import handed_pictures
from tests.models.vision_models import build, processor

SIDE, PATCH, SQUARE = 64, 8, 2  # pixels, pixels of a patch, patches of the square's side


def drawn(draw):
    """A picture of noise with a square in one of three colours, and the corner of the square."""
    pixels = draw.integers(60, 196, (SIDE, SIDE, 3), dtype=np.uint8)
    colour, (row, column) = draw.integers(3), draw.integers(0, SIDE // PATCH - SQUARE + 1, 2)
    own = np.s_[row * PATCH : (row + SQUARE) * PATCH, column * PATCH : (column + SQUARE) * PATCH]
    pixels[own] = np.eye(3, dtype=np.uint8)[colour] * 255
    return pixels, int(colour), int(row), int(column)


@pytest.mark.long
def test_the_pooling_that_was_trained_points_at_the_square():
    """Only the pooling and a linear probe learn; the layers below keep random weights."""
    model = build("SiglipVisionModel", image_size=SIDE)
    draw, read = np.random.default_rng(0), processor(SIDE, SIDE)
    probe = torch.nn.Linear(48, 3)
    learnt = [*model.head.parameters(), *probe.parameters()]
    steps = torch.optim.Adam(learnt, lr=3e-3)
    with torch.enable_grad():
        for _ in range(150):
            shown = [drawn(draw) for _ in range(32)]
            values = read(images=[one[0] for one in shown], return_tensors="pt")["pixel_values"]
            with torch.no_grad():
                states = model.post_layernorm(model.encoder(model.embeddings(values))[0])
            loss = torch.nn.functional.cross_entropy(
                probe(model.head(states)), torch.tensor([one[1] for one in shown])
            )
            steps.zero_grad()
            loss.backward()
            steps.step()
    assert loss < 0.3
    opened, hits = handed_pictures(model, read), []
    for number in range(40):
        pixels, _, row, column = drawn(draw)
        report = picture(opened, opened.read(read_picture(pixels, f"{number}")), PictureRequest())
        mean = np.mean([report.on_patches(head) for head in report.asking], axis=0)
        peak = np.unravel_index(mean.argmax(), mean.shape)
        hits.append(0 <= peak[0] - row < SQUARE and 0 <= peak[1] - column < SQUARE)
    base = SQUARE**2 / (SIDE // PATCH) ** 2
    assert np.mean(hits) > 0.5 > 5 * base
