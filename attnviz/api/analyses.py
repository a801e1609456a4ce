"""``attnviz.patterns``, ``ablate``, ``patch``, ``why`` and more: the commands from Python.

Each runs the command of its name over a model, by name or loaded, and takes that command's options
as keywords: ``--index-base 1`` is ``index_base=1``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from attnviz.api.analysis import Analysis, analysis, loading_given, texts_of
from attnviz.api.capture import named
from attnviz.api.head_choice import HeadChoice, in_python_words, spelled
from attnviz.errors import UsageError

if TYPE_CHECKING:
    from attnviz.engine.generation import Step
    from attnviz.models.attention_interface import PreTrainedModel
    from attnviz.models.model import NumpyModel

    AnyModel = str | os.PathLike[str] | PreTrainedModel | NumpyModel
    Pairs = str | os.PathLike[str] | Iterable[Mapping[str, str]] | None


def patterns(
    model: AnyModel = "tiny", tokenizer: Any = None, text: str | None = None, **options: Any
) -> Analysis:
    """What each head attends to: every measure with its chance level, and the labels that hold.

    model: a name that ``--model`` takes, or a loaded transformers model, which stays as it is.
    tokenizer: of a loaded model. text: to score on, in place of the built-in probes.
    options: those of ``attnviz patterns``, such as ``head="L1H0"``, ``without_first=True``.

    Raises UsageError (also a ValueError), LoadError, UnsupportedError as the command ends with;
    TypeError for an option that there is not.
    """
    from attnviz.patterns.command import patterns as command

    return analysis(command, model, tokenizer, options, text=_text(text))


def ablate(
    model: AnyModel = "tiny",
    tokenizer: Any = None,
    texts: str | Iterable[str] | None = None,
    **options: Any,
) -> Analysis:
    """What the loss rises by without each head, measured exactly, over one text or several.

    model, tokenizer: see ``patterns``. texts: by default the built-in ones.
    options: those of ``attnviz ablate``, such as ``head="L1H0"``, ``mode="mean"``.

    Raises as ``patterns`` does.
    """
    from attnviz.ablate.command import ablate as command

    return analysis(command, model, tokenizer, options, texts=_texts(texts))


def prune(
    model: AnyModel = "tiny",
    tokenizer: Any = None,
    texts: str | Iterable[str] | None = None,
    **options: Any,
) -> Analysis:
    """Which heads can be removed for good, and what the loss is then, beside as many at random.

    model, tokenizer: see ``patterns``. texts: by default the built-in ones.
    options: those of ``attnviz prune``, such as ``fraction=0.3``, ``out="smaller"``.

    Raises as ``patterns`` does.
    """
    from attnviz.prune.command import prune as command

    return analysis(command, model, tokenizer, options, texts=_texts(texts))


def patch(
    model: AnyModel = "tiny",
    clean: str | None = None,
    corrupt: str | None = None,
    tokenizer: Any = None,
    pairs: Pairs = None,
    **options: Any,
) -> Analysis:
    """Which heads carry the difference between two prompts, by patching their activations.

    model, tokenizer: see ``patterns``. clean, corrupt: the prompts. pairs: many of them in their
    place, a file or mappings with ``clean``, ``corrupt`` and, if wanted, ``answer`` and ``foil``;
    the built-in ones by default.
    options: those of ``attnviz patch``, such as ``what="value"``, ``direction="noise"``.

    Raises as ``patterns`` does.
    """
    from attnviz.patch.command import patch as command

    return analysis(command, model, tokenizer, options, **_prompts(clean, corrupt, pairs))


def diff(
    a: AnyModel = "tiny",
    b: AnyModel | None = None,
    tokenizer: Any = None,
    texts: str | Iterable[str] | None = None,
    **options: Any,
) -> Analysis:
    """What changed between two models, head by head, beyond a noise floor.

    a, b: see ``patterns``, or results saved as JSON; b: a again where it is left out.
    tokenizer: of the loaded ones. texts: one or several; by default the built-in ones.
    options: those of ``attnviz diff``, such as ``dtype_b="bfloat16"``, ``importance=True``.

    Raises as ``patterns`` does.
    """
    from attnviz.diff.command import diff as command

    loaded = [not isinstance(side, str | os.PathLike) for side in (a, a if b is None else b)]
    if tokenizer is not None and not any(loaded):
        raise UsageError("tokenizer is for a loaded model: a name brings its own")
    for option in ("dtype_b", "revision_b", "backend_b"):
        if loaded[1] and options.get(option) is not None:
            raise UsageError(f"{option} is for a model that is loaded by its name: b is loaded")
    inputs: dict[str, Any] = (
        {"text": _text(texts)} if isinstance(texts, str) else {"texts": _texts(texts)}
    )
    if b is not None:
        with in_python_words():
            inputs["b"] = named(b, tokenizer if loaded[1] else None, loading_given(options))
    return analysis(command, a, tokenizer if loaded[0] else None, options, **inputs)


def rollout(
    model: AnyModel = "tiny", tokenizer: Any = None, text: str | None = None, **options: Any
) -> Analysis:
    """Attention followed through all layers to the input (Abnar & Zuidema 2020), of one text.

    model, tokenizer: see ``patterns``.
    options: those of ``attnviz rollout``, such as ``sink=True``, ``kind="decoder"``.

    Raises as ``patterns`` does.
    """
    if text is None and not isinstance(tokenizer, str):
        raise UsageError('expected a text: attnviz.rollout("tiny", text="The cat sat.")')
    from attnviz.heads.rollout_command import rollout as command

    return analysis(command, model, tokenizer, options, text=_text(text))


def why(
    model: AnyModel = "tiny",
    prompt: str | Iterable[str] | None = None,
    tokenizer: Any = None,
    **options: Any,
) -> Analysis:
    """What each head writes towards the predicted token, exactly (direct logit attribution).

    model, tokenizer: see ``patterns``. prompt: one, or several for means with intervals.
    options: those of ``attnviz why``, such as ``answer="Tom"``, ``foil="Mary"``, ``head="L1H0"``.

    Raises as ``patterns`` does.
    """
    if prompt is None:
        raise UsageError('expected a prompt: attnviz.why("tiny", "The cat sat on the")')
    from attnviz.why.command import why as command

    if isinstance(prompt, str):
        return analysis(command, model, tokenizer, options, text=_text(prompt))
    return analysis(command, model, tokenizer, options, texts=_texts(prompt))


def path(
    model: AnyModel = "tiny",
    sender: HeadChoice | None = None,
    clean: str | None = None,
    corrupt: str | None = None,
    tokenizer: Any = None,
    pairs: Pairs = None,
    **options: Any,
) -> Analysis:
    """Which later heads read what one head writes (path patching).

    model, tokenizer: see ``patterns``. sender: the head, such as ``"L0H0"`` or ``(0, 0)``.
    clean, corrupt, pairs: see ``patch``.
    options: those of ``attnviz path``, such as ``into="value"``.

    Raises as ``patterns`` does.
    """
    if sender is None:
        raise UsageError('expected a head: attnviz.path("tiny", "L0H0")')
    from attnviz.patch.path_command import path as command

    prompts = {"sender": spelled(sender), **_prompts(clean, corrupt, pairs)}
    return analysis(command, model, tokenizer, options, **prompts)


def check(
    rules: str | os.PathLike[str],
    model: AnyModel | None = None,
    tokenizer: Any = None,
    **options: Any,
) -> Analysis:
    """Compare a model with the rules in a TOML file.

    rules: the file. model, tokenizer: see ``patterns``; None for the model that the file names.
    options: those of ``attnviz check``, such as ``junit="report.xml"``, ``update=True``.

    Raises CheckError where a rule does not hold, its ``analysis`` is the report; else as
    ``patterns`` does.
    """
    from attnviz.check.command import check as command

    return analysis(command, model, tokenizer, options, needs_model=False, file=_path(rules))


def verify(
    model: AnyModel | None = None, tokenizer: Any = None, text: str | None = None, **options: Any
) -> Analysis:
    """Whether the numbers of a model, or of the library's own attention, are right.

    model, tokenizer: see ``patterns``; None for the library's own attention. text: that the model
    reads; a built-in one by default.
    options: those of ``attnviz verify``, such as ``steps=True``.

    Raises AttnvizError where a check fails, its ``analysis`` is the report; else as ``patterns``
    does.
    """
    from attnviz.verify.command import verify as command

    return analysis(command, model, tokenizer, options, needs_model=False, text=_text(text))


def scaling(
    model: AnyModel | None = None, tokenizer: Any = None, text: str | None = None, **options: Any
) -> Analysis:
    """What dividing the scores by √d_k does to attention.

    model, tokenizer: see ``patterns``; None for random queries and keys. text: that the model
    reads; a built-in one by default.
    options: those of ``attnviz scaling``, such as ``d_k="1,16,256"``, ``head="L1H0"``.

    Raises as ``patterns`` does.
    """
    from attnviz.scaling.command import scaling as command

    options = options if model is None else {**options, "from_model": True}
    return analysis(command, model, tokenizer, options, needs_model=False, text=_text(text))


def sweep(*, text: str | os.PathLike[str] | None = None, **options: Any) -> Analysis:
    """One small decoder, trained with several numbers of heads and compared.

    text: a UTF-8 file to learn from, in place of a task.
    options: those of ``attnviz sweep``, such as ``heads="1,4"``, ``task="copy"``, ``steps=300``.

    Raises as ``patterns`` does.
    """
    from attnviz.sweep.command import sweep as command

    file = None if text is None else _path(text)
    return analysis(command, None, None, options, needs_model=False, text=file)


def train(
    files: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    **options: Any,
) -> Analysis:
    """A small language model of the library's own attention, trained on text files.

    files: UTF-8 texts, or directories of them. out: the new directory of the model.
    options: those of ``attnviz train``, such as ``minutes=2.0``, ``valid=["held-out"]``.

    Raises as ``patterns`` does.
    """
    from attnviz.train.command import train as command

    several = [files] if isinstance(files, str | os.PathLike) else files
    paths = [_path(file) for file in several]
    options = {**options, "out": out}
    return analysis(command, None, None, options, needs_model=False, files=paths)


def params(model: AnyModel | None = None, **options: Any) -> Analysis:
    """Parameters, KV cache, FLOPs and memory of a model or of a shape, counted exactly.

    model: see ``patterns``; a loaded one needs no tokenizer. None for a shape by its options.
    options: those of ``attnviz params``, such as ``tokens=4096``, or ``d_model=4096, heads=32``.

    Raises as ``patterns`` does.
    """
    from attnviz.params.command import params as command

    return analysis(command, model, None, options, needs_model=False)


def generate(
    model: AnyModel = "tiny",
    prompt: str | None = None,
    tokenizer: Any = None,
    *,
    tokens: int = 40,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    ablate: HeadChoice | list[HeadChoice] | None = None,
    kind: Literal["decoder", "cross"] | None = None,
    **options: Any,
) -> Iterator[Step]:
    """Let a model write on: each token with its probability and the weights that led to it.

    model, tokenizer: see ``patterns``. prompt: what it goes on from. tokens: at most so many.
    temperature, top_k, top_p, seed: how they are chosen, see ``attnviz generate``; 0 is greedy.
    ablate: heads whose outputs are zero. kind: of an encoder–decoder, which attention is given.
    options: of a model by its name, such as ``device="cuda"``, ``dtype="float16"``.

    Each step has ``text``, ``id``, ``probability``, ``likely``, ``entropy`` and ``rows``: by layer
    the weights (head, key) of the token that was read last. Raises as ``patterns`` does, and
    UnsupportedError for a model that does not tell the next token.
    """
    from attnviz.api.capture import choices, model_of
    from attnviz.engine.capture import encoded
    from attnviz.engine.generation import Sampling, generate
    from attnviz.engine.selection import choose_heads
    from attnviz.models.resolve import reckoned_tokens

    with in_python_words():
        if (text := _text(prompt)) is None:
            raise UsageError('expected a prompt: attnviz.generate("tiny", "The cat sat on the")')
        sampling = Sampling(tokens, temperature, top_k, top_p, seed)
        opened = model_of(model, tokenizer, options, reckoned_tokens(text) + tokens)
        info = opened.info
        removed = choose_heads(None, choices(ablate), info.layers, info.heads, 0) or {}
        return generate(
            opened,
            encoded(opened, text, None),
            sampling,
            kind=kind,
            removed=[(layer, head) for layer, some in removed.items() for head in some],
        )


def _text(text: str | None) -> str | None:
    """UsageError for what is no text, or would read standard input."""
    if text is None:
        return None
    if not isinstance(text, str) or not text.strip() or text == "-":
        raise UsageError(f"expected one text of at least one word, got {text!r:.40}")
    return text


def _texts(texts: str | Iterable[str] | None) -> Any:
    with in_python_words():
        return texts_of(texts)


def _prompts(clean: str | None, corrupt: str | None, pairs: Pairs) -> dict[str, Any]:
    from attnviz.patch.pairs import given_pairs

    several = pairs if pairs is None or isinstance(pairs, str | os.PathLike) else given_pairs(pairs)
    return {"clean": _text(clean), "corrupt": _text(corrupt), "pairs": several}


def _path(file: Any) -> Path:
    if not isinstance(file, str | os.PathLike):
        raise UsageError(f"expected the name of a file, got {file!r:.40}")
    return Path(file)
