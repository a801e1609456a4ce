"""The programs of the manual's page on many texts, where what they need is installed."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import attnviz

PAGE = (Path(attnviz.__file__).parent / "docs" / "scale.md").read_text(encoding="utf-8")
PROGRAMS = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL))
NEEDS = {"pool.py": "attnviz", "on_ray.py": "ray"}
TEXTS = [f"The cat sat on the mat because it was tired of {place} dogs." for place in range(150)]


def test_every_program_is_here():
    assert PROGRAMS.keys() == NEEDS.keys()
    assert all(len(program.splitlines()) <= 30 for program in PROGRAMS.values())


@pytest.mark.long
@pytest.mark.parametrize("name", NEEDS)
def test_a_program_gives_what_one_process_gives(name, tmp_path):
    if importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed")
    (tmp_path / "corpus.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    (tmp_path / name).write_text(PROGRAMS[name], encoding="utf-8")
    subprocess.run([sys.executable, name], cwd=tmp_path, check=True)
    attnviz.patterns("tiny", texts=TEXTS).save(tmp_path / "one.csv")
    assert (tmp_path / "heads.csv").read_bytes() == (tmp_path / "one.csv").read_bytes()
