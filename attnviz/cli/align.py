"""The command ``attnviz align``: which cross-attention heads tell when a word is spoken."""

from __future__ import annotations

from attnviz.cli import options as shared
from attnviz.cli.groups import command
from attnviz.cli.outlet import Outlet
from attnviz.inspect.align.request import AlignRequest, ClipOptions

EXAMPLES = """
attnviz align --audio clips --words words.csv --model openai/whisper-tiny
attnviz align --audio a.wav --audio b.wav --words words.json --save heads.json
"""


@command(EXAMPLES, "--audio --words --most --recipe")
def align(
    clips: ClipOptions, request: AlignRequest, model: shared.LoadedModel, output: shared.Output
) -> None:
    """Find the heads of a speech model that time words, on held-out clips."""
    outlet = Outlet.open(output, model)
    from attnviz.inspect.align.align import align as question
    from attnviz.inspect.align.clips import find_clips, read_words
    from attnviz.models.speech import SpeechModel
    from attnviz.models.work import Work

    assert clips.words is not None
    words = read_words(clips.words)
    paths = find_clips(clips.audio, words)
    with outlet.of(model.model):
        opened = outlet.load_model(Work(speech=True))
        assert isinstance(opened, SpeechModel)
        outlet.run("reading the clips", question, opened, paths, words, request)
