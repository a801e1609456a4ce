"""What must be true of observing a model: it shows what is there, and changes nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from attnviz.verify.examinee import Examinee, Outputs
from attnviz.verify.maps import Maps, apart
from attnviz.verify.records import Check, Measure
from attnviz.verify.rounding import Rounding, exact

__all__ = ["dropout_off", "eager_weights", "outputs_kept", "padding_ignored", "unchanged"]


def eager_weights(examinee: Examinee, maps: Maps, rounding: Rounding) -> Check:
    """What was captured is what the same model computes when it is asked plainly."""
    measures = []
    for reference in examinee.references():
        assert reference.maps is not None
        difference, where = apart(maps, reference.maps)
        if reference.exact:
            measures.append(exact(reference.name, difference, where))
        else:
            bound = rounding.of_weights(maps)
            measures.append(Measure(reference.name, difference, *bound, where))
    claim = "the captured weights are those of a plain run"
    return Check("", "weights as computed plainly", claim=claim, measures=tuple(measures))


def outputs_kept(examinee: Examinee, outputs: Outputs, rounding: Rounding) -> Check:
    """Observing changes no output."""
    measures = []
    for reference in examinee.unobserved():
        assert reference.outputs is not None
        shown = reference.outputs[-len(outputs) :]
        same = shown.shape == outputs.shape
        difference = float(np.abs(shown - outputs).max()) if same else math.inf
        if reference.exact:
            measures.append(exact(reference.name, difference))
        else:
            measures.append(Measure(reference.name, difference, *rounding.of_outputs(outputs)))
    claim = "outputs under capture are the outputs without"
    return Check("", "outputs kept", claim=claim, measures=tuple(measures))


def dropout_off(examinee: Examinee, maps: Maps) -> Check:
    """Nothing is drawn at random while a model is observed, whatever mode it is in."""
    again = apart(maps, examinee.capture(examinee.passage))
    measures = [exact("captured twice", *again, "nothing is drawn: bit for bit")]
    notes = ("this model has no dropout to switch off",)
    if examinee.dropout:
        with examinee.training():
            trained = apart(maps, examinee.capture(examinee.passage))
        words = "dropout is off: bit for bit"
        measures.append(exact("captured in training mode", *trained, words))
        notes = (f"dropout of up to {examinee.dropout:g} while training",)
    claim = "captures agree, also of a model in training mode"
    return Check("", "dropout off", claim=claim, measures=tuple(measures), notes=notes)


def padding_ignored(examinee: Examinee, maps: Maps, outputs: Outputs, rounding: Rounding) -> Check:
    """Padding gets no weight, and moves nothing of the real tokens."""
    name, claim = "padding ignored", "padding gets no weight and moves no real token"
    runs, reason = examinee.padded()
    if not runs:
        return Check("", name, claim=claim, skipped=reason)
    measures = []
    for run in runs:
        wanted = {place: maps[place] for place in maps if place in run.maps}
        difference, where = apart(wanted, run.maps)
        # An encoder–decoder's decoder is not padded, so its rows stay in place as well.
        moved = float(np.abs(run.outputs - outputs).max())
        measures += [
            exact(f"weight on padding, {run.side}", run.on_padding, run.where, _NONE),
            Measure(f"weights move by, {run.side}", difference, *rounding.of_weights(maps), where),
            Measure(f"outputs move by, {run.side}", moved, *rounding.of_outputs(outputs)),
        ]
    notes = (reason,) if reason else ()
    return Check("", name, claim=claim, measures=tuple(measures), notes=notes)


_NONE = "hidden means none at all"


def unchanged(before: Mapping[str, str], after: Mapping[str, str]) -> Check:
    """Everything that was done left the model as it was found."""
    parts = dict.fromkeys((*before, *after))
    other = [part for part in parts if before.get(part) != after.get(part)]
    measure = exact("parts that changed", len(other), ", ".join(other), "digests (SHA-256) agree")
    return Check(
        "",
        "model left unchanged",
        claim="after all of these runs the model is as it was before",
        measures=(measure,),
        notes=(f"compared: {', '.join(parts)}",),
    )
