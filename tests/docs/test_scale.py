"""The program of the manual's page on many texts gives what one process gives."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import attnviz

PAGE = (Path(attnviz.__file__).parent / "docs" / "scale.md").read_text(encoding="utf-8")
TEXTS = [f"The cat sat on the mat because it was tired of {place} dogs." for place in range(150)]


@pytest.mark.long
def test_the_program_gives_what_one_process_gives(tmp_path):
    (program,) = re.findall(r"```python\n# pool.py\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "corpus.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    (tmp_path / "pool.py").write_text(program, encoding="utf-8")
    subprocess.run([sys.executable, "pool.py"], cwd=tmp_path, check=True)
    attnviz.patterns("tiny", texts=TEXTS).save(tmp_path / "one.csv")
    assert (tmp_path / "heads.csv").read_bytes() == (tmp_path / "one.csv").read_bytes()
