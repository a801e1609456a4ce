"""What runs a model, in NumPy or torch: the protocol, and the backends of NumPy.

The rest of the engine asks for no class. A new kind of model needs a class with the methods of
``Backend``, and a line in ``backend_of``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from attnviz.engine.head_run import Head, HeadRun, Heads, Rows, Run, norms_of, unseen_outputs
from attnviz.engine.observer import (
    BLOCK_CELLS,
    BlockFacts,
    Held,
    ObserveHeads,
    Observer,
    QueriesKeys,
    SumsReader,
    hand_over,
    nothing_to_compare,
    products,
    rows_of_a_block,
)
from attnviz.engine.selection import check_heads
from attnviz.errors import UnsupportedError, UsageError
from attnviz.models.model import Model, NumpyModel, Reader, cannot_write
from attnviz.models.own import OwnAttention
from attnviz.records import Floats, Input, Kind, Tokens

if TYPE_CHECKING:  # torch, and what few commands ask for, only where needed
    from attnviz.attention.numpy_stack import NumpyStack
    from attnviz.engine.attribution.parts import Attributor
    from attnviz.engine.attribution.scores import ScoreSplitter
    from attnviz.engine.effects import ScanOptions
    from attnviz.engine.patchable import PatchableModel
    from attnviz.engine.patching import Pair, PatchOptions
    from attnviz.engine.scan.on_numpy import NumpyRunner
    from attnviz.engine.scan.patching import Patching
    from attnviz.engine.scan.scan import Scan
    from attnviz.models.bundled import Bundled


class Backend(Protocol):
    """The interface to all that the engine does with one model, in NumPy or torch.

    in_order: True if the logits of self-attention always predict the next token; False if this must
        be found out by a trial.
    Every method raises UnsupportedError if the architecture does not allow it.
    """

    in_order: bool

    def observe(
        self,
        observer: Observer,
        inputs: Sequence[Input],
        *,
        cells: int | None = BLOCK_CELLS,
        held: Held = "auto",
    ) -> None:
        """Run the model once over inputs of one length; hand attention weights to ``observer``.

        cells: the most weights in a block; None hands over whole matrices. held: what torch stores
        of a layer. Raises UsageError if matrices do not fit the memory, UnsupportedError if there
        are no blocks.
        """

    def read_sums(self, reader: SumsReader, inputs: Sequence[Input]) -> None:
        """Run the model once over inputs of one length; hand sums over attention to ``reader``.

        The sums of each layer's rows are computed on the model's device, without storing weights.
        Raises UnsupportedError, perhaps after some layers, if attention is no softmax over a range
        of keys.
        """

    def observe_queries_keys(
        self, tokens: Tokens, wants: Callable[[int], bool], observe: ObserveHeads
    ) -> None:
        """Run the model; hand the queries and keys of each wanted layer to ``observe``.

        wants: returns True for a wanted layer, given its index. Of an encoder–decoder the encoder
            is observed.
        Raises UnsupportedError if the model does more with them than scale, add and softmax.
        """

    def open_heads(self, kind: Kind, given: Input, causal: bool) -> tuple[Run, tuple[str, ...]]:
        """Return what runs inputs and observes heads, and notes on what it cannot see."""

    def open_reader(
        self, tokens: Tokens, begun: Tokens, kind: Kind, removed: Collection[Head]
    ) -> Reader:
        """Return a reader, which runs the model on a growing text and observes its attention.

        tokens: what an encoder runs on. begun: the first tokens of the text. kind: the attention to
        observe. removed: heads whose outputs are set to zero. Raises UsageError for heads that do
        not exist, UnsupportedError if the model does not predict the next token.
        """

    def open_attributor(self, given: Input) -> Attributor:
        """Return what splits logits into parts' contributions; UsageError if none is predicted."""

    def open_splitter(self, kind: Kind, given: Input) -> ScoreSplitter:
        """Return what splits the scores of a kind of attention by who wrote query and key."""

    @property
    def stack(self) -> NumpyStack | None:
        """Return the stack of layers of a model that NumPy runs; None for one that torch runs."""

    def open_patchable(
        self, kind: Kind, given: Input, *, labels: bool = False, several: bool = False
    ) -> PatchableModel:
        """Return a torch model whose heads, and labels if asked for, can be ablated."""

    def open_scan(
        self, kind: Kind, inputs: Sequence[Input], options: ScanOptions, references: Sequence[Input]
    ) -> Scan:
        """Return an object that ablates the model's heads over ``inputs`` and measures the effect.

        kind: the attention whose heads are ablated. options: how they are ablated.
        references: the texts whose outputs replace those of ablated heads, for mean and resample.
        """

    def open_patching(self, kind: Kind, pairs: Sequence[Pair], options: PatchOptions) -> Patching:
        """Return what puts values of one prompt of each pair into the run of the other."""


def backend_of(model: Model) -> Backend:
    """Return the backend that runs ``model``; UnsupportedError if neither NumPy nor torch does."""
    if isinstance(model, OwnAttention):
        return OwnBackend(model)
    from attnviz.models.bundled import Bundled  # these imports are slow

    if isinstance(model, Bundled):
        return BundledBackend(model)
    if isinstance(model, NumpyModel):
        return NumpyBackend(model)
    from attnviz.engine.torch_backend import TorchBackend  # torch only where needed
    from attnviz.models.transformers_model import TransformersModel

    if isinstance(model, TransformersModel):
        return TorchBackend(model)
    raise UnsupportedError(f"no way to observe a {type(model).__name__}")


# In NumPy, without torch as far as possible -----------------------------------------------------


class NumpyBackend:
    """Runs a decoder-only or encoder-only model in NumPy; its methods are those of ``Backend``."""

    in_order = True

    def __init__(self, model: NumpyModel) -> None:
        self._model = model

    def observe(
        self,
        observer: Observer,
        inputs: Sequence[Input],
        *,
        cells: int | None = BLOCK_CELLS,
        held: Held = "auto",
    ) -> None:
        model = self._model

        def take(layer: int, start: int, weights: Floats, norms: Floats | None) -> None:
            mask = model.mask(layer, start, *weights.shape[-2:])
            for text, block in enumerate(weights):
                norm = None if norms is None else norms[text]
                observer.observe(text, "self", layer, start, block, BlockFacts(norm, mask))

        rows = len(inputs[0].text)
        if cells is not None:
            rows = rows_of_a_block(len(inputs), model.info.heads, rows, cells)
        model.run_rows(
            [given.ids for given in inputs],
            rows,
            partial(observer.wants, "self"),
            take,
            norms=observer.norms,
        )

    def read_sums(self, reader: SumsReader, inputs: Sequence[Input]) -> None:
        raise self._no_sums()

    def _no_sums(self) -> UnsupportedError:
        return UnsupportedError(
            f"{self._model.info.name!r} runs in NumPy, which reads attention in blocks of rows: "
            "leave out --reduce fused, or run a checkpoint with --backend torch"
        )

    def observe_queries_keys(
        self, tokens: Tokens, wants: Callable[[int], bool], observe: ObserveHeads
    ) -> None:
        model, lost = self._model, list[int]()
        if model.info.score not in (None, "scaled-dot"):
            raise UnsupportedError(
                f"{model.info.name!r} matches by {model.info.score} scores, which have no scale: "
                "choose scaled-dot"
            )

        def take(layer: int, query: Floats, key: Floats, seen: NDArray[np.bool_] | None) -> None:
            bias = None if seen is None else np.where(seen, np.float32(0), -np.inf)[None]
            scale = 1 / math.sqrt(query.shape[-1])
            found = QueriesKeys(layer, query, key, scale, bias)
            if not model.scaled:
                found = QueriesKeys(layer, query * scale, key, 1.0, bias)
            with np.errstate(over="ignore", invalid="ignore"):
                finite = np.isfinite(products(query, key)).all()
            if finite:
                observe(found)
            else:
                lost.append(layer)

        model.run_queries_keys(tokens, wants, take)
        for layer in lost:  # only the run shows which layers are broken
            raise nothing_to_compare(model.info, layer)

    def open_heads(self, kind: Kind, given: Input, causal: bool) -> tuple[Run, tuple[str, ...]]:
        if kind == "self":
            return self._heads, ()
        return unseen_outputs(
            self.observe, self._model.info, kind, UnsupportedError("NumPy does not show them")
        )

    def _heads(
        self, given: Input, removed: Heads = (), norms: bool = False, rows: Rows = None
    ) -> HeadRun:
        if rows is not None:
            raise self._no_sums()
        weights: dict[int, Floats] = {}
        outputs: dict[int, Floats] = {}

        def take(layer: int, seen: Floats, written: Floats) -> None:
            weights[layer], outputs[layer] = seen, written

        model = self._model.without(removed) if removed else self._model
        logits = model.run_outputs(given.text, take)
        tokens = len(given.text)
        masks = {layer: model.mask(layer, 0, tokens, tokens) for layer in weights}
        moved = norms_of(NumpyBackend(model).observe, "self", given) if norms else {}
        return HeadRun(weights, outputs, logits, moved, masks)

    def open_reader(
        self, tokens: Tokens, begun: Tokens, kind: Kind, removed: Collection[Head]
    ) -> Reader:
        from attnviz.models.stack_model import StackModel  # and with it tokenizers

        model = self._model
        if not isinstance(model, StackModel) or not model.predicts:
            raise cannot_write(model.info)
        check_heads(model.info.heads_of_layers, removed)
        return model.without(removed).reader()

    def open_attributor(self, given: Input) -> Attributor:
        from attnviz.engine.attribution.on_numpy import NumpyAttributor  # and with it tokenizers
        from attnviz.models.stack_model import StackModel

        model = self._model
        if isinstance(model, StackModel) and (found := NumpyAttributor.of(model)) is not None:
            return found
        raise UnsupportedError(
            f"{model.info.name!r} is not a sum that NumPy can decompose: leave out --backend numpy"
        )

    def open_splitter(self, kind: Kind, given: Input) -> ScoreSplitter:
        from attnviz.engine.attribution.scores_on_numpy import NumpyScoreSplitter

        return NumpyScoreSplitter(self.stack)

    @property
    def stack(self) -> NumpyStack:
        from attnviz.models.stack_model import StackModel  # and with it tokenizers

        if not isinstance(self._model, StackModel):
            name = self._model.info.name
            raise UnsupportedError(f"{name!r} is not a stack of layers: choose one such as tiny")
        return self._model.stack

    def open_patchable(
        self, kind: Kind, given: Input, *, labels: bool = False, several: bool = False
    ) -> PatchableModel:
        raise UnsupportedError(
            f"{self._model.info.name!r} runs in NumPy, and this needs torch: leave out "
            "--backend numpy"
        )

    def open_scan(
        self, kind: Kind, inputs: Sequence[Input], options: ScanOptions, references: Sequence[Input]
    ) -> Scan:
        from attnviz.engine.scan.scan import Scan  # not every command scans

        runner = self._runner(kind, inputs[0], options.max_memory)
        return Scan(runner, inputs, options, references)

    def open_patching(self, kind: Kind, pairs: Sequence[Pair], options: PatchOptions) -> Patching:
        if options.method == "gradient":
            patchable = self.open_patchable(kind, pairs[0].corrupt)
            from attnviz.engine.scan.on_torch import torch_patching  # torch only where needed

            return torch_patching(patchable, pairs, options)
        from attnviz.engine.scan.patching import Patching  # not every command patches

        prompts = [prompt for pair in pairs for prompt in (pair.clean, pair.corrupt)]
        runner = self._runner(kind, prompts[0], options.max_memory, prompts)
        return Patching(runner, pairs, options)

    def _runner(
        self, kind: Kind, given: Input, max_memory: int | None, texts: Collection[Input] = ()
    ) -> NumpyRunner:
        from attnviz.engine.scan.on_numpy import NumpyRunner
        from attnviz.models.stack_model import StackModel

        if not isinstance(self._model, StackModel):
            raise UnsupportedError(f"no way to remove heads from a {type(self._model).__name__}")
        texts = texts if self._model.causal else ()  # other models run with a word masked
        in_torch = partial(self.open_patchable, kind, given)
        return NumpyRunner(self._model, in_torch, max_memory, texts)


class BundledBackend(NumpyBackend):
    """Runs the bundled model in NumPy, or in torch where gradients are needed."""

    def __init__(self, model: Bundled) -> None:
        super().__init__(model)
        self._bundled = model

    def open_patchable(
        self, kind: Kind, given: Input, *, labels: bool = False, several: bool = False
    ) -> PatchableModel:
        from attnviz.engine.patchable import patchable_decoder  # torch only where needed

        return patchable_decoder(self._bundled)


class OwnBackend(NumpyBackend):
    """Runs the library's own attention block, which has cross attention but no vocabulary."""

    def __init__(self, model: OwnAttention) -> None:
        super().__init__(model)
        self._own = model

    def observe(
        self,
        observer: Observer,
        inputs: Sequence[Input],
        *,
        cells: int | None = BLOCK_CELLS,
        held: Held = "auto",
    ) -> None:
        if inputs[0].target is None:
            super().observe(observer, inputs, cells=cells, held=held)
            return
        if observer.norms:
            raise UnsupportedError(
                f"{self._own.info.name!r} does not tell what its values move: choose another view"
            )
        for number, given in enumerate(inputs):
            if given.target is not None and observer.wants("cross", 0):
                weights = self._own.cross_weights(given.target, given.text)
                hand_over(observer, "cross", 0, weights[None], cells=cells, first=number)

    def open_attributor(self, given: Input) -> Attributor:
        raise UsageError(
            f"{self._own.info.name!r} predicts no tokens: there is no logit to decompose, choose "
            "a model with a vocabulary"
        )

    def open_scan(
        self, kind: Kind, inputs: Sequence[Input], options: ScanOptions, references: Sequence[Input]
    ) -> Scan:
        if options.pair is not None:
            raise UsageError(
                f"{self._own.info.name!r} predicts no words: it has no answer and no foil"
            )
        from attnviz.engine.scan.on_numpy import OwnRunner
        from attnviz.engine.scan.scan import Scan

        return Scan(OwnRunner(self._own), inputs, options, references)

    def open_patching(self, kind: Kind, pairs: Sequence[Pair], options: PatchOptions) -> Patching:
        raise UsageError(f"{self._own.info.name!r} predicts no words: there is nothing to patch")
