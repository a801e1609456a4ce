"""``attnviz.patterns``, ``ablate``, ``patch``, ``attribute`` and more: the commands of Python.

Each runs the command of its name over a model, by name or loaded, and takes that command's options
as keywords: ``--index-base 1`` is ``index_base=1``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from attnviz.api.analysis import Analysis, analysis, loading_given
from attnviz.api.capture import named, opened_model
from attnviz.api.head_choice import HeadChoice, in_python_words
from attnviz.errors import UsageError
from attnviz.texts import built_in_texts, texts_of

if TYPE_CHECKING:
    from attnviz.engine.effects import Method, Metric, Mode, Positions, Unit
    from attnviz.engine.generation import Step
    from attnviz.inspect.ablate.records import AblationReport
    from attnviz.models.attention_interface import PreTrainedModel
    from attnviz.models.model import NumpyModel
    from attnviz.records import Kind

    AnyModel = str | os.PathLike[str] | PreTrainedModel | NumpyModel
    AnyHeads = HeadChoice | list[HeadChoice] | None


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
    from attnviz.inspect.patterns.command import patterns as command

    return analysis(command, model, tokenizer, options, text=_text(text))


def ablate(
    model: AnyModel = "tiny",
    texts: str | Iterable[str] | None = None,
    *,
    tokenizer: Any = None,
    head: AnyHeads = None,
    layer: str | int | None = None,
    together: bool = False,
    unit: Unit = "head",
    mode: Mode = "zero",
    reference: str | Iterable[str] | None = None,
    draws: int | None = None,
    metric: Metric | None = None,
    answer: str | None = None,
    foil: str | None = None,
    positions: Positions = "all",
    method: Method | None = None,
    budget: str | None = None,
    max_memory: str | None = None,
    resume: str | os.PathLike[str] | None = None,
    by_token: bool = False,
    top: int = 8,
    kind: Kind | None = None,
    target: str | None = None,
    truncate: bool = False,
    index_base: int = 0,
    seed: int = 0,
) -> AblationReport:
    """Ablate each head and measure exactly how much the loss rises, over one text or many.

    model: a name that ``attnviz.load`` takes, what that returns, or a loaded transformers model,
        which stays as it is; tokenizer: of the latter.
    texts: one or several; the built-in ones by default.
    The options are those of ``attnviz ablate``: see ``AblateRequest``.

    Raises UsageError (also a ValueError) for options, heads or texts that do not fit, LoadError for
    a model or a file that cannot be read, UnsupportedError if the heads cannot be ablated.
    """
    given = locals()
    from attnviz.inspect.ablate import ablate as question
    from attnviz.inspect.ablate.request import AblateRequest

    request = AblateRequest.of(given)
    read = texts_of(texts) or built_in_texts()
    return question.ablate(opened_model(model, tokenizer), read, request)


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
    from attnviz.inspect.prune.command import prune as command

    return analysis(command, model, tokenizer, options, texts=_texts(texts))


def patch(
    model: AnyModel = "tiny",
    clean: str | None = None,
    corrupt: str | None = None,
    tokenizer: Any = None,
    pairs: str | os.PathLike[str] | Iterable[Mapping[str, str]] | None = None,
    **options: Any,
) -> Analysis:
    """Which heads carry the difference between two prompts, by patching their activations.

    model, tokenizer: see ``patterns``. clean, corrupt: the prompts. pairs: many of them in their
    place, a file or mappings with ``clean``, ``corrupt`` and, if wanted, ``answer`` and ``foil``;
    the built-in ones by default.
    options: those of ``attnviz patch``, such as ``what="value"``, ``direction="noise"``.

    Raises as ``patterns`` does.
    """
    from attnviz.inspect.patch.command import patch as command
    from attnviz.inspect.patch.pairs import given_pairs

    several = pairs if pairs is None or isinstance(pairs, str | os.PathLike) else given_pairs(pairs)
    prompts = {"clean": _text(clean), "corrupt": _text(corrupt), "pairs": several}
    return analysis(command, model, tokenizer, options, **prompts)


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
    from attnviz.inspect.diff.command import diff as command

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
    from attnviz.inspect.rollout.command import rollout as command

    return analysis(command, model, tokenizer, options, text=_text(text))


def attribute(
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
        raise UsageError('expected a prompt: attnviz.attribute("tiny", "The cat sat on the")')
    from attnviz.inspect.why.command import why as command

    if isinstance(prompt, str):
        return analysis(command, model, tokenizer, options, text=_text(prompt))
    return analysis(command, model, tokenizer, options, texts=_texts(prompt))


def params(model: AnyModel | None = None, **options: Any) -> Analysis:
    """Parameters, KV cache, FLOPs and memory of a model or of a shape, counted exactly.

    model: see ``patterns``; a loaded one needs no tokenizer. None for a shape by its options.
    options: those of ``attnviz params``, such as ``tokens=4096``, or ``d_model=4096, heads=32``.

    Raises as ``patterns`` does.
    """
    from attnviz.count.params.command import params as command

    return analysis(command, model, None, options)


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
