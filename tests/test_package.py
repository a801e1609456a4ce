"""What belongs to the package beside its code: the version, the model's files, the named shapes."""

import re
import shutil
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import attnviz

PACKAGE = Path(attnviz.__file__).parent
MODEL = PACKAGE / "data" / "tiny"
LARGEST_MODEL = 16 * 2**20


def project():
    """The project's description; the tests of an installed wheel have none beside them."""
    return tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]


def test_one_version_one_command_and_types():
    assert re.fullmatch(r"\d+\.\d+\.\d+(?:[a-z.]+\d+)?", attnviz.__version__)
    assert metadata.version("attnviz") == attnviz.__version__
    (script,) = metadata.entry_points(group="console_scripts", name="attnviz")
    assert script.value == "attnviz.cli.main:main"
    assert callable(script.load())
    assert (PACKAGE / "py.typed").is_file()


def test_the_promised_ranges_and_the_licence():
    needed = project()["dependencies"]
    assert "torch>=2.6" in needed
    assert "transformers>=5.21,<6" in needed
    assert project()["requires-python"] == ">=3.11"
    offered = {"audio", "data", "dist", "gguf", "image", "kernel", "plot", "tui", "test", "site"}
    assert set(project()["optional-dependencies"]) == offered
    text = (PACKAGE.parent / "LICENSE").read_text()
    assert "Apache License" in text
    assert "Version 2.0" in text
    assert project()["license"] == "Apache-2.0"


def test_the_bundled_model_is_whole_and_small():
    names = {path.name for path in MODEL.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md"} <= names
    assert sum(path.stat().st_size for path in MODEL.iterdir()) <= LARGEST_MODEL


def test_the_top_level_stays_small():
    if shutil.which("git") is None or not (PACKAGE.parent / ".git").exists():
        pytest.skip("no git checkout")
    listed = subprocess.run(
        ["git", "ls-files"], cwd=PACKAGE.parent, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    tops = {name.split("/")[0] for name in listed if not name.startswith(".")}
    files = {"CITATION.cff", "LICENSE", "README.md", "pyproject.toml"}
    assert tops == files | {"attnviz", "configs", "tests"}


def test_the_citation_names_this_version():
    citation = (PACKAGE.parent / "CITATION.cff").read_text()
    assert f"\nversion: {attnviz.__version__}\n" in citation


def test_an_editable_install_copies_nothing():
    """A copied folder of the package's name would stay behind, and be imported instead."""
    told = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert told["dev-mode-dirs"] == ["."]
    assert "force-include" not in told["targets"]["wheel"]
