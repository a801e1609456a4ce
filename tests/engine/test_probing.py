"""What a model is given for scoring its heads: a decoder reads the same text, and all of it."""

from dataclasses import replace

import pytest
import torch

from attnviz.engine.capture import Probing
from attnviz.errors import UsageError
from attnviz.models.prepare import prepared

from .architectures import small_model

TEXT = "the cat sat on the mat because"


@pytest.mark.parametrize("kind", ["decoder", "cross"])
def test_a_text_that_is_too_long_for_the_decoder_is_refused_or_cut(kind):
    model = prepared("bart", small_model("bart"), None, torch.device("cpu"), seed=0)
    whole = model.encode_target(TEXT)
    short = Probing(replace(model, target_context=5), kind, True)
    if kind == "decoder":
        with pytest.raises(UsageError, match="tokens, the decoder of 'bart' takes at most 5:"):
            short.input_of(TEXT, truncate=False)
        assert short.input_of(TEXT).target.ids == whole.ids[:5]
        assert Probing(model, kind, True).input_of(TEXT, truncate=False).target == whole
    else:  # the model writes the decoder's text by itself, or reads this one
        assert len(short.input_of(TEXT).target) <= 5
