"""``patch`` between two pictures: the same prompt, and what one picture changes in it."""

import numpy as np
import pytest
import torch
from PIL import Image

import attnviz
from attnviz.errors import UsageError
from attnviz.prompts.request import picture_pair
from attnviz.prompts.study import control_pairs, encode_pair

from ....models.test_picture_texts import opened, prompt, written


def pixels(*sizes):
    return [picture.pixels for picture in prompt(*sizes).pictures]


def test_a_head_is_carried_from_one_picture_to_the_other():
    """Its output at all tokens of the clean run is put into the corrupt one by a hook."""
    name, asked = "llava", "what is in the picture ?"
    model, processor, _ = opened(name, layers=2, tower_layers=1)
    images = pixels((24, 40), (24, 40))
    report = attnviz.patch(
        model, asked, image=images, processor=processor, answer="dog", foil="cat", layer=1
    )
    answer, foil = processor.tokenizer.convert_tokens_to_ids(["dog", "cat"])
    project = model.model.language_model.layers[1].self_attn.o_proj
    kept = []

    def run(picture, head=None):
        def note(module, args):
            if head is None:
                kept.append(args[0].clone())
                return None
            changed = args[0].clone()
            changed[..., 4 * head : 4 * head + 4] = kept[0][..., 4 * head : 4 * head + 4]
            return (changed,)

        hook = project.register_forward_pre_hook(note)
        made = processor(
            text=written(name, processor, prompt((24, 40))),
            images=[[Image.fromarray(picture)]],
            return_tensors="pt",
        )
        with torch.no_grad():
            logits = model(**made).logits[0, -1].double()
        hook.remove()
        return float(logits[answer] - logits[foil])

    clean, corrupt = run(images[0]), run(images[1])
    effects = {one.places[0]: one.change for one in report.effects}
    for head in range(4):
        moved = run(images[1], head) - corrupt
        assert effects[1, head] == pytest.approx(moved, abs=1e-5)
    assert clean != corrupt


def test_the_control_is_a_picture_with_the_same_pixels_in_another_order():
    _, _, known = opened("llava", layers=1)
    images = pixels((24, 40), (24, 40))
    (pair,) = picture_pair("what is", None, images).prompts
    tokens = encode_pair(known, pair, None, None)
    assert tokens.changed[0] == tuple(tokens.clean.layout.of_kind("patch").tolist())
    controls, _ = control_pairs(known, [tokens], "denoise", 2, 0)
    assert len({one.clean.ids for _, one in controls}) == 2
    for (_, shown), _ in list(known.read.items())[2:]:
        (mixed,) = shown
        assert not np.array_equal(mixed.pixels, images[0])
        assert np.array_equal(
            np.sort(mixed.pixels.reshape(-1, 3), 0), np.sort(images[0].reshape(-1, 3), 0)
        )


def test_what_is_no_pair_of_pictures():
    with pytest.raises(UsageError, match="give --image twice, got 1"):
        picture_pair("what is", None, pixels((24, 40)))
    with pytest.raises(UsageError, match="expected a prompt, CLEAN"):
        picture_pair(None, None, pixels((24, 40), (24, 40)))
    _, _, known = opened("qwen2_vl", layers=1)
    (pair,) = picture_pair("what is", None, pixels((24, 40), (40, 24))).prompts
    with pytest.raises(UsageError, match="the images have 3 x 5 and 5 x 3 patches"):
        encode_pair(known, pair, None, None)
