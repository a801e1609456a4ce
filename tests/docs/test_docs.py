"""The manual: every page is listed, shown as it is in a pipe, laid out in a terminal."""

import re
import tomllib
from pathlib import Path

import pytest

import attnviz
from attnviz.cli.app import COMMANDS
from attnviz.cli.docs import topics

ROOT = Path(attnviz.__file__).parent.parent


def test_the_pages_are_listed_on_one_small_screen(run):
    lines = run("docs").lines
    assert len(lines) < 24
    others = " ".join(lines[[line[:4] for line in lines].index("And ") :])
    for topic, title in topics().items():
        listed = any(f"{topic:10}{title}" in line for line in lines)
        assert listed if topic in COMMANDS else topic in others, topic
    assert set(COMMANDS) - {"docs"} <= set(topics())


def test_the_site_has_every_page():
    project = tomllib.loads((ROOT / ".zensical.toml").read_text(encoding="utf-8"))["project"]
    entries = [entry for section in project["nav"] for pages in section.values() for entry in pages]
    listed = [
        page
        for entry in entries
        for page in (entry.values() if isinstance(entry, dict) else [entry])
    ]
    assert sorted(listed) == sorted(path.name for path in (ROOT / "attnviz" / "docs").glob("*.md"))


def test_the_layout_names_every_question():
    page = (ROOT / "attnviz" / "docs" / "design.md").read_text(encoding="utf-8")
    for group in ("inspect", "count", "learn"):
        for path in (ROOT / "attnviz" / group).glob("*/__init__.py"):
            assert re.search(rf"[ {{,]{path.parent.name}[ ,}}/\n]", page), path


def test_a_page_in_a_pipe_is_markdown(run):
    for topic, title in topics().items():
        result = run("docs", topic)
        assert result.code == 0
        assert result.lines[0] == f"# {title}"


def test_a_page_in_a_terminal_is_laid_out_and_keeps_its_lines(run):
    result = run("docs", "json", "--color", "always", env={"PAGER": "cat"})
    assert result.code == 0
    assert "\x1b[" in result.out
    assert "```" not in result.out
    wide = {"PAGER": "cat", "COLUMNS": "80"}
    shown = [line.strip() for line in run("docs", "heads", "--color", "always", env=wide).lines]
    plain = [re.sub("\x1b[^m]*m", "", line).rstrip() for line in shown]
    page = run("docs", "heads").lines
    full = [line for line in page if line.startswith("tiny · ")]
    assert full
    assert all(line in plain for line in full)


def test_a_word_is_searched_for(run):
    result = run("docs", "soft cap")
    assert (result.code, result.err) == (0, "")
    *lines, _ = result.lines
    assert 0 < len(lines) < 6
    for line in lines:
        page = run("docs", line.split()[0]).out
        assert "soft cap" in " ".join(page.split()).lower()


def test_words_are_found_in_any_order_and_in_tables(run):
    assert "attnviz head L1H2 --save card.svg" in run("docs", "image save a").out
    assert run("docs", "run_with_cache").out.startswith(
        "phrases   model.run_with_cache(text), then"
    )


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("pattern", "no page 'pattern' in the manual: did you mean patterns?"),
        ("inducton", "the manual has no 'inducton': did you mean induction?"),
        ("pruning", "the manual has no 'pruning': did you mean prune?"),
        ("xyzq", "the manual has no 'xyzq': expected words in it, or ablate, "),
        (" ", "the manual has no ' ': expected words in it, or ablate, "),
    ],
)
def test_what_the_manual_does_not_have(run, typed, meant):
    result = run("docs", typed)
    assert result.code == 2
    assert result.err.startswith(f"attnviz: {meant}")


def test_the_skill_names_every_command_for_programs_and_only_options_that_are_there(run):
    told = run("docs", "skill").out
    assert told.startswith("---\nname: attnviz\n")
    named = re.findall(r"^### attnviz (\S+)$", told, re.MULTILINE)
    assert {*named} == {*COMMANDS} - {"docs", "explore", "use"}
    for part in told.split("\n### attnviz ")[1:]:
        helped = run(part.split()[0], "--help", env={"COLUMNS": "200"}).out
        options = re.findall(r"^- `[^`]*(--[a-z-]+)", part, re.MULTILINE)
        assert all(f"{option} " in helped for option in options), part
