"""Whether a loaded model has as many parameters as ``attnviz params`` counts from its config."""

from __future__ import annotations

from typing import Any

from attnviz.errors import AttnvizError
from attnviz.models.model import Model
from attnviz.models.own import OwnAttention
from attnviz.models.resolve import LoadOptions
from attnviz.params.counting.parameters import count_parameters
from attnviz.params.find_spec import find_spec
from attnviz.params.shapes import spec_from_options
from attnviz.verify.model_checks import parameter_count
from attnviz.verify.records import Check
from attnviz.verify.rounding import exact

__all__ = ["count_check"]

_NAME = "parameter count"
_CLAIM = "the model holds as many parameters as attnviz params counts"


def count_check(model: Model, name: str, options: LoadOptions) -> Check:
    """Both counts, as whole numbers; skipped where the config tells of no count."""
    loaded = parameter_count(model)
    try:
        expected, command = _expected(model, name, options)
    except AttnvizError as error:
        return Check("", _NAME, claim=_CLAIM, skipped=str(error))
    measure = exact("apart by", abs(loaded - expected), reason="whole numbers")
    notes = (f"{loaded:,} in the loaded model, {expected:,} by {command}",)
    return Check("", _NAME, claim=_CLAIM, measures=(measure,), notes=notes)


def _expected(model: Model, name: str, options: LoadOptions) -> tuple[int, str]:
    """The count, and the command that shows it."""
    if isinstance(model, OwnAttention):
        shape = model.attention.shape
        sizes: dict[str, Any] = {
            "d_model": shape.d_model,
            "heads": shape.heads,
            "kv_heads": shape.kv_heads,
        }
        words = " ".join(f"--{key.replace('_', '-')} {size}" for key, size in sizes.items())
        spec = spec_from_options(**sizes, bias=True)
        return count_parameters(spec).total, f"attnviz params {words} --bias"
    found = find_spec(name, revision=options.revision, offline=options.offline)
    command = f"attnviz params --model {name}"
    if found.spec is not None:
        return count_parameters(found.spec).total, command
    from attnviz.params.meta_count import count_on_meta  # takes seconds

    made = count_on_meta(found.config, name=name, architecture=found.architecture)
    return made.total, command
