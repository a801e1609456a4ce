"""A torch model as ablation needs it: what runs, its heads, and the source of its predictions.

Nothing here knows an architecture; the stacks and the vocabulary projection come from the model. Of
a classifier the layer that computes the logits of its labels is found by a short run: its output
equals the model's logits. Either a text has one label, which depends on one token of the final
states or on several, or each token has a label.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from attnviz.attention.torch_decoder import TorchDecoder
from attnviz.engine.effects import Variant
from attnviz.engine.forward_pass import TWO_STACKS, ForwardPass
from attnviz.engine.hook_points import (
    HookedCall,
    HookPoints,
    Intervention,
    OwnHookPoints,
    first_of,
    hooked,
    with_first,
)
from attnviz.engine.likely import START_END, answer_places
from attnviz.engine.linear_map import require_rows_apart
from attnviz.engine.patching import What
from attnviz.engine.replacing import LostTrackError, Replace
from attnviz.engine.selection import check_heads
from attnviz.errors import UnsupportedError, UsageError
from attnviz.models.bundled import Bundled
from attnviz.models.model import MaskToken
from attnviz.models.split import device_of, whole_modules
from attnviz.models.third_party import running
from attnviz.models.threads import suit
from attnviz.models.transformers_model import TransformersModel
from attnviz.models.whole import require_token_ids
from attnviz.records import Input, Kind, Tokens

if TYPE_CHECKING:
    from attnviz.models.attention_interface import PreTrainedModel


_SOURCE, _TARGET = 5, 3
"""The lengths in tokens of the short trial texts. They differ so that axes can be recognised."""


def probe_of(given: Input) -> Input:
    """Return a short input for a trial, of the tokens of ``given``; a picture stays whole."""
    if given.text.layout is not None:
        return given
    target = None if given.target is None else _repeated(given.target, _TARGET)
    return Input(_repeated(given.text, _SOURCE), target)


def _repeated(tokens: Tokens, length: int) -> Tokens:
    return Tokens.bare((tokens.ids * length)[:length])


@dataclass(frozen=True, eq=False)
class PatchableModel:
    """A torch model whose heads can be ablated: its modules and how to call it.

    root: the module that runs; one call of it is a pass.
    stack: the module under it whose (first) output is the final hidden states.
    head: the vocabulary projection; None if the model has none.
    kind: the attention whose heads are ablated. hook_points: those of its heads.
    inputs: returns the keyword arguments of a call, for token ids.
    options: more keyword arguments of every call.
    mask_id: the token that hides a word from a masked model; None if there is none.
    labels: the names of a classifier's labels, whose logits ``head`` puts out; empty otherwise.
    answers: True if the labels are the start and the end of an answer, see ``answers``.
    several: True if a text may have several of the labels, each by the sigmoid of its logit.
    ours: True for the library's own decoder, whose behaviour need not be tried.
    """

    root: nn.Module
    stack: nn.Module
    head: nn.Module | None
    kind: Kind
    hook_points: HookPoints
    inputs: Callable[[Input], dict[str, Tensor]]
    options: dict[str, Any]
    mask_id: MaskToken | None = None
    labels: tuple[str, ...] = ()
    answers: bool = False
    several: bool = False
    ours: bool = False

    def run(self, *inputs: Input) -> Tensor | None:
        """Return the logits (text, token, vocab) over texts of one length; None without a head."""
        texts = [self.inputs(given) for given in inputs]
        together = {name: torch.cat([text[name] for text in texts]) for name in texts[0]}
        with running(self.root, torch.OutOfMemoryError):
            output = self.root(**together, **self.options)
        if isinstance(output, Tensor):
            return output
        return None if self.head is None else logits_in(output)

    @property
    def device(self) -> torch.device:
        if hasattr(self.root, "device"):
            return device_of(self.root)
        return next(self.root.parameters()).device

    @property
    def heads(self) -> dict[int, int]:
        """Return the number of heads of each layer that has this kind of attention."""
        points = (point for point in self.hook_points.calls if point.kind == self.kind)
        return dict(sorted({point.layer: point.heads for point in points}.items()))


def logits_in(output: Any) -> Tensor | None:
    """Return a model's logits or None; of question answering (text, token, 2), of start and end."""
    logits: Tensor | None = getattr(output, "logits", None)
    if logits is None and isinstance(getattr(output, "start_logits", None), Tensor):
        return torch.stack([output.start_logits, output.end_logits], -1)
    return logits


@dataclass(frozen=True)
class ForwardOutput:
    """The results of one pass of a ``PatchableModel``.

    hidden: the final hidden states (row, token, width).
    projected: the vocabulary projection's input (row, token, width); None without a head.
    logits: of all positions, or empty if none was projected.
    """

    hidden: Tensor
    projected: Tensor | None
    logits: Tensor | None


def run_pass(
    model: PatchableModel,
    given: Input,
    intervention: Intervention | None,
    *more: Input,
    project_all: bool = False,
    order: Sequence[int] | None = None,
    inside: Collection[What] = (),
) -> ForwardOutput:
    """Run ``model``, prepared by ``HookPoints.borrowed``, once with an intervention.

    By default the vocabulary projection runs on no position: it takes almost half of a small
    model's time, and its logits over all ablations would fill the memory. A classifier's labels are
    few and always computed; ``projected`` then repeats the pooled state at every token.

    intervention: edits the pass; None runs the model unobserved. more: further texts of the same
    length, as further rows. project_all: True projects every position. order: the indices of the
    attention calls in the order in which they run; None means ascending. inside: the names of the
    tensors to edit in addition to the heads' outputs.
    """
    seen: dict[str, Tensor] = {}

    def keep_hidden(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        seen["hidden"] = output if isinstance(output, Tensor) else output[0]

    def shorten(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        read = seen["projected"] = args[0]
        if model.labels and read.ndim == 2:
            seen["projected"] = read[:, None].expand(-1, seen["hidden"].shape[1], -1)
        return None if project_all or model.labels else (read[:1, :0], *args[1:])

    with ExitStack() as hooks:
        hooks.callback(model.stack.register_forward_hook(keep_hidden).remove)
        if model.head is not None:
            hooks.callback(model.head.register_forward_pre_hook(shorten).remove)
        if intervention is not None:
            hooks.enter_context(model.hook_points.intervening(intervention, order, inside))
        logits = model.run(given, *more)
    if "hidden" not in seen or seen["hidden"].ndim != 3:
        raise LostTrackError("the final hidden states were not found")
    return ForwardOutput(seen["hidden"], seen.get("projected"), logits)


class Untouched:
    """An intervention that changes nothing; a base class for those that change some values."""

    def edit(self, number: int, point: HookedCall, outputs: Tensor) -> Tensor:
        """Return ``outputs`` unchanged."""
        return self.edit_rows(point, outputs, 0)

    def edit_rows(self, point: HookedCall, outputs: Tensor, first: int) -> Tensor:
        """Return the outputs (row, token, head, dim) of some rows of the batch, edited in place.

        point: the attention call. first: the index of the first of these rows.
        ``outputs`` may be another tensor, if ``inside`` asked for it; it is not changed in place.
        """
        return outputs


class Keep(Untouched):
    """Records the first row's values (token, head, dim), of a pattern (query, head, key)."""

    def __init__(self, kind: Kind, sorts: Collection[What] = frozenset({"output"})) -> None:
        self._kind, self._sorts = kind, sorts
        self.held: dict[tuple[What, int], Tensor] = {}

    def edit_rows(self, point: HookedCall, outputs: Tensor, first: int) -> Tensor:
        if point.kind == self._kind and point.sort in self._sorts and not first:
            self.held[point.sort, point.layer] = outputs[0].clone()
        return outputs


def patchable_decoder(model: Bundled) -> PatchableModel:
    """Return the bundled model as a torch model whose heads can be ablated."""
    suit(model)  # torch may have been imported only now
    decoder = TorchDecoder.from_llama(model.checkpoint.config, model.tensors)
    dtype = torch.float64 if model.info.dtype == "float64" else torch.float32
    decoder = decoder.to(dtype).eval().requires_grad_(False)
    device = decoder.norm.weight.device
    return PatchableModel(
        root=decoder,
        stack=decoder.norm,
        head=decoder.lm_head,
        kind="self",
        hook_points=OwnHookPoints(decoder),
        inputs=lambda given: {"ids": torch.tensor([given.ids], device=device)},
        options={},
        ours=True,
    )


def blocks_of(model: PatchableModel) -> list[nn.Module]:
    """Return the blocks: entries of the outermost ``ModuleList``s that hold attention."""
    attention = {id(point.module) for point in model.hook_points.calls if point.kind != "encoder"}

    def search(module: nn.Module) -> Iterator[nn.Module]:
        for child in module.children():
            if attention & {id(part) for part in child.modules()}:
                yield from child if isinstance(child, nn.ModuleList) else search(child)

    return list(search(model.root))


def mask_id_of(model: TransformersModel) -> MaskToken | None:
    """Return the token that hides a word from a masked model; None if there is none."""
    for owner in (model.tokenizer, model.model.config):
        number = getattr(owner, "mask_token_id", None)
        if isinstance(number, int):
            return MaskToken(number, str(getattr(owner, "mask_token", f"<{number}>")))
    return None


def patchable_transformers(
    model: PreTrainedModel, kind: Kind, given: Input, mask_id: MaskToken | None = None
) -> PatchableModel:
    """Return a transformers model as a ``PatchableModel``. given: a text for a short trial.

    mask_id: the token that hides a word from a masked model; None if there is none.
    Raises UnsupportedError if its heads cannot be found or it does not take text, UsageError if
    decoder or cross attention is wanted without a decoder text.
    """
    # Imported late: the library's own decoder does without transformers.
    from attnviz.engine.transformers_points import find_hook_points

    require_token_ids(model)
    require_rows_apart(model)
    if kind in ("decoder", "cross") and given.target is None:
        raise UsageError(
            f"the {kind} heads of {type(model).__name__} need a decoder text: give one"
        )
    probe = whole_pass(model, kind, probe_of(given))
    stack: Any = probe.module
    head: nn.Module | None = None
    if probe.module is model:
        whole: Any = model
        stack = whole.get_decoder() if len(probe.kinds) > 1 else model.base_model
        table = whole.get_output_embeddings()
        # FSMT names its table of embeddings, which it multiplies by: no module reads a state.
        none = isinstance(table, nn.ModuleList | nn.ModuleDict | nn.Embedding)
        head = None if none else table
    with torch.inference_mode(), _noting_call(stack) as called:
        points = find_hook_points(probe)
    if not called or head in stack.modules():
        stack = _inner_stack(stack, probe, points, head)
    options = {"use_cache": False, "return_dict": True}
    return PatchableModel(
        root=probe.module,
        stack=stack,
        head=head,
        kind=kind,
        hook_points=points,
        inputs=lambda given: _inputs(model, given),
        options={name: value for name, value in options.items() if probe.takes(name)},
        mask_id=mask_id,
    )


def whole_pass(model: PreTrainedModel, kind: Kind, given: Input) -> ForwardPass:
    """Return a pass over one text through the whole model, or only through the encoder.

    A model that weighs choices runs without its head, which takes several texts at once.
    kind: the wanted attention; only the encoder runs if ``given`` has no decoder text.
    The pass is not compared with a plain one.
    """
    root: Any = model.base_model if weighs_choices(model) else model
    kinds: tuple[Kind, ...] = TWO_STACKS
    if kind == "self":
        kinds = ("self",)
    elif given.target is None:
        root, kinds = model.get_encoder(), ("encoder",)
    inputs = _inputs(model, given)
    return ForwardPass(model, root, inputs, kinds, frozenset(), compare=False, cached=False)


def weighs_choices(model: PreTrainedModel) -> bool:
    """Return True for a model of multiple choice, whose head compares several texts."""
    return type(model).__name__.endswith("ForMultipleChoice")


def _inputs(model: PreTrainedModel, given: Input) -> dict[str, Tensor]:
    """Return the arguments of a call over a text; of a pair with the text of each token."""
    device = device_of(model)
    inputs = {"input_ids": torch.tensor([given.ids], device=device)}
    if given.text.segments and "token_type_ids" in signature(model.forward).parameters:
        inputs["token_type_ids"] = torch.tensor([given.text.segments], device=device)
    if given.target is not None:
        inputs["decoder_input_ids"] = torch.tensor([given.target.ids], device=device)
    return inputs


@contextmanager
def _noting_call(module: nn.Module) -> Iterator[list[nn.Module]]:
    """Yield a list that contains the module once it has been called."""
    called: list[nn.Module] = []
    with hooked(module.register_forward_pre_hook(lambda module, args: called.append(module))):
        yield called


def _inner_stack(
    stack: nn.Module, probe: ForwardPass, points: HookPoints, head: nn.Module | None
) -> nn.Module:
    """Return the outermost running part of ``stack`` with all attention but not ``head``."""
    attention = {point.module for point in points.calls}
    for module in list(stack.modules())[1:]:
        if head not in (inside := set(module.modules())) and attention <= inside:
            with torch.inference_mode(), points.borrowed(), _noting_call(module) as called:
                probe.run()
            if called:
                return module
    return stack if head is None else _source(head, probe, points)


def _source(head: nn.Module, probe: ForwardPass, points: HookPoints) -> nn.Module:
    """Return the module whose output the vocabulary projection reads; UnsupportedError for none."""
    ended: list[tuple[nn.Module, Any]] = []
    read: list[Any] = []
    keeping = (
        module.register_forward_hook(lambda *call: ended.append((call[0], call[2])))
        for module in probe.module.modules()
    )
    enter = head.register_forward_pre_hook(lambda _, args: read.extend(args[:1]), prepend=True)
    with torch.inference_mode(), points.borrowed(), hooked(*keeping, enter):
        probe.run()
    for module, output in reversed(ended):
        if any(output is state for state in read):
            return module
    raise UnsupportedError(
        f"{type(probe.model).__name__} returns no hidden states, and no module of it puts out what "
        "its head reads: its maps can be shown, its heads not be removed"
    )


@contextmanager
def ablating(model: PatchableModel, heads: Collection[tuple[int, int]]) -> Iterator[None]:
    """Run ``model.root`` without these heads inside this context, for any batch.

    heads: (layer, head) of each. Their outputs are set to zero. The model is in evaluation mode
        inside the context; its former state is restored on leaving, also after an exception. Raises
        UsageError for a head that does not exist.
    """
    check_heads(model.heads, heads)
    variant = Variant(tuple(sorted(set(heads)))) if heads else None
    intervention = Replace(model.kind, {} if variant is None else {None: variant})
    with model.hook_points.borrowed(), model.hook_points.intervening(intervention):
        yield


# The labels of a classifier -----------------------------------------------------------------------


POOLED = (
    "the label is read through a pooler: its activation is taken as its input times a ratio, that "
    "of this run"
)

SEVERAL = (
    "a text may have several of these labels or none: the probability of each is the sigmoid of "
    "its own logit"
)

_SEVERAL = "multi_label_classification"


def with_labels(
    model: Any, opened: PatchableModel, given: Input, *, several: bool = False
) -> PatchableModel:
    """Return a classifier with the linear layer that computes the logits of its labels.

    ``opened`` itself is returned if the model is no classifier, or if its labels are not one choice
    of two or more. model: of transformers. given: a text for a short trial.
    several: True also takes a model that gives a text several labels.
    """
    config = model.config
    count = getattr(config, "num_labels", 0)
    independent = getattr(config, "problem_type", None) == _SEVERAL
    if opened.root is not model or gives_a_number(model) or (independent and not several):
        return opened
    seen: list[tuple[nn.Module, Tensor]] = []

    def keep(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if isinstance(output, Tensor) and output.shape[-1] == count:
            seen.append((module, output))

    keeping = (module.register_forward_hook(keep) for module in model.modules())
    with hooked(*keeping), torch.no_grad(), opened.hook_points.borrowed():
        output = opened.root(**opened.inputs(probe_of(given)), **opened.options)
    logits, answers = logits_in(output), hasattr(output, "start_logits")
    if not isinstance(logits, Tensor) or not seen or logits.shape[-1] != count:
        return opened
    own = logits.reshape(-1, count)[-1]
    # The innermost module that puts them out ends first: a layer may wrap another.
    heads = (module for module, last in seen if (last.reshape(-1, count) == own).all(-1).any())
    if (head := next(heads, None)) is None:
        return opened
    names = tuple(str(config.id2label.get(at, at)) for at in range(count))
    labels = START_END if answers else names
    return replace(opened, head=head, labels=labels, several=independent, answers=answers)


def gives_a_number(model: Any) -> bool:
    """Return True for a transformers model with a regression head: it predicts a number."""
    problem, count = (getattr(model.config, name, None) for name in ("problem_type", "num_labels"))
    is_number = problem == "regression" or ((count or 0) < 2 and problem != _SEVERAL)
    return bool(is_number and model.base_model is not model)


def require_one_choice(model: PatchableModel) -> None:
    """Raise UnsupportedError for a model that gives a text several labels."""
    if model.several:
        raise UnsupportedError(
            f"a text may have several labels of this {type(model.root).__name__}: the lens follows "
            "the choice of one; attnviz why takes the logit of a label apart"
        )


def label_places(model: PatchableModel, given: Input) -> tuple[int, ...]:
    """Return the indices of the tokens whose labels count; the model has labels.

    If each token has a label, they are the tokens that are not special, or that may be an answer.
    If the text has one label, it counts at the token that it is read from, or at the last token if
    it is read from several.
    """
    if model.answers:
        return tuple(answer_places(given.text))
    read = _read_from(model, given)
    if read is not None:
        return (read[0] if len(read) == 1 else len(given.text) - 1,)
    return _plain_places(given)


def _plain_places(given: Input) -> tuple[int, ...]:
    plain = [at for at, special in enumerate(given.text.special) if not special]
    return tuple(plain) or (len(given.text) - 1,)


def place_of_label(model: PatchableModel, given: Input, position: int | None) -> int:
    """Return the index of the token whose label is read; the model has labels.

    position: as typed; by default the pooled token, or the last plain one. Raises UsageError for a
    position without a label, UnsupportedError if the label is read from several tokens.
    """
    tokens = len(given.text)
    if position is not None and not -tokens <= position < tokens:
        raise UsageError(f"no position {position}: the text has tokens 0 to {tokens - 1}")
    index = None if position is None else position % tokens
    read = _read_from(model, given)
    if read is None:
        return index if index is not None else _plain_places(given)[-1]
    if len(read) != 1:
        raise UnsupportedError(
            f"{type(model.root).__name__} reads its label from {len(read)} tokens at once: its "
            "logit belongs to no position, and what heads write there is not known"
        )
    if index not in (None, read[0]):
        raise UsageError(
            f"the label of a text is read at position {read[0]} alone: leave out --position"
        )
    return read[0]


def _read_from(model: PatchableModel, given: Input) -> Sequence[int] | None:
    """Return the tokens whose last states a text's label depends on; None if each has a label."""
    ends: list[Tensor] = []

    def cut_off(block: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        first = first_of(output)
        assert first is not None
        ends.append(first.detach().requires_grad_())
        return with_first(output, ends[-1])

    cutting = (block.register_forward_hook(cut_off) for block in blocks_of(model))
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        model.hook_points.borrowed(),
        whole_modules(model.root),
        hooked(*cutting),
    ):
        logits = model.run(given)
        if logits is None or logits.ndim == 3:
            return None
        (slope,) = torch.autograd.grad(logits[0, 0], ends[-1])
    return slope.reshape(-1, slope.shape[-1]).any(-1).nonzero()[:, 0].tolist()
