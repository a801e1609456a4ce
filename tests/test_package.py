"""The names of the package and what belongs to it beside its code: its files, the named shapes."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import import_module, metadata
from pathlib import Path

import pytest

import attnviz

PACKAGE = Path(attnviz.__file__).parent
MODEL = PACKAGE / "data" / "tiny"
LARGEST_MODEL = 16 * 2**20
HEAVY = {"torch", "transformers", "huggingface_hub", "keras", "matplotlib"}


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


def test_a_release_writes_whole_addresses_into_the_readme(tmp_path):
    if not (PACKAGE.parent / ".github").exists() or shutil.which("bash") is None:
        pytest.skip("no checkout, or no shell")
    yaml = pytest.importorskip("yaml")
    release = yaml.safe_load((PACKAGE.parent / ".github/workflows/release.yml").read_text())
    (script,) = (
        step["run"]
        for step in release["jobs"]["build"]["steps"]
        if "README" in step.get("name", "")
    )
    before = (PACKAGE.parent / "README.md").read_text()
    (tmp_path / "README.md").write_text(before)
    run = {"GITHUB_REPOSITORY": "o/r", "GITHUB_REF_NAME": "v1", "GITHUB_SERVER_URL": "https://h"}
    subprocess.run(["bash", "-ec", script], cwd=tmp_path, env=os.environ | run, check=True)
    after = (tmp_path / "README.md").read_text()
    targets = re.findall(r'\]\(([^)]+)\)|src(?:set)?="([^"]+)"', after)
    assert len(targets) == len(re.findall(r'\]\([^)]+\)|src(?:set)?="', before))
    for target in map("".join, targets):
        picture = target.endswith((".svg", ".png"))
        root = "https://raw.githubusercontent.com/o/r/v1/" if picture else "https://h/o/r/blob/v1/"
        assert target.startswith(root)
        assert (PACKAGE.parent / target.removeprefix(root)).is_file(), target


def loaded(program):
    """The packages that a fresh process has imported after ``program``."""
    ending = "\nimport sys\nprint(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", program + ending], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split("\n")[-2].split())


def test_the_import_costs_nothing():
    assert not loaded("import attnviz") & (HEAVY | {"numpy", "rich", "typer"})
    assert not loaded("import attnviz; dir(attnviz)") & (HEAVY | {"numpy", "typer"})


def test_what_needs_no_torch():
    program = """
import attnviz, numpy, rich
rich.print(attnviz.heatmap([[1.0]]))
attnviz.patterns, attnviz.ablate, attnviz.params, attnviz.prune
print(attnviz.capture("tiny", "A cat.")._repr_html_())
print(attnviz.capture("mha", "A cat."))
print(attnviz.rollout("tiny", text="A cat sat."))
print(attnviz.params(d_model=64, heads=8))
"""
    assert not loaded(program) & HEAVY


def test_the_mechanism_needs_neither_torch_nor_rich():
    program = "import numpy, attnviz\nx = numpy.ones((2, 3))\n"
    program += "output, weights = attnviz.scaled_dot_product_attention(x, x, x)"
    assert not loaded(program) & (HEAVY | {"rich"})


def test_every_name_is_there():
    assert set(attnviz.__all__) <= set(dir(attnviz))
    assert all(getattr(attnviz, name) is not None for name in attnviz.__all__)
    for name in ("capture", "heatmap", "rollout", "scaled_dot_product_attention"):
        assert getattr(attnviz, name).__name__ == name
        assert getattr(attnviz, name).__doc__


def test_no_other_name_and_a_wrong_argument_is_a_value_error():
    with pytest.raises(AttributeError, match="'attnviz' has no attribute 'heatmaps'"):
        attnviz.heatmaps  # noqa: B018  the access is the test
    assert issubclass(attnviz.errors.UsageError, ValueError)
    assert issubclass(attnviz.errors.UsageError, attnviz.errors.AttnvizError)


def test_types_are_declared_for_every_name():
    """Editors and type checkers read the imports that never run, and the lists of their modules."""
    tree = ast.parse(Path(attnviz.__file__).read_text())
    (declared,) = (node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in declared.body if isinstance(node, ast.ImportFrom)]
    names = {alias.name for node in imports for alias in node.names} - {"*"}
    pages = [node.module for node in imports if node.names[0].name == "*"]
    for page in map(import_module, map(str, pages)):
        assert set(page.__all__) == {
            name
            for name, value in vars(page).items()
            if hasattr(value, "__wrapped__") and value.__module__ == page.__name__
        } | ({"load"} & set(page.__all__))
        names |= set(page.__all__)
    assert names | {"__version__"} == set(attnviz.__all__)


def test_a_session_shows_a_loaded_model():
    assert repr(attnviz.load("tiny")) == "<attnviz.Model tiny: 6 layers × 4 heads>"
    assert repr(attnviz.load("mha")) == "<attnviz.Model mha: 1 layer × 8 heads>"
