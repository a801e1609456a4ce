"""The outputs of a command: the terminal, standard output as JSON, files."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

from attnviz.cli.default_model import DefaultName, blamed
from attnviz.cli.options import LoadedModel, Output, SeededModel, load_options
from attnviz.cli.terminal import messages, open_console, printing
from attnviz.draw.labels import visible
from attnviz.draw.report import Report, report_files
from attnviz.errors import AttnvizError, LoadError, UsageError
from attnviz.options import OwnShape
from attnviz.ranks import follows

if TYPE_CHECKING:  # JSON output needs no drawing code
    from rich.console import Console

    from attnviz.corpus import TextCorpus
    from attnviz.draw.document import Document
    from attnviz.models.model import Model
    from attnviz.models.resolve import LoadOptions
    from attnviz.models.work import Work
    from attnviz.progress import Watch
    from attnviz.texts import Texts

Measured = TypeVar("Measured", bound=Report)
Request = TypeVar("Request")


@dataclass(frozen=True)
class Outlet:
    """The outputs of one command: the terminal, JSON and saved files.

    output: the options. console: to draw on, None if nothing is drawn. model: the name of the
    command's model; options: how it is loaded.
    """

    output: Output
    console: Console | None
    model: str = ""
    options: LoadOptions | None = None
    _taken: list[str] = field(default_factory=list)
    """The names of the models that were loaded."""

    @classmethod
    def open(
        cls,
        output: Output,
        model: LoadedModel | None = None,
        *shaping: str,
        name: str = "",
        seed: int = 0,
        limits_runs: bool = False,
    ) -> Self:
        """Return the outputs of a command, checked for errors before anything is measured.

        model: the options on the command's model, or None. name: of the model, if not the one that
        these name. seed: of its random parameters, if it has no option of its own. shaping,
        limits_runs: see ``load_options``.
        Raises UsageError or LoadError as ``check_path`` does, UsageError if the width is not valid
        or an option does not apply to the model.
        """
        options = None
        if model is not None:
            name = name or model.model
            seed = model.seed if isinstance(model, SeededModel) else seed
            own = model if isinstance(model, OwnShape) else None
            options = load_options(name, model, seed, own, *shaping, limits_runs=limits_runs)
        remote = os.environ.get("SSH_CONNECTION") or os.environ.get("SSH_TTY")
        shown = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
        if output.opens and remote and (not shown or sys.platform == "darwin"):
            raise UsageError(
                "--open: this is a remote terminal without a display; write the page with "
                "--save page.html, and open it where you sit"
            )
        if output.save:
            from attnviz.draw.files import check_path

            for path in output.save:
                check_path(path, output.endings)
        if output.explain and not output.explained:
            asked = "--json" if output.json else "--brief"
            messages(output.quiet).print(f"--explain adds nothing here: {asked} has no explanation")
        console = open_console(output.width, output.colour) if output.drawn else None
        return cls(output, console, name, options)

    @cached_property
    def notices(self) -> Console:
        """Return the console on standard error for progress and notices."""
        return messages(self.output.quiet or self.output.for_programs)

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Add the source of a model's name, unless it was typed, to errors and to the result."""
        self._taken.append(name)
        with blamed(name):
            yield

    def of_model(self, work: Work, **own: Any) -> LoadOptions:
        """Return how the command's model is loaded; ``own``: the options of ``mha``."""
        assert self.options is not None
        return replace(self.options, work=work, **own)

    def load_model(self, work: Work, **own: Any) -> Model:
        """Load the command's model for this work, while a spinner is shown; see ``of_model``."""
        return self.load(self.model, self.of_model(work, **own))

    @contextmanager
    def opened(self, name: str, options: LoadOptions) -> Iterator[Model]:
        """Load a model and yield it, with a spinner that is shown until the end of the block."""
        from attnviz.cli.progress import loading
        from attnviz.engine.text_pass import judged
        from attnviz.models.memory import keep_freed
        from attnviz.models.resolve import load

        keep_freed()
        with loading(name, self.notices) as progress:
            with self.of(name):
                loaded = judged(load(name, replace(options, progress=progress)))
            yield loaded

    def advancing(self, task: str, long: bool = False) -> AbstractContextManager[Watch]:
        """Return a progress bar as a context. task: its name. long: show it with ``--json`` too."""
        from attnviz.cli.progress import scanning

        return scanning(task, messages(self.output.quiet) if long else self.notices)

    def load(self, name: str, options: LoadOptions) -> Model:
        """Load a model while a spinner is shown, and return it."""
        with self.opened(name, options) as model:
            return model

    def measured(
        self,
        task: str,
        measure: Callable[..., Measured],
        *given: Any,
        long: bool = True,
        resume: Path | None = None,
        **more: Any,
    ) -> Measured:
        """Measure with a progress bar, and return the report.

        task: the name of the bar. measure: is called with all that is given, and with ``advance``,
        the object that it reports its progress to. long: True shows the bar with ``--json`` too.
        resume: the file from which the same command resumes the run after Ctrl-C, or None.
        """
        try:
            with self.advancing(task, long) as advance:
                return measure(*given, advance=advance, **more)
        except KeyboardInterrupt:
            self.interrupted(resume)

    def run(
        self, task: str, measure: Callable[..., Measured], *given: Any, **more: Any
    ) -> Measured:
        """Measure and show the report; KeyboardInterrupt after that if the run ended early."""
        report = self.measured(task, measure, *given, **more)
        self.show(report)
        if not getattr(report, "complete", True):
            self.interrupted(more.get("resume"))
        return report

    def run_over(
        self,
        task: str,
        measure: Callable[..., Measured],
        work: Callable[[TextCorpus, Request], Work],
        request: Request,
        *,
        texts: str | Path | Texts,
        column: str | None,
        shard: str | None,
        resume: Path | None,
    ) -> None:
        """Measure a corpus, or its ``shard``, and show the report; see ``measured``."""
        from attnviz.corpus import open_corpus, read_shard

        corpus = open_corpus(texts, column)
        share, kept = read_shard(shard, resume)
        speaks = share.number == 0 or shard is not None  # of a torchrun, one process
        given = self.load_model(work(corpus, request)), corpus, request, share, kept
        report = self.measured(task, measure, *given, resume=kept)
        if speaks:
            self.show(report)

    def interrupted(self, resume: Path | None) -> NoReturn:
        """Tell the user if the same command resumes the run, then raise KeyboardInterrupt."""
        if resume is not None:
            self.notices.print("the same command continues where this one stopped")
        raise KeyboardInterrupt

    def show(self, report: Report) -> None:
        """Write the files, then print the result; if one fails, the other is still written.

        The files come first, as a reader of standard output may leave or stop reading.
        Raises LoadError if something cannot be written.
        """
        if follows():
            return
        document = cache(partial(self._document, report))  # made once, and only if drawn
        failed: AttnvizError | None = None
        saved = []
        for path in self.output.save:
            try:
                self._save(report, document, path)
                saved.append(path)
            except AttnvizError as error:
                failed = failed or error
        if self.output.opens:
            import tempfile
            import webbrowser

            number, name = tempfile.mkstemp(prefix="attnviz-", suffix=".html")
            os.close(number)
            page = Path(name)  # stays when attnviz ends
            try:
                self._save(report, document, page)
                self.notices.print(f"the page is {visible(name)}", soft_wrap=True)
                if not webbrowser.open(page.resolve().as_uri()):
                    raise LoadError(f"no browser was found: open {page} yourself")
            except AttnvizError as error:
                failed = failed or error
        try:
            with printing():
                if self.output.json:
                    report.write_json(sys.stdout)
                elif self.output.brief:
                    print(json.dumps(report.brief()))
                elif self.console is not None:
                    self._draw(self.console, document())
        finally:
            for path in saved:
                self.notices.print(f"saved {visible(str(path))}", soft_wrap=True)
            if failed is not None:
                raise failed

    def _document(self, report: Report) -> Document:
        """Return the document of a report; its first hint says where a default model comes from."""
        from attnviz.draw.document import Facts

        hints = not self.output.quiet
        made = report.document(explain=self.output.explain, hints=hints)
        sources = {name.source for name in self._taken if isinstance(name, DefaultName)}
        if not sources or not hints:
            return made
        named = Facts([(f"model of {' and '.join(sources)}", False)], tone="faint")
        return made._replace(hints=[named, *made.hints])

    def _save(self, report: Report, document: Callable[[], Document], path: Path) -> None:
        from attnviz.draw.files import save

        palette = self.output.colours

        def screen() -> str:
            if self.console is None:
                return ""
            from attnviz.draw.terminal import terminal_block
            from attnviz.draw.theme import Theme

            # A file has no colours: glyphs and letters are drawn instead.
            lines = self.console.height
            theme = Theme(palette, colour=False, ascii=self.output.ascii, lines=lines)
            return terminal_block(document(), theme, self.console.width).plain

        save(path, report_files(report, document, palette, screen, self.output.slide))

    def _draw(self, console: Console, document: Document) -> None:
        from attnviz.draw.terminal import first_screen, terminal_block
        from attnviz.draw.theme import Theme

        theme = Theme.of(console, self.output.colours, self.output.ascii)
        theme = replace(theme, pictures=[])
        if self.output.whole:
            asked = self.output.full is True
            drawn = terminal_block(document, theme, console.width, everything=asked)
        else:  # leave a line for the prompt
            drawn = first_screen(document, theme, console.width, console.height - 1)
        console.print(drawn, end="")
        if theme.pictures and theme.half_blocks:
            from attnviz.draw.picture import overlays

            console.file.write("".join(overlays(drawn, theme, console)))
