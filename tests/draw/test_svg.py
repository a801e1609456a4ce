"""The PNG writer, read back by Pillow, which matplotlib brings along."""

import base64
import io

import numpy as np
from PIL import Image

from attnviz.draw.palette import STEPS, colour_table
from attnviz.draw.svg import png_uri


def test_every_step_has_its_colour_and_blank_is_transparent():
    steps = np.concatenate([np.arange(STEPS), np.full(3, -1)]).reshape(7, 37)
    kind, content = png_uri(steps, "magma").split(",")
    assert kind == "data:image/png;base64"
    image = Image.open(io.BytesIO(base64.b64decode(content))).convert("RGBA")
    assert image.size == (37, 7)
    table = colour_table("magma")
    for step, pixel in zip(steps.ravel(), np.asarray(image).reshape(-1, 4).tolist(), strict=True):
        if step < 0:
            assert pixel[3] == 0
        else:
            assert tuple(pixel) == (*table[max(step, 1)], 255)
