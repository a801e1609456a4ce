"""The folders of the package, read from its imports: they point downwards only.

Every import counts, also inside a function or under ``TYPE_CHECKING``: a layer that needs a name
from above only to annotate with it depends on it all the same.
"""

import ast
import sys
from functools import cache
from pathlib import Path

import attnviz

ROOT = Path(attnviz.__file__).parent

GROUND = {"records", "errors", "reading", "options", "progress", "ranks", "tables"}
GROUND |= {"token_layout"}
"""What crosses the folders: plain data and the exceptions."""

SHARED = {
    *("measures", "attention", "models", "engine", "draw", "texts", "prompts"),
    *("regions", "resume", "cli", "corpus", "mergeable"),
    *GROUND,
}

GROUPS = ("inspect", "count", "learn")
"""The folders that only hold capabilities."""

CAPABILITIES = {
    *("docs", "mechanism", "merge"),
    *(path.parent.name for group in GROUPS for path in ROOT.glob(f"{group}/*/__init__.py")),
}

MAY_IMPORT = {
    "__main__": {"cli"},
    **{name: set() for name in GROUND},
    "reading": {"errors"},
    "records": {"token_layout"},
    "options": {"errors"},
    "tables": {"errors", "reading"},
    "ranks": {"errors"},
    "progress": {"ranks"},
    "attention": {"errors", "reading"},
    "measures": GROUND,
    "models": {"attention"} | GROUND,
    "engine": {"models", "attention", "measures"} | GROUND,
    "draw": {"measures"} | GROUND,
    "texts": {"draw", "models"} | GROUND,
    "prompts": {"draw", "engine", "measures", "models", "regions", "texts"} | GROUND,
    "regions": {"draw", "models", "texts"} | GROUND,
    "resume": {"draw"} | GROUND,
    "corpus": {"draw", "texts"} | GROUND,
    "mergeable": {"corpus", "draw", "measures", "resume", "texts"} | GROUND,
    "cli": CAPABILITIES
    | {"draw", "engine", "models", "measures", "prompts", "texts", "regions"}
    | {"corpus", "mergeable"}
    | GROUND,
    **dict.fromkeys(CAPABILITIES, SHARED),
    "mechanism": {"heads"} | SHARED,
    "rollout": {"heads", "picture"} | SHARED,
    "picture": {"heads"} | SHARED,
    "picture_text": {"heads", "picture"} | SHARED,
    "speech": {"heads"} | SHARED,
    "interventions": {"heads"} | SHARED,
    "diff": {"patterns", "picture"} | SHARED,
    "check": {"diff", "patterns", "params"} | SHARED,
    "explore": {"heads", "generate"} | SHARED,
    "head": {"heads", "interventions", "params", "patterns", "why"} | SHARED,
    "atlas": {"head", "heads", "patterns"} | SHARED,
    "report": {"head", "interventions", "params", "patterns", "why"} | SHARED,
    "merge": {"atlas", "interventions", "patterns"} | SHARED,
    "retrieve": {"params"} | SHARED,
    "sweep": {"train"} | SHARED,
    "verify": {"params"} | SHARED,
    "api": CAPABILITIES | SHARED,
}
"""What each folder may import beside itself; a capability another one only as it stands here."""

LIBRARIES = {
    "api": {"numpy", "rich"},
    "draw": {"numpy", "rich", "safetensors", "matplotlib", "PIL", "textual_image"},
    "measures": {"numpy"},
    "attention": {"numpy", "torch", "array_api_compat", "safetensors"},
    "records": {"numpy"},
    "token_layout": {"numpy"},
    "reading": set(),
    "errors": set(),
    "explore": {"numpy", "rich", "safetensors", "textual"},
}
"""The only third-party libraries of the folders that must stay small."""

TRANSFORMERS = {
    *("attnviz.models.attention_interface", "attnviz.models.chats"),
    *("attnviz.models.huggingface", "attnviz.models.vision"),
    *("attnviz.models.picture_texts", "attnviz.models.speech"),
    *("attnviz.learn.verify.verify",),
    *("attnviz.count.params.meta_count",),
}
"""The only modules that import transformers."""

STANDARD = sys.stdlib_module_names | {"_typeshed"}

DRAWERS = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "tools"}
"""Names of modules that say nothing about what is inside."""


def module_name(path):
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


PATHS = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}
PACKAGES = [name for name, path in PATHS.items() if path.name == "__init__.py"]


@cache
def tree(module):
    return ast.parse(PATHS[module].read_text(encoding="utf-8"))


@cache
def nodes(module):
    return tuple(ast.walk(tree(module)))


@cache
def imports(module):
    """The modules that a module imports anywhere; ``from a import b`` is ``a.b`` if that is one."""
    return frozenset(_imports(module))


def _imports(module):
    """Yield what ``imports`` returns; what the outermost package offers to editors never runs."""
    never = [node for node in tree(module).body if module == "attnviz" and isinstance(node, ast.If)]
    left_out = {inner for node in never for inner in ast.walk(node)}
    for node in nodes(module):
        if node in left_out:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import"
            assert node.module is not None
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in PATHS else node.module


def layer(module):
    """Return the folder that a module belongs to: ``heads`` for ``attnviz.inspect.heads.data``.

    The package itself, ``attnviz.inspect``, ``attnviz.count`` and ``attnviz.learn`` belong to none.
    """
    parts = module.split(".")[1:]
    if parts and parts[0] in GROUPS:
        parts = parts[1:]
    return parts[0] if parts else ""


def test_imports_point_downwards():
    wrong = {
        (module, name)
        for module in PATHS
        for name in imports(module)
        if name.split(".")[0] == "attnviz"
        and layer(name) not in MAY_IMPORT.get(layer(module), set()) | {layer(module), ""}
    }
    assert wrong == set()


def test_the_layers_are_those_that_are_there_and_have_an_order():
    """The table itself allows no way back up."""
    assert {layer(module) for module in PATHS} - {""} == set(MAY_IMPORT)
    below = {name: set(direct) - {"cli"} for name, direct in MAY_IMPORT.items()}
    for _ in below:
        for name, reached in below.items():
            below[name] = reached.union(*(below[other] for other in reached), set())
    assert not [name for name, reached in below.items() if name in reached]


def test_small_layers_stay_small():
    wrong = {
        (module, top)
        for module in PATHS
        if (allowed := LIBRARIES.get(layer(module))) is not None
        for top in {name.split(".")[0] for name in imports(module)}
        if top not in allowed | STANDARD | {"attnviz"}
    }
    assert wrong == set()


def test_few_modules_import_transformers_and_only_explore_textual():
    def importing(library):
        return {m for m in PATHS if any(name.split(".")[0] == library for name in imports(m))}

    assert importing("transformers") == TRANSFORMERS
    found = importing("textual")
    assert {layer(module) for module in found} == {"explore"}
    assert not {"command", "scene", "session", "saved", "facts", "map", "grid"} & {
        module.split(".")[-1] for module in found
    }


def test_no_import_returns_to_where_it_began():
    """No cycle, counting the imports inside functions as well."""
    done = set()

    def visit(module, way):
        assert module not in way, " -> ".join((*way[way.index(module) :], module))
        if module in done:
            return
        for name in sorted(imports(module) & PATHS.keys()):
            visit(name, (*way, module))
        done.add(module)

    for module in PATHS:
        visit(module, ())


def test_every_module_has_a_name_that_says_something_and_opens_with_a_sentence():
    for module in PATHS:
        assert not DRAWERS & set(module.split(".")[-1].split("_")), module
        first = (ast.get_docstring(tree(module)) or "").split("\n\n")[0]
        assert first.rstrip().endswith((".", ":", "?")), module


def test_packages_import_nothing():
    """One that re-exported a torch module would make every sibling pay for torch.

    The outermost finds its public names when they are asked for.
    """
    for package in PACKAGES:
        lazily = {"importlib", "typing"} if package == "attnviz" else set()
        assert imports(package) <= {"__future__"} | lazily, package
