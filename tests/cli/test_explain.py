"""What ``--explain`` says below the screen of every command: fifteen lines, about what is on it."""

import re
import shutil
from pathlib import Path

import pytest
from rich.cells import cell_len

from attnviz.cli.app import COMMANDS
from attnviz.draw.prose import LINES, manual_terms

from ..conftest import SENTENCE
from ..first_screens import command_lines

SCREENS = command_lines("explained")

SECONDS = {"sweep", "train", "check", "diff", "retrieve", "why with inputs", "verify a model"}
SECONDS |= {"verify", "scaling of a model"}
"""Those whose reports no other test draws: with ``-m long``."""

WITHOUT = {"align", "explore", "docs", "merge", "use"}
"""Those have no screen of their own to explain, or need a checkpoint."""

STORY = "Once there was a small fox who lived in a small house. The fox had a friend. "
RECIPE = Path(__file__).parents[1] / "recipe.toml"


def test_every_command_is_here():
    assert {arguments[0] for arguments in SCREENS.values()} == set(COMMANDS) - WITHOUT


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.long if name in SECONDS else ()) for name in SCREENS],
)
def test_fifteen_lines_about_what_is_shown(redrawn, name, tmp_path):
    arguments = SCREENS[name]
    (tmp_path / "story.txt").write_text(STORY * 12)
    shutil.copy(RECIPE, tmp_path)
    if name == "check":
        assert redrawn("check", "rules.toml", "--init").code == 0
    for more in (("--no-full",), ("--full",), ("--full", "--ascii")):
        if name == "train":
            arguments = (*SCREENS[name][:-1], f"m{len(more)}{more[0]}")
        shown = redrawn(*arguments, *more, "--width", "80", "--explain", "--quiet")
        assert shown.code == 0, shown
        screen, said = parted(shown.out)
        assert len(said) + 1 <= LINES
        assert max(map(cell_len, said)) <= 80
        assert "--ascii" not in more or "".join(said).isascii()
        assert said[-1] == f"More: attnviz docs {arguments[0]}."
        leads = [line.partition(": ")[0] for line in said[1:-1] if not line.startswith("  ")]
        for lead in leads:
            for word in lead.split(", "):
                assert re.search(rf"(?<![\w-]){re.escape(word)}(?!\w)", screen), (more, word)
    if name not in {"sweep", "train"}:
        wide = redrawn(*arguments, "--full", "--width", "120", "--explain", "--quiet")
        assert len(parted(wide.out)[1]) <= LINES - 1


def parted(out):
    """The screen, and the lines of the explanation below it."""
    screen, lead, said = out.partition("How to read this: ")
    assert lead
    assert "How to read this" not in said
    return screen, (lead + said).splitlines()


def test_in_a_terminal_it_stands_below_the_first_screen(redrawn):
    screen = redrawn("rollout", SENTENCE, "--no-full").out.rsplit("\n\n", 1)[0]  # without the hints
    assert redrawn("rollout", SENTENCE, "--no-full", "--explain").out.startswith(f"{screen}\n")


def test_pages_have_it_too(run, tmp_path):
    files = ("--save", "a.html", "--save", "a.md", "--save", "a.txt")
    assert run("ablate", SENTENCE, *files, "--explain").code == 0
    for ending in ("html", "md", "txt"):
        page = (tmp_path / f"a.{ending}").read_text(encoding="utf-8")
        for said in ("what ablation adds to the loss", "measured over this text alone (13 tokens)"):
            assert said in " ".join(page.replace("\\", "").split()), (ending, said)
        assert "random dir." not in page


def test_every_page_has_its_words():
    for page in sorted({arguments[0] for arguments in SCREENS.values()}):
        terms = manual_terms(page)
        assert len(terms) >= 4, page
        for words, meaning in terms:
            assert all(words), (page, words)
            assert meaning.endswith("."), (page, words)
            assert "*" not in meaning + "".join(words), (page, words)


def test_json_alone_has_no_explanation_and_that_is_said(run):
    alone = run("rollout", SENTENCE, "--json", "--explain")
    assert alone.err == "--explain adds nothing here: --json has no explanation\n"
    plain = run("rollout", SENTENCE, "--json")
    assert (alone.code, alone.out, plain.err) == (0, plain.out, "")
    assert run("rollout", SENTENCE, "--json", "--explain", "-q").err == ""
    assert run("rollout", SENTENCE, "--json", "--explain", "--save", "a.md").err == ""
