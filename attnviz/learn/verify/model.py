"""Functions that prepare a loaded model for verification and check its parameter count."""

from __future__ import annotations

from attnviz.count.params.counting.parameters import count_parameters
from attnviz.count.params.find_spec import find_spec
from attnviz.count.params.shapes import spec_from_options
from attnviz.errors import AttnvizError, UnsupportedError
from attnviz.learn.verify.examinee import Examinee
from attnviz.learn.verify.native import BundledExaminee, OwnExaminee
from attnviz.learn.verify.properties import exact
from attnviz.learn.verify.records import Check
from attnviz.learn.verify.transformers import TransformersExaminee
from attnviz.models.bundled import Bundled
from attnviz.models.model import Model
from attnviz.models.own import OwnAttention
from attnviz.models.resolve import LoadOptions
from attnviz.models.threads import suit
from attnviz.models.transformers_model import TransformersModel
from attnviz.records import Input, Tokens


def open_examinee(model: Model, tokens: Tokens, target: Tokens | None = None) -> Examinee:
    """Return an object to verify a loaded model on the given tokens.

    target: the tokens of the decoder, if it has one beside an encoder.
    Raises UnsupportedError if the model does not take text.
    """
    passage = Input(tokens, target)
    suit(model)  # torch may have been imported only now
    if isinstance(model, TransformersModel):
        return TransformersExaminee(model, passage)
    if isinstance(model, Bundled):
        return BundledExaminee(model, passage)
    if isinstance(model, OwnAttention):
        return OwnExaminee(model, passage)
    raise UnsupportedError(f"no way to verify a {type(model).__name__}")


def count_check(examinee: Examinee, model: Model, name: str | None, options: LoadOptions) -> Check:
    """Check that the model has as many parameters as ``attnviz params`` counts.

    examinee: the model to verify. name, options: how it was loaded, name None if unknown.
    The check is skipped if the config does not allow a count.
    """
    title = "parameter count"
    claim = "the model has as many parameters as attnviz params counts"
    loaded = examinee.parameters
    try:
        expected, command = _expected(model, name, options)
    except AttnvizError as error:
        return Check("", title, claim=claim, skipped=str(error))
    measure = exact("difference", abs(loaded - expected), reason="whole numbers")
    notes = (f"{loaded:,} in the loaded model, {expected:,} by {command}",)
    return Check("", title, claim=claim, measures=(measure,), notes=notes)


def _expected(model: Model, name: str | None, options: LoadOptions) -> tuple[int, str]:
    """Return the parameter count, and the command that shows it.

    name, options: how the model was loaded, name None if unknown.
    """
    if isinstance(model, OwnAttention):
        shape = model.attention.shape
        sizes = {"d_model": shape.d_model, "heads": shape.heads, "kv_heads": shape.kv_heads}
        words = " ".join(f"--{key.replace('_', '-')} {size}" for key, size in sizes.items())
        spec = spec_from_options(
            d_model=shape.d_model, heads=shape.heads, kv_heads=shape.kv_heads, bias=True
        )
        return count_parameters(spec).total, f"attnviz params {words} --bias"
    if name is None:
        raise UnsupportedError("the model is loaded already, and params counts files")
    found = find_spec(name, revision=options.revision, offline=options.offline)
    command = f"attnviz params --model {name}"
    if found.spec is not None:
        return count_parameters(found.spec).total, command
    from attnviz.count.params.meta_count import count_on_meta  # takes seconds

    made = count_on_meta(found.config, name=name, architecture=found.architecture)
    return made.total, command
