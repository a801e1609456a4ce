"""The first word of a public function's docstring says what the function does: it is a verb."""

import ast

from .test_imports import PATHS, nodes

_VERBS = """
    Ablate Add Announce Answer Append Borrow Break Build Call Carry Change Check Choose
    Collect Combine Compare Compute Continue Count Cut Declare Decompose Discard Do Download
    Downsample Draw Drop Edit Encode End Escape Explore Extend Fetch Find Finish Fit Flush
    Follow Forget Generate Give Grow Hand Hide Hold Hook Ignore Import Join Keep Knock Learn
    Leave Let Load Lock Make Mark Measure Observe Open Pad Pass Patch Prepare Print Put Query
    Raise Rank Read Rebuild Record Refuse Remove Repeat Replace Rescale Reshape Restore Return
    Rotate Run Save Say Score See Set Show Spell Split Start Stop Store Sum Summarise
    Take Tell Test Tokenise Tokenize Track Train Try Use Watch Write Yield
"""
VERBS = frozenset(_VERBS.split())
"""All that are used; a new one is added here."""


def wrong():
    return [
        f"{module}:{node.lineno} {node.name}: {text.splitlines()[0]}"
        for module in PATHS
        for node in nodes(module)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if not node.name.startswith("_")
        if (text := ast.get_docstring(node))
        if text.split()[0].rstrip(",") not in VERBS
    ]


def test_a_docstring_begins_with_a_verb():
    assert wrong() == []
