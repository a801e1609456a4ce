"""The groups of options that only the command line has: texts, model, output; and completions."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from attnviz.cli.default_model import blamed, default_model
from attnviz.cli.terminal import ColourChoice
from attnviz.draw.report import EVERY, SCREEN_ENDING
from attnviz.errors import AttnvizError, UsageError
from attnviz.options import Options, TextColumn, argument, flag, option
from attnviz.options import OwnShape as OwnShape

if TYPE_CHECKING:
    from attnviz.models.resolve import LoadOptions
    from attnviz.texts import Texts


def complete_model(incomplete: str) -> list[str]:
    """Return the built-in models and configurations that begin with ``incomplete``."""
    from attnviz.models.shapes import shape_names  # only when the shell asks

    names = ["tiny", "mha", *(f"configs/{name}" for name in shape_names())]
    return [name for name in names if name.startswith(incomplete)]


def complete_shape(incomplete: str) -> list[str]:
    """Return the built-in model configurations that begin with ``incomplete``."""
    from attnviz.models.shapes import shape_names

    return [name for name in shape_names() if name.startswith(incomplete)]


def complete_label(incomplete: str) -> list[str]:
    """Return the labels of heads that begin with ``incomplete``, for shell completion."""
    from attnviz.measures.registry import LABELS, complete_measure

    return complete_measure(incomplete, LABELS)


_MOST_HEADS = 200  # the most heads that the shell lists; for more it completes the layer first


def complete_head(ctx: Any, incomplete: str) -> list[str]:
    """Return the names of heads that begin with ``incomplete``, for shell completion.

    The model is the one that ``--model`` names; only its config is read. ctx: Typer's context, with
    the options so far.
    """
    from attnviz.count.params.find_spec import find_spec  # only when the shell asks

    try:
        spec = find_spec(ctx.params.get("model") or "tiny", offline=True).spec
    except AttnvizError:
        return []
    if spec is None:
        return []
    stack = spec.main
    heads = stack.groups[0].layer.attentions[0].heads
    names = [f"L{layer}H{head}" for layer in range(stack.depth) for head in range(heads)]
    begun = [name for name in names if name.lower().startswith(incomplete.lower())]
    if len(begun) <= _MOST_HEADS:
        return begun
    return sorted({name.split("H")[0] + "H" for name in begun})


_HEAD = re.compile(r"L\d+H\d+", re.IGNORECASE)
_TEXT_FILE = re.compile(r"\S+\.(txt|md|csv|tsv|jsonl?|toml)")
"""What is typed as a text by mistake: the name of a head, the name of a file."""


@dataclass(frozen=True)
class Text(Options):
    """The argument and option that give one text."""

    text: str | None = argument("TEXT", "The text, in quotes; use - for standard input.")
    file: Path | None = option("PATH", "Read the text from a UTF-8 file.")

    def __post_init__(self) -> None:
        super().__post_init__()
        text = self.text or ""
        if _HEAD.fullmatch(text):
            raise UsageError(
                f"expected a text, got the head {text!r}: attnviz head {text} shows its card, "
                f"--head {text} chooses it (several: --head L1H2,L1H0)"
            )
        if _TEXT_FILE.fullmatch(text) and os.path.isfile(text):
            raise UsageError(f"{text!r} is a file here: --file {text} reads it")

    @property
    def is_given(self) -> bool:
        """Return whether a text is given, itself or in a file."""
        return self.text is not None or self.file is not None

    def read(self, command: str) -> str | None:
        """Return the text; None if there is none. command: that of an example in a message."""
        from attnviz.texts import read_text

        return read_text(self.text, self.file, command) if self.is_given else None


@dataclass(frozen=True)
class OnePicture(Options):
    """The option that gives a picture in place of a text."""

    image: str | None = option("FILE", "Image to read (PNG, JPEG, WebP) instead of a text.")

    def path(self, text: Text, request: Options, of_texts: Collection[str] = ("--chat",)) -> str:
        """Return the path of the picture; UsageError for an option of texts, ``of_texts``."""
        unused = [*text.given(), *(name for name in request.given() if name in of_texts)]
        if unused:
            raise UsageError(f"{unused[0]} is for texts: leave it out next to --image")
        assert self.image is not None
        return self.image


_NOT_OF_PICTURES = ("--chat", "--texts", "--column", "--and", "--pairs")


@dataclass(frozen=True)
class SomePictures(Options):
    """The option that gives pictures, in place of texts or with one."""

    image: tuple[str, ...] = option(
        "FILE", "Image to read (PNG, JPEG, WebP), with or without text; may be repeated.", ()
    )

    def refuse(self, *requests: Options) -> None:
        """Raise UsageError for an option of texts alone."""
        for name in chain.from_iterable(request.given() for request in requests):
            if name in _NOT_OF_PICTURES:
                raise UsageError(f"{name} is for texts: leave it out next to --image")

    def texts(self, text: TextOrTexts, request: Options) -> Texts:
        """Return the pictures as texts, or in one prompt with the text; UsageError for several."""
        self.refuse(text, request)
        from attnviz.texts import with_pictures

        return with_pictures(text.read("heads"), [*self.image])


@dataclass(frozen=True)
class PromptText(Text):
    """The argument and option that give one prompt."""

    text: str | None = argument("PROMPT", "The prompt, in quotes; use - for standard input.")


@dataclass(frozen=True)
class TextOrTexts(TextColumn, Text):
    """The argument and options that give one text or many."""

    texts: Path | None = option(
        "FILE",
        "Many texts: one per line, or CSV, TSV or JSON with a column named text; - reads "
        "standard input.",
        brief="Many texts: one per line, CSV, TSV or JSON.",
    )


@dataclass(frozen=True)
class ModelName(Options, panel="Model"):
    """The option that names the model to inspect."""

    named: str | None = option(
        "NAME",
        "tiny (bundled, default), mha (attnviz's own attention, random weights), a directory, "
        "a Hugging Face id, or a preset such as configs/gpt2 (random weights); change the default "
        "with attnviz use.",
        name="--model",
        short="-m",
        autocompletion=complete_model,
        brief="tiny (default), mha, a directory or a Hugging Face id.",
    )

    @cached_property
    def model(self) -> str:
        """Return the name of the model that was typed, or that of the default model."""
        return default_model() if self.named is None else self.named


@dataclass(frozen=True)
class SeededModel(ModelName):
    """The options on the model, and the seed of its random parameters if it has them."""

    seed: int = option("N", "Random seed.", 0, min=0)


@dataclass(frozen=True)
class ModelArgument(Options):
    """The argument that names the model, as ``--model`` does too."""

    name: str | None = argument(
        "MODEL", "The model, as for --model.", autocompletion=complete_model, show_default=False
    )

    def chosen(self, model: str) -> str:
        """Return the model's name; UsageError if ``--model`` names another one."""
        if self.name is not None and model not in ("tiny", self.name):
            raise UsageError(f"expected one model: give {self.name!r} or --model {model}")
        return self.name or model


@dataclass(frozen=True)
class Device(Options, panel="Loading"):
    """The options on the device and the number of threads."""

    device: str = option("DEVICE", "Device: cpu, cuda, cuda:1, mps or auto (all available).", "cpu")
    threads: int | None = option(
        "N", "CPU threads, at most one per core (default: depends on the size of the model).", min=1
    )


@dataclass(frozen=True)
class Loading(Device):
    """The options on how a model is loaded."""

    dtype: Literal["auto", "float32", "float16", "bfloat16", "float64"] = option(
        "DTYPE",
        "Dtype to compute in: auto (the checkpoint's own), float32, float16, bfloat16 or float64.",
        "auto",
        brief="auto, float32, float16, bfloat16 or float64.",
    )
    backend: Literal["auto", "numpy", "torch"] = option(
        "BACKEND",
        "Backend: auto (NumPy where it is faster), numpy or torch.",
        "auto",
    )
    revision: str | None = option("REVISION", "Branch, tag or commit on the Hub.")
    offline: bool = flag("Use local directories and the cache only, never the network.")
    trust_remote_code: bool = flag("Run Python code that comes with the model.")
    allow_pickle: bool = flag("Read weights from pickles, which can run code.")
    max_memory: str | None = option(
        "SIZE",
        "With --device auto: maximum memory for weights on each device and in RAM, such as 20GB.",
    )
    offload: str | None = option(
        "DIR",
        "With --device auto: directory for weights that do not fit; without it, they are read from "
        "the checkpoint.",
    )
    tp: bool = flag("Split each layer across torchrun's processes (tensor parallelism).")


@dataclass(frozen=True)
class LoadedModel(ModelName, Loading):
    """The options on the model and on how it is loaded."""


@dataclass(frozen=True)
class DrawnModel(SeededModel, LoadedModel):
    """The options on the model, its random parameters, and how it is loaded."""


@dataclass(frozen=True)
class ShapedModel(SeededModel, OwnShape, LoadedModel):
    """The options that choose a model, load it, and shape ``mha``, attnviz's own attention."""


def saved(endings: str) -> Any:
    """Return the ``--save`` option of a command that writes files with these endings.

    endings: such as ``.csv .html``, with blanks between.
    """
    help_text = f"Save to FILE, whose extension picks the format: {endings}; may be repeated."
    brief = "Save to FILE; the extension picks the format."
    return option("FILE", help_text, (), endings=tuple(endings.split()), brief=brief, writes=True)


def contrast() -> Any:
    """Return the option that gives small weights more colour."""
    about = "Weight at which cells reach full intensity."
    return option("WEIGHT", about, 1.0, min=0.001, max=1.0)


@dataclass(frozen=True)
class Output(Options, panel="Output"):
    """The options on where the result goes, and how it is drawn."""

    json: bool = flag("Print one JSON object.")
    brief: bool = flag("Print at most 2 kB of JSON: the finding and ten rows.")
    save: tuple[Path, ...] = saved(EVERY)
    slide: bool = flag("With --save FILE.png, .svg or .pdf: make it a 16:9 slide.")
    palette: Literal["viridis", "magma", "blues", "grey"] = option(
        "NAME", "Colours: viridis, magma, blues or grey.", "blues"
    )
    contrast: float = contrast()
    colour: ColourChoice = option(
        "WHEN", "auto (off with NO_COLOR or in a pipe), always or never.", "auto", name="--color"
    )
    ascii: bool = flag("Draw with ASCII only.")
    width: int | None = option(
        "COLUMNS", "Width in columns (default: the terminal's; 80 in a pipe)."
    )
    full: bool | None = option(
        "",
        "Show everything, however long, with a row for every head (when piped, the default is "
        "everything except the per-head rows).",
        name="--full/--no-full",
        brief="Show everything, including a row per head.",
    )
    explain: bool = flag("Add an explanation below the output.")
    quiet: bool = flag("No progress, notices or hints.", short="-q")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.json and self.brief:
            raise UsageError("expected --json or --brief, not both")
        if self.slide and not any(path.suffix in (".png", ".svg", ".pdf") for path in self.save):
            raise UsageError("--slide is how an image is saved: add --save FILE.png, .svg or .pdf")

    @property
    def colours(self) -> str:
        """Return the name of the palette with its contrast, as drawings take it."""
        from attnviz.draw.palette import contrasted

        return contrasted(self.palette, self.contrast)

    @property
    def for_programs(self) -> bool:
        """Return whether standard output gets JSON, all of it or a short answer."""
        return self.json or self.brief

    @property
    def opens(self) -> bool:
        """Return whether the page is opened in a browser; see ``PagedOutput``."""
        return bool(getattr(self, "open", False))

    @property
    def pages(self) -> bool:
        """Return whether a page is written, which may show more than the other outputs."""
        return self.opens or any(path.suffix.lower() == ".html" for path in self.save)

    @property
    def endings(self) -> tuple[str, ...]:
        """Return the endings of the files that the command can write."""
        return tuple(self.__dataclass_fields__["save"].metadata["endings"])

    @property
    def whole(self) -> bool:
        """Return whether everything is shown, not only what fits the terminal."""
        return not sys.stdout.isatty() if self.full is None else self.full

    def _reaches(self, *endings: str) -> bool:
        """Return whether a person sees the result, on the screen or in a file of these endings."""
        return not self.for_programs or any(path.suffix.lower() in endings for path in self.save)

    @property
    def drawn(self) -> bool:
        """Return whether the result is drawn in characters, for the terminal or a file."""
        return self._reaches(SCREEN_ENDING)

    @property
    def explained(self) -> bool:
        """Return whether something is shown or saved to which an explanation can be added."""
        return self._reaches(SCREEN_ENDING, ".md", ".html")


@dataclass(frozen=True)
class ArrayOutput(Output):
    """The common output options, of a command that also writes files of arrays."""

    save: tuple[Path, ...] = saved(f"{EVERY} .npz")


@dataclass(frozen=True)
class PagedOutput(Output):
    """The common output options, of a command whose page is interactive."""

    open: bool = flag("Open the interactive page in a browser.")


def load_options(
    name: str,
    loading: Loading,
    seed: int,
    own: OwnShape | None = None,
    *shaping: str,
    limits_runs: bool = False,
) -> LoadOptions:
    """Return the options for loading the model ``name``.

    seed: of random parameters. own: the sizes of the library's own attention, if the command has
        such options. shaping: further given options that apply to ``mha`` only. limits_runs: True
        if --max-memory limits the command's runs too.
    Raises UsageError if an option does not apply to ``name``.
    """
    from attnviz.models.resolve import LoadOptions, refuse_ignored

    shape = own.shape if own is not None else {}
    given = {field.name: getattr(loading, field.name) for field in fields(Loading)}
    options = LoadOptions(**given, seed=seed, **shape)
    if limits_runs and loading.device != "auto":
        options = replace(options, max_memory=None)
    with blamed(name):
        refuse_ignored(name, options, (*shape, *shaping))
    return options
