"""The directory of a training run: checks before it begins, its curve, its state, its card."""

from __future__ import annotations

import csv
import io
import json
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from attnviz.draw import document as doc
from attnviz.draw.files import check_new_directory, whole_file
from attnviz.draw.markdown import document_markdown, part_markdown
from attnviz.errors import LoadError, UsageError
from attnviz.learn.train.report import CurvePoint, TrainReport
from attnviz.reading import CORPUS_BYTES, damage, damaged, read_bytes
from attnviz.resume import refuse_other_run

CARD_FILE = "README.md"
"""The model card, which is written last: a directory with a card holds a finished model."""

LOG_FILE = "log.csv"
"""The learning curve of a run."""

STATE_FILE = "training.pt"
"""The state of a run, next to the model's files; it may be deleted once the run is finished."""

_PARTS = (".attnviz-*.part", ".*.tmp")
"""Names of unfinished files that a killed process may leave."""

_FORM = 2
"""Version of the stored state; to be raised when ``Trainer.state`` changes."""

_LOOK = """`attnviz heads --model THIS_DIRECTORY "The cat sat on the mat."` shows its heads, and
`LlamaForCausalLM.from_pretrained("THIS_DIRECTORY")` of transformers reads the same files."""


def check_directory(directory: Path, resume: bool) -> None:
    """Raise an error if a training cannot begin or continue in ``directory``; create nothing.

    resume: whether the run continues an interrupted one. Raises UsageError if files would be lost
    or the run is finished, LoadError if there is nothing to resume or no permission to write.
    """
    shown = repr(str(directory))
    there = {name for name in (STATE_FILE, LOG_FILE, CARD_FILE) if (directory / name).exists()}
    finished = STATE_FILE not in there and len(there) == 2
    if finished and resume:
        raise UsageError(
            f"the run in {shown} is finished, nothing is left to resume: attnviz heads --model "
            f"{shown} shows the model, another --out trains a new one"
        )
    if finished:
        raise UsageError(
            f"{shown} already holds a trained model: name a new --out, nothing is overwritten"
        )
    if STATE_FILE in there and not resume:
        raise UsageError(
            f"{shown} holds a run that is not finished: --resume goes on with it, another --out "
            "begins a new one"
        )
    if STATE_FILE not in there and resume:
        raise LoadError(
            f"nothing to resume: {shown} holds no {STATE_FILE}; leave out --resume to begin"
        )
    if not resume:
        check_new_directory(directory)


def clean_directory(directory: Path) -> None:
    """Remove the unfinished files that a killed process left."""
    for pattern in _PARTS:
        for path in directory.glob(pattern):
            path.unlink(missing_ok=True)


def write_curve(directory: Path, points: Sequence[CurvePoint]) -> None:
    """Write the curve of a run as a CSV file of rounded numbers, replacing the previous file."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(CurvePoint.__dataclass_fields__), lineterminator="\n")
    writer.writeheader()
    forms = {"seconds": ".1f", "learning_rate": ".3e", "loss": ".4f", "valid_loss": ".4f"}
    for point in points:
        row = {name: value for name, value in asdict(point).items() if value is not None}
        writer.writerow({name: format(value, forms.get(name, "")) for name, value in row.items()})
    with whole_file(directory / LOG_FILE) as stream:
        stream.write(text.getvalue().encode())


def write_state(
    directory: Path, run: Mapping[str, Any], state: Mapping[str, Any], points: Sequence[CurvePoint]
) -> None:
    """Write the state of a training to its directory, replacing the previous file.

    run: identifies the run, as JSON values; ``read_state`` refuses the state of another run.
    state: tensors, numbers, texts and containers of them. points: the curve so far.
    Raises LoadError if the file cannot be written; the old file stays.
    """
    buffer = io.BytesIO()
    stored = {"form": _FORM, "run": run, "state": dict(state), "points": [*map(asdict, points)]}
    torch.save(stored, buffer)
    with whole_file(directory / STATE_FILE) as stream:
        stream.write(buffer.getbuffer())


def read_state(directory: Path, run: Mapping[str, Any]) -> tuple[dict[str, Any], list[CurvePoint]]:
    """Return the state and the curve that ``write_state`` wrote last.

    run: identifies the run that is to be continued.
    Raises LoadError if there is no state or it is damaged, UsageError if it is of another run.
    """
    path = directory / STATE_FILE
    content = read_bytes(path, most=CORPUS_BYTES)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as parts:
            if parts.testzip() is not None:  # torch itself compares no checksums
                raise zipfile.BadZipFile
        stored = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        form, there, state, points = (stored[key] for key in ("form", "run", "state", "points"))
    except damage() as error:
        raise LoadError(f"{str(path)!r} is not a training state, or is damaged") from error
    if form != _FORM:
        raise LoadError(
            f"{str(path)!r} was written by another version of attnviz: go on with that one, or "
            "begin again in another --out"
        )
    refuse_other_run(repr(str(path)), there, run, "name what it began with, or another --out")
    with damaged(repr(str(path)), "begin again in another --out"):
        return state, [CurvePoint(**point) for point in points]


def write_card(report: TrainReport) -> None:
    """Write the model card: the person's words on the model, the whole report, and the recipe."""
    said, settings = report.recipe.card, report.recipe.identity().items()
    front = {"license": said.license, "language": said.language}
    recipe = [(f"{name} {given}", False) for name, given in settings if given is not None]
    name = said.name or Path(report.directory).resolve().name
    spoken = re.split(r"\n\s*\n", f"{said.data}\n\n{said.limits}")
    text = [
        "---",
        *(f"{key}: {json.dumps(given)}" for key, given in front.items() if given),
        "library_name: transformers",
        "pipeline_tag: text-generation",
        "tags: [attnviz, attention, interpretability, llama]",
        "---\n",
        f"# {part_markdown(doc.Say(name))}\n",
        *(f"{part_markdown(doc.Say(part))}\n" for part in spoken if part.strip()),
        f"{_LOOK}\n",
        *document_markdown(report.document()),
        part_markdown(doc.Facts(recipe, "recipe")),
    ]
    with whole_file(Path(report.directory) / CARD_FILE) as stream:
        stream.write(("\n".join(text) + "\n").encode())
