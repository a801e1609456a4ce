"""The groups of options that commands share: each option means the same everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from attnviz.cli.complete import complete_model
from attnviz.cli.groups import Options, argument, flag, option

if TYPE_CHECKING:
    from attnviz.models.resolve import LoadOptions

__all__ = [
    "Device",
    "HeadChoice",
    "IndexBase",
    "Kind",
    "Loading",
    "Model",
    "ModelName",
    "OwnShape",
    "Text",
    "Texts",
    "Truncation",
    "load_options",
]


@dataclass(frozen=True)
class Text(Options):
    """One text."""

    text: str | None = argument("TEXT", "The text, in quotes; - reads standard input.")
    file: Path | None = option("PATH", "Read the text from a UTF-8 file.")


@dataclass(frozen=True)
class Texts(Text):
    """One text or many."""

    texts: Path | None = option(
        "FILE", "Many texts: one a line, or JSON lines with a text field; - reads standard input."
    )


@dataclass(frozen=True)
class Truncation(Options):
    """What becomes of a text that is too long."""

    truncate: bool = flag("Cut texts that are longer than the model's context.")


@dataclass(frozen=True)
class Kind(Options):
    """Which attention of a model that has several."""

    kind: Literal["self", "encoder", "decoder", "cross"] | None = option(
        "KIND", "Of an encoder–decoder: encoder (default), decoder or cross."
    )
    target: str | None = option(
        "TEXT",
        "Decoder text for --kind decoder and cross (default: the model's own greedy output).",
        words=True,
    )


@dataclass(frozen=True)
class HeadChoice(Options):
    """Which heads."""

    layer: str | None = option("LAYERS", "Layers: 2, 0-3, 0,5, -1 is the last.", short="-l")
    head: tuple[str, ...] = option(
        "HEADS",
        "Heads: L2H5, 3 (of every layer), 2.5, 2.*, 0-3.1,4, -1; may be repeated.",
        (),
        short="-H",
    )


@dataclass(frozen=True)
class IndexBase(Options):
    """How layers and heads are numbered, in what is typed and in what is shown."""

    index_base: int = option(
        "0|1", "Number layers and heads from 0, or from 1 as some papers do.", 0, min=0, max=1
    )


@dataclass(frozen=True)
class ModelName(Options, panel="Model"):
    """The model that is looked at."""

    model: str = option(
        "NAME",
        "tiny (bundled), mha (the library's own attention, random weights), a directory, a Hugging "
        "Face id, or a named shape such as configs/gpt2 (random weights).",
        "tiny",
        short="-m",
        autocompletion=complete_model,
    )


@dataclass(frozen=True)
class Model(ModelName):
    """The model, and the seed of one that has random weights."""

    seed: int = option("N", "Of random weights.", 0, min=0)


@dataclass(frozen=True)
class OwnShape(Options, panel="The library's own attention (--model mha)"):
    """The shape of ``mha``; None where it is not said."""

    d_model: int | None = option("D", "Width (64).")
    heads: int | None = option("H", "Query heads (8).")
    kv_heads: int | None = option("K", "Key/value heads that they share (H).")
    causal: bool | None = option("", "Hide later words (no).", name="--causal/--no-causal")

    @property
    def shape(self) -> dict[str, Any]:
        """What was said of it, by the names of ``LoadOptions``."""
        names = ("d_model", "heads", "kv_heads", "causal")
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class Device(Options, panel="Loading"):
    """Where it runs."""

    device: str = option("DEVICE", "cpu, cuda, cuda:1, mps.", "cpu")


@dataclass(frozen=True)
class Loading(Device):
    """How a model is opened."""

    dtype: Literal["auto", "float32", "float16", "bfloat16", "float64"] = option(
        "DTYPE", "auto (the checkpoint's own), float32, float16, bfloat16 or float64.", "auto"
    )
    revision: str | None = option("REVISION", "Branch, tag or commit on the hub.")
    offline: bool = flag("Directories and the cache only.")
    trust_remote_code: bool = flag("Run Python code that comes with the model.")
    allow_pickle: bool = flag("Read weights from pickles, which can run code.")


def load_options(
    name: str, loading: Loading, seed: int, own: OwnShape | None = None, *shaping: str
) -> LoadOptions:
    """How the model ``name`` is to be loaded.

    shaping: further options that were given and shape ``mha`` alone.
    Raises UsageError for options that ``name`` does not heed.
    """
    from attnviz.models.resolve import LoadOptions, refuse_ignored

    shape = own.shape if own is not None else {}
    options = LoadOptions(**vars(loading), seed=seed, **shape)
    refuse_ignored(name, options, (*shape, *shaping))
    return options
