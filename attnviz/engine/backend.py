"""What runs a model, NumPy or torch, behind one protocol: the rest of the engine asks for no class.

A new kind of model needs a class with these methods, and a line in ``backend_of``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Protocol

from attnviz.engine.attribution.parts import Attributor, HeadKey
from attnviz.engine.edges import Cutter
from attnviz.engine.effects import ScanOptions
from attnviz.engine.head_run import Head, Run
from attnviz.engine.numpy_backend import BundledBackend, NumpyBackend, OwnBackend
from attnviz.engine.observer import BLOCK_CELLS, ObserveHeads, Observer
from attnviz.engine.patching import Pair, PatchOptions, PathRead
from attnviz.errors import UnsupportedError
from attnviz.models.model import Model, NumpyModel, Reader
from attnviz.models.own import OwnAttention
from attnviz.records import Input, Kind, Tokens

if TYPE_CHECKING:  # torch only where needed
    from attnviz.engine.patchable import PatchableModel
    from attnviz.engine.scan.patching import Patching
    from attnviz.engine.scan.scan import Scan


class Backend(Protocol):
    """Runs one model.

    in_order: whether logits of self-attention are always those of the next token; False if that
        must be tried.
    Each method raises UnsupportedError if the architecture does not allow it.
    """

    in_order: bool

    def observe(
        self, observer: Observer, inputs: Sequence[Input], *, cells: int | None = BLOCK_CELLS
    ) -> None:
        """Run over inputs of one length in a single pass, and hand over what is wanted.

        cells: weights of a block; None for whole matrices. Raises UsageError if the memory does
        not hold what can only be observed whole.
        """
        ...

    def observe_queries_keys(
        self, tokens: Tokens, wants: Callable[[int], bool], observe: ObserveHeads
    ) -> None:
        """Run over tokens, and hand over the queries and keys of each wanted layer.

        Of an encoder–decoder it is the encoder. Raises UnsupportedError also if the model does more
        with them than scale, add and softmax.
        """
        ...

    def open_heads(self, kind: Kind, given: Input, causal: bool) -> tuple[Run, tuple[str, ...]]:
        """Return what runs inputs, and notes on what of the heads cannot be seen.

        given: an input on which a torch model is tried. causal: whether its logits are of the next
        token.
        """
        ...

    def open_reader(
        self, tokens: Tokens, begun: Tokens, kind: Kind, removed: Collection[Head]
    ) -> Reader:
        """Return what reads the text that grows from ``begun``, without the ``removed`` heads.

        tokens: what an encoder reads. Raises UsageError for heads that are not there,
        UnsupportedError also if the model does not tell what follows.
        """
        ...

    def open_attributor(self, given: Input) -> Attributor:
        """Return what takes logits apart, tried on an input like those to come.

        Raises UsageError if the model predicts no tokens.
        """
        ...

    def path_reads(
        self, kind: Kind, clean: Input, corrupt: Input, senders: Sequence[HeadKey]
    ) -> Sequence[PathRead]:
        """Run two texts of one length, and return what every layer's heads read in both of them.

        senders: heads of whose outputs the parts in the difference are wanted. Raises UsageError
        for a head that does not exist.
        """
        ...

    def open_cutter(self, kind: Kind, given: Input) -> Cutter:
        """Return what runs the model with edges of attention cut."""
        ...

    def open_patchable(self, kind: Kind, given: Input) -> PatchableModel:
        """Return a torch model whose heads can be ablated, tried on a few tokens of ``given``."""
        ...

    def open_scan(
        self,
        kind: Kind,
        inputs: Sequence[Input],
        options: ScanOptions,
        references: Sequence[Input],
    ) -> Scan:
        """Return the model ready for a scan; see ``engine.scan.run.open_scan``."""
        ...

    def open_patching(self, kind: Kind, pairs: Sequence[Pair], options: PatchOptions) -> Patching:
        """Return the model ready for patching; see ``engine.scan.run.open_patching``."""
        ...


def backend_of(model: Model) -> Backend:
    """Return what runs a model; UnsupportedError for what neither NumPy nor transformers runs."""
    if isinstance(model, OwnAttention):
        return OwnBackend(model)
    from attnviz.models.bundled import Bundled  # what is imported to load these is not small

    if isinstance(model, Bundled):
        return BundledBackend(model)
    if isinstance(model, NumpyModel):
        return NumpyBackend(model)
    from attnviz.engine.torch_backend import TorchBackend  # torch only where needed
    from attnviz.models.transformers_model import TransformersModel

    if isinstance(model, TransformersModel):
        return TorchBackend(model)
    raise UnsupportedError(f"no way to observe a {type(model).__name__}")
