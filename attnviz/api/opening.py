"""Opens models for the functions of attnviz: by name, or ones that are loaded already."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeAlias, TypeGuard, TypeVar

from attnviz.errors import UsageError
from attnviz.models.threads import ASKED, suit, threads_kept, wait_passively
from attnviz.models.work import ON_TORCH, Work
from attnviz.options import keywords_checked
from attnviz.ranks import refuse_alone

__all__ = ["load"]

if TYPE_CHECKING:
    from attnviz.corpus import Shard, TextCorpus
    from attnviz.engine.any_module import Module
    from attnviz.inspect.heads.report import HeadChoice
    from attnviz.models.attention_interface import PreTrainedModel
    from attnviz.models.model import Model
    from attnviz.models.picture_texts import PictureTextModel
    from attnviz.models.speech import SpeechModel
    from attnviz.models.vision import PictureModel
    from attnviz.options import ChatOption
    from attnviz.records import Score
    from attnviz.texts import Texts

    AnyModel = str | os.PathLike[str] | PreTrainedModel | Model
    AnyPairs = str | os.PathLike[str] | Iterable[Mapping[str, str]] | None
    AnyFiles = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
    AnyCorpus = str | os.PathLike[str] | Iterable[str] | None
    AnyHeads: TypeAlias = HeadChoice | list[HeadChoice] | None
    AnyChat = str | os.PathLike[str] | Sequence[Mapping[str, Any]] | None
    AnySpans = Mapping[str, tuple[int, int] | str] | str | os.PathLike[str] | None


wait_passively()

_Given = ParamSpec("_Given")
_Found = TypeVar("_Found")


def in_own_modes(function: Callable[_Given, _Found]) -> Callable[_Given, _Found]:
    """Return the function, made to restore torch's modes and to refuse unknown keywords."""

    @wraps(function)
    def in_own_modes(*args: _Given.args, **given: _Given.kwargs) -> _Found:
        torch = sys.modules.get("torch")
        if any(map(_is_split, (*args, *given.values()))):
            refuse_alone(function.__name__, given)
        with threads_kept():
            if torch is None:  # no other code can have switched gradients off
                return function(*args, **given)
            with torch.inference_mode(False), torch.enable_grad():
                return function(*args, **given)

    return keywords_checked(in_own_modes)


def is_module(model: Any) -> TypeGuard[Module]:
    """Return True if ``model`` is a ``torch.nn.Module``."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)


def has_tensor(given: Iterable[Any]) -> bool:
    """Return True if a value is a tensor, which is an input of a module and not a text."""
    torch = sys.modules.get("torch")
    return torch is not None and any(isinstance(value, torch.Tensor) for value in given)


def _is_split(value: Any) -> bool:
    """Return True for a model whose weights are split over processes."""
    if "torch.distributed.tensor" not in sys.modules:
        return False
    from attnviz.models.split import mesh_of

    model = getattr(value, "model", value)  # of a model that attnviz has loaded
    return callable(getattr(model, "parameters", None)) and mesh_of(model) is not None


@keywords_checked
@threads_kept()
def load(
    name: str | os.PathLike[str] = "tiny",
    *,
    device: str = "cpu",
    dtype: Literal["auto", "float32", "float16", "bfloat16", "float64"] = "auto",
    backend: Literal["auto", "numpy", "torch"] = "auto",
    threads: int | None = None,
    max_memory: str | None = None,
    offload: str | os.PathLike[str] | None = None,
    revision: str | None = None,
    offline: bool = False,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    progress: Callable[[str, int, int | None], None] | None = None,
    seed: int | None = None,
    d_model: int | None = None,
    heads: int | None = None,
    kv_heads: int | None = None,
    causal: bool | None = None,
    score: Score | None = None,
) -> Model:
    """Load a model once; every function of attnviz takes the result.

    name: what ``--model`` takes: ``tiny``, which is bundled and the default; ``mha``, the library's
        own attention with random weights for the words of the text; a directory, a Hugging Face id,
        a built-in model configuration.
    device: where to compute; ``auto`` places layers on all devices, in memory and on disk.
    max_memory: the most weights on each of them, such as ``20GB``. offload: a directory for what
        fits nowhere; safetensors are read from where they lie.
    dtype, backend, revision, offline, trust_remote_code, allow_pickle: as on the command
        line. With the backend ``auto`` torch runs a checkpoint, so that every function can use it.
    threads: how many threads every function uses that takes the result; by default as many as suit
        the model's size. What torch and NumPy are set to elsewhere stays as it is.
    progress: is called as ``progress(file, done, total)`` with bytes while files are downloaded.
    seed: of random weights. d_model, heads, kv_heads, causal, score: the sizes and switches of
        ``mha``.
    Raises UsageError (also a ValueError) for an option that this model does not use, LoadError,
    OfflineError or UnsupportedError if it cannot be loaded.
    """
    given = {key: value for key, value in locals().items() if value is not None and key != "name"}
    from attnviz.models.resolve import SHAPING, LoadOptions, load, refuse_ignored

    if offload is not None:
        given["offload"] = os.fspath(offload)
    options = LoadOptions(**given)
    if backend == "numpy":
        options = replace(options, work=Work(0))
    refuse_ignored(os.fspath(name), options, [key for key in SHAPING if key in given])
    from attnviz.engine.text_pass import judged

    model = judged(load(os.fspath(name), options))
    if threads is not None:
        ASKED[model] = threads
    return model


def text_or_none(text: str | None) -> str | None:
    """Return a text or None unchanged.
    Raises UsageError for an empty text, and for ``-``, which only means standard input when typed.
    """
    if text is None:
        return None
    if not isinstance(text, str) or not text.strip() or text == "-":
        raise UsageError(f"expected one text of at least one word, got {text!r:.40}")
    return text


def one_text(text: str | None, example: str, name: str = "text") -> str:
    """Return ``text``; raise UsageError with a correct call as an ``example`` if it is missing."""
    if (read := text_or_none(text)) is None:
        raise UsageError(f"expected a {name}: {example}")
    return read


def given_prompt(request: ChatOption, text: str | None, example: str, name: str = "text") -> str:
    """Return ``text``, or the text of the request's chat in its place; see ``one_text``."""
    from attnviz.regions import given_text

    read = one_text(text, example, name) if request.chat is None else text_or_none(text)
    return given_text(request, read, None)


def open_given(
    model: AnyModel, tokenizer: Any, work: Work = ON_TORCH, *, reads: bool = True, **own: Any
) -> Model:
    """Return a model given by name, by the result of ``load`` or as a transformers model.

    tokenizer: of a transformers model, else None. work: the planned work, from which NumPy or torch
    is chosen for a model given by name. reads: whether the model must take texts. own: the
    options of the library's own attention.
    Raises UsageError for a tokenizer next to a name, and for a loaded model without a tokenizer.
    """
    from attnviz.engine.text_pass import judged

    if isinstance(tokenizer, str):
        raise UsageError(f"expected a tokenizer, got a text: {tokenizer!r}")
    if isinstance(model, str | os.PathLike):
        from attnviz.models.resolve import LoadOptions, load

        if tokenizer is not None:
            raise UsageError("tokenizer is for a loaded model: a name brings its own")
        return judged(load(os.fspath(model), LoadOptions(work=work, **own)))
    from attnviz.models.model import Model

    if not isinstance(model, Model):
        from attnviz.models.prepare import handed_over  # imports transformers

        model = judged(handed_over(model, tokenizer, reads=reads))
    suit(model)
    return model


def open_pictures(model: AnyModel, processor: Any) -> PictureModel:
    """Return a model that reads pictures, given by name, opened before, or of transformers.

    processor: the image processor of a loaded transformers model, else None.
    Raises UsageError for a processor next to a name, for none with a loaded model, and for another
    opened model.
    """
    from attnviz.models.vision import PictureModel, handed_pictures

    work = Work(reads="picture")
    return _with_processor(model, processor, work, PictureModel, handed_pictures, "image=")


def open_picture_texts(model: AnyModel, processor: Any) -> PictureTextModel:
    """Return a vision-language model, as ``open_pictures`` does a vision model."""
    from attnviz.models.picture_texts import PictureTextModel, handed_picture_texts

    work, how = Work(reads="picture and text"), "text and image="
    return _with_processor(model, processor, work, PictureTextModel, handed_picture_texts, how)


def read_pictures(
    text: Any, images: Any
) -> tuple[Texts, Work, Callable[[AnyModel, Any], PictureModel | PictureTextModel]]:
    """Return pictures in place of texts, or one text with all of them, and what reads them.

    That is the planned work of a model given by name, and the function that opens another one.
    Raises UsageError for several texts, and what ``read_picture`` raises.
    """
    from attnviz.texts import with_pictures

    if text is None:
        return with_pictures(None, images), Work(reads="picture"), open_pictures
    one_text(text, 'attnviz.ablate(model, "Is it a cat?", image="cat.jpg")')
    return with_pictures(text, images), Work(reads="picture and text"), open_picture_texts


def refuse_beside_pictures(**given: Any) -> None:
    """Raise UsageError for an argument of texts that is given next to ``image``."""
    for name, value in given.items():
        if value is not None and value is not False:
            raise UsageError(f"{name} is for texts: leave it out next to image")


def open_speech(model: AnyModel, processor: Any) -> SpeechModel:
    """Return a model that hears sounds, as ``open_pictures`` does a vision model."""
    from attnviz.models.speech import SpeechModel, handed_speech

    return _with_processor(
        model, processor, Work(reads="sound"), SpeechModel, handed_speech, "audio="
    )


def _with_processor(
    model: AnyModel,
    processor: Any,
    work: Work,
    kind: type[_Found],
    handed: Callable[[Any, Any], Model],
    how: str,
) -> _Found:
    """Return a model of a kind that its processor belongs to. handed: makes one of a loaded model.

    how: the keywords with which a name is opened so.
    """
    from attnviz.engine.text_pass import judged
    from attnviz.models.model import Model

    named = isinstance(model, str | os.PathLike)
    if processor is not None and (named or isinstance(model, Model)):
        raise UsageError("processor is for a loaded transformers model: a name brings its own")
    if named or isinstance(model, Model):
        opened = open_given(model, None, work)
    else:
        opened = judged(handed(model, processor))
    if not isinstance(opened, kind):
        raise UsageError(
            f"{opened.info.name!r} was opened for other inputs: give its name with {how}"
        )
    return opened


def named_or_loaded(
    models: Sequence[AnyModel], reader: Any, opening: Callable[[AnyModel, Any], Model] = open_given
) -> list[str | Model]:
    """Return names as they are and other models loaded; one that is given twice is loaded once.

    reader: the tokenizer or processor of the transformers models among them, else None. opening:
    returns such a model with it.
    Raises UsageError for a reader if all models are names, and what ``opening`` raises.
    """
    if reader is not None and all(isinstance(model, str | os.PathLike) for model in models):
        raise UsageError("a tokenizer or processor is for a loaded model: a name brings its own")
    opened: dict[int, str | Model] = {}
    for model in models:
        if isinstance(model, str | os.PathLike):
            opened[id(model)] = os.fspath(model)
        elif id(model) not in opened:
            opened[id(model)] = opening(model, reader)
    return [opened[id(model)] for model in models]


def given_corpus(
    texts: AnyCorpus | Texts,
    column: str | None,
    shard: str | None,
    resume: str | os.PathLike[str] | None,
) -> tuple[TextCorpus, Shard, Path | None]:
    """Return a corpus, the share of it that is measured, and the file that keeps the record.

    texts: several, a file, or the name of a hub's data set. column: that of the texts in a table.
    shard: ``K/N``; None for all. Raises what ``open_corpus`` and ``read_shard`` raise.
    """
    from attnviz.corpus import open_corpus, read_shard

    corpus = open_corpus(() if texts is None else texts, column)
    return corpus, *read_shard(shard, None if resume is None else Path(resume))
