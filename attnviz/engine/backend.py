"""The protocol of what runs a model, in NumPy or torch. The rest of the engine asks for no class.

A new kind of model needs a class with these methods, and a line in ``backend_of``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Protocol

from attnviz.engine.head_run import Head, Run
from attnviz.engine.numpy_backend import BundledBackend, NumpyBackend, OwnBackend
from attnviz.engine.observer import BLOCK_CELLS, Held, ObserveHeads, Observer, SumsReader
from attnviz.errors import UnsupportedError
from attnviz.models.model import Model, NumpyModel, Reader
from attnviz.models.own import OwnAttention
from attnviz.records import Input, Kind, Tokens

if TYPE_CHECKING:  # torch, and what few commands ask for, only where needed
    from attnviz.attention.numpy_stack import NumpyStack
    from attnviz.engine.attribution.lens import LensReading
    from attnviz.engine.attribution.neurons import NeuronReading
    from attnviz.engine.attribution.parts import AskedLogit, Attributor
    from attnviz.engine.attribution.scores import ScoreSplitter
    from attnviz.engine.effects import ScanOptions
    from attnviz.engine.patchable import PatchableModel
    from attnviz.engine.patching import Pair, PatchOptions
    from attnviz.engine.scan.patching import Patching
    from attnviz.engine.scan.scan import Scan


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

        cells: the most weights in a block that is handed over; None hands over whole matrices.
        held: whether torch stores blocks or whole matrices of a layer; NumPy always takes blocks.
        Raises UsageError if whole matrices are needed and do not fit into memory, UnsupportedError
        if this attention cannot be computed in blocks.
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
        """Return a function that runs inputs and observes heads, and notes on what it cannot see.

        kind: the kind of attention. given: an input for a trial of a torch model.
        causal: True if the model's logits predict the next token.
        """

    def open_reader(
        self, tokens: Tokens, begun: Tokens, kind: Kind, removed: Collection[Head]
    ) -> Reader:
        """Return a reader, which runs the model on a growing text and observes its attention.

        tokens: what an encoder runs on. begun: the first tokens of the text. kind: the attention to
        observe. removed: heads whose outputs are set to zero. Raises UsageError for heads that do
        not exist, UnsupportedError if the model does not predict the next token.
        """

    def open_attributor(self, given: Input) -> Attributor:
        """Return an object that splits logits into contributions of the model's parts.

        given: a text for a trial. Raises UsageError if the model predicts no tokens.
        """

    def open_splitter(self, kind: Kind, given: Input) -> ScoreSplitter:
        """Return an object that splits attention scores by who wrote query and key.

        kind: the kind of attention. given: a text for a trial.
        """

    def read_lens(self, attributor: Attributor, given: Input, asked: AskedLogit) -> LensReading:
        """Return what the model predicts after each block, and what each head adds to the logits.

        asked: the position, and the token whose logit is followed. Raises UsageError if one of them
        does not exist.
        """

    def read_neurons(
        self, attributor: Attributor, given: Input, asked: AskedLogit, layer: int
    ) -> NeuronReading:
        """Return what each neuron of a layer's feed-forward block writes towards a logit.

        Raises UsageError for a position or token that does not exist.
        """

    @property
    def stack(self) -> NumpyStack | None:
        """Return the stack of layers of a model that NumPy runs; None for one that torch runs."""

    def open_patchable(
        self, kind: Kind, given: Input, *, labels: bool = False, several: bool = False
    ) -> PatchableModel:
        """Return a torch model whose heads can be ablated. given: a text for a short trial.

        kind: the kind of attention. labels: True looks for the layer that puts out the labels of a
            classifier. several: True also accepts a classifier that gives a text several labels.
        """

    def open_scan(
        self, kind: Kind, inputs: Sequence[Input], options: ScanOptions, references: Sequence[Input]
    ) -> Scan:
        """Return an object that ablates the model's heads over ``inputs`` and measures the effect.

        kind: the attention whose heads are ablated. options: how they are ablated.
        references: the texts whose outputs replace those of ablated heads, for mean and resample.
        """

    def open_patching(self, kind: Kind, pairs: Sequence[Pair], options: PatchOptions) -> Patching:
        """Return an object that patches: it puts values of one prompt into the run of the other.

        kind: the attention whose values are patched. pairs: the prompt pairs.
        """


def backend_of(model: Model) -> Backend:
    """Return the backend that runs ``model``.

    Raises UnsupportedError for a model that neither NumPy nor transformers runs.
    """
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
