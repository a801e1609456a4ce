"""The pages of the manual and the README, and the blocks of commands and Python code on them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import attnviz

README = Path(__file__).parent.parent / "README.md"
PAGES = [README, *sorted(Path(attnviz.__file__).with_name("docs").glob("*.md"))]
PROMPT, CONTINUED = ">>> ", "... "
_BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<reason>.+?) -->\n)?```(?P<kind>console|python)\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Step:
    """A command and its printed output.

    A command goes on over lines that end in a backslash, a statement of a session over those that
    start with ``... ``.
    """

    command: str
    output: tuple[str, ...]


@dataclass(frozen=True)
class Block:
    """A fenced block: where its body starts, what stands there, and why it is not run."""

    start: int
    kind: str
    body: str
    reason: str | None

    @property
    def steps(self):
        lines = self.body.splitlines()
        assert lines, "a console block is empty"
        assert lines[0].startswith("$ "), f"a console block starts with {lines[0]!r}, not a command"
        steps = []
        command, output = "", []
        for line in lines:
            if command.endswith("\\"):
                command += f"\n{line}"
            elif line.startswith("$ "):
                if command:
                    steps.append(Step(command, tuple(output)))
                command, output = line.removeprefix("$ "), []
            else:
                output.append(line)
        return [*steps, Step(command, tuple(output))]

    @property
    def is_session(self):
        return self.kind == "python" and self.body.startswith(PROMPT)

    @property
    def statements(self):
        """What is typed in a session, without its prompts, and what each prints."""
        steps = []
        for line in self.body.splitlines():
            if line.startswith(PROMPT):
                steps.append(Step(line.removeprefix(PROMPT), ()))
                continue
            step = steps.pop()
            if not step.output and f"{line} ".startswith(CONTINUED):
                steps.append(Step(f"{step.command}\n{line[len(CONTINUED) :]}", ()))
            else:
                steps.append(Step(step.command, (*step.output, line)))
        return steps


def blocks(text):
    return [
        Block(match.start("body"), match["kind"], match["body"], match["reason"])
        for match in _BLOCK.finditer(text)
    ]
