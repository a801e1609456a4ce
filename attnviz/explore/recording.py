"""What is kept of a session: what is seen as a file, and keys with the screens that they made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from attnviz.cli.options import EVERY
from attnviz.cli.outlet import report_files
from attnviz.draw.files import check_path, save
from attnviz.draw.terminal import terminal_block
from attnviz.draw.theme import Theme
from attnviz.explore.facts import View
from attnviz.heads.data import array_files, heads_rows, write_heads_json
from attnviz.heads.document import heads_document
from attnviz.heads.report import HeadsComparison, compare_heads
from attnviz.heads.report import View as HeadsView
from attnviz.records import LayerWeights

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

    from attnviz.draw.document import Document
    from attnviz.draw.files import Writer

ENDINGS = (*EVERY.split(), ".npz", ".safetensors")
"""What a view can be saved as: whatever ``attnviz heads`` can."""


@dataclass(frozen=True)
class _Seen:
    """The chosen head, for every outlet of ``attnviz heads``."""

    found: HeadsComparison
    view: HeadsView

    def write_json(self, stream: SupportsWrite[str]) -> None:
        write_heads_json(self.found, stream, self.view)

    def rows(self) -> Iterator[tuple[object, ...]]:
        return heads_rows(self.found, self.view)

    def document(self) -> Document:
        return heads_document(self.found, self.view)

    def arrays(self) -> Mapping[str, Writer]:
        return array_files(self.found, self.view)


def save_view(path: Path, view: View, theme: Theme, width: int) -> None:
    """Write the head that is seen, by the ending of the name.

    Raises UsageError for an ending that is none, LoadError where the system refuses.
    """
    check_path(path, ENDINGS)
    report, scene = view.shown.report, view.scene
    layer, head = scene.head
    record = replace(view.record, layers=(LayerWeights(layer, (head,), view.weights[None]),))
    chosen = replace(
        report,
        record=record,
        heads=(report.scores(layer, head),),
        notable=(scene.head,),
        selected=True,
        sink=scene.mode != "no-sink",
    )
    seen = _Seen(compare_heads([chosen]), HeadsView())

    def screen() -> str:
        plain = Theme(theme.palette, colour=False, ascii=theme.ascii)
        return terminal_block(seen.document(), plain, width).plain

    save(path, report_files(seen, seen.document, theme.palette, screen))
