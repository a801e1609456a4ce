"""The chips of a page that name what is worth a look."""

from __future__ import annotations

import re

import pytest

import attnviz
from attnviz.draw.labels import token_labels

TEXT = "When Mary and John went to the shop, John gave a drink to Mary. Then Mary and"


@pytest.mark.parametrize("text", [TEXT, "The cat sat on the mat because it was tired."])
def test_a_chip_has_a_label_only_on_a_link_that_shows_it(text: str) -> None:
    page = attnviz.heads("tiny", text).document().page
    assert page is not None
    shown = page()
    tokens = shown.captures[0].queries
    labelled = [look for look in shown.look if re.match(r"[a-z ]+ [.\d]+: ", look.says)]
    assert labelled
    for look in labelled:
        label, earlier = look.says.split(" .")[0], tokens.texts[: look.query]
        place = {
            "previous token": look.key == look.query - 1,
            "current token": look.key == look.query,
            "induction": tokens.texts[look.key - 1] == tokens.texts[look.query]
            and look.key <= len(earlier),
            "punctuation": not re.search(r"\w", token_labels(tokens)[look.key]),
            "peaked": True,
        }
        assert place[label], look.says
