"""What a trained model's card says of its losses and of its heads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attnviz.learning import Estimate, ModelScores, ScoredHeads, TrainedModel

__all__ = ["results"]

_MEANINGS = {
    "previous": "weight on the token before",
    "first": "weight on the first token",
    "duplicate": "weight on earlier tokens equal to this one",
    "induction": "weight on the tokens that followed earlier equals of this one",
}


def results(result: TrainedModel) -> Iterator[str]:
    """The paragraphs and tables of the section, Markdown."""
    scores = result.scores
    known = result.valid_perplexity
    perplexity = "" if known is None else f" (perplexity {known:.1f})"
    yield (
        f"On the whole validation text, in windows of {result.valid_windows:,} tokens: "
        f"**{result.valid_loss:.3f} nats per token**{perplexity}, "
        f"**{result.valid_bits_per_byte:.3f} bits per byte**."
    )
    yield (
        f"On {scores.copies} sequences of {scores.copy_tokens} random tokens that stand there "
        f"twice (seed {scores.seed}, not drawn in training): first copy "
        f"{_pm(scores.first_copy)} nats per token, second copy **{_pm(scores.second_copy)}**, from "
        "its second token on: its first cannot be told."
    )
    yield (
        "What its heads do, measured in float32 from the stored weights, mean over sequences ± "
        "standard error; *even* is the same measure of attention spread evenly over what each "
        f"token sees; the highest of a column is bold. On {_probe_words(scores, 'text')}:"
    )
    for probe in dict.fromkeys(scored.probe for scored in scores.scores):
        if probe == "random":
            yield f"On {_probe_words(scores, probe)}:"
        yield _score_table([one for one in scores.scores if one.probe == probe])
    yield "\n".join(f"- *{name}*: {words}" for name, words in _MEANINGS.items()) + (
        "; on random tokens over the second copy's tokens only"
    )


def _probe_words(scores: ModelScores, probe: str) -> str:
    if probe == "text":
        return f"{scores.windows} windows of {scores.window_tokens} tokens of validation text"
    return f"the {scores.copies} sequences of random tokens"


def _score_table(scored: Sequence[ScoredHeads]) -> str:
    names = [one.name for one in scored]
    lines = [f"| head | {' | '.join(names)} |", f"|---|{'---:|' * len(names)}"]
    for layer, row in enumerate(scored[0].heads):
        for head in range(len(row)):
            cells = [_cell(one, layer, head) for one in scored]
            lines.append(f"| L{layer}H{head} | {' | '.join(cells)} |")
    lines.append(f"| *even* | {' | '.join(f'{one.even:.3f}' for one in scored)} |")
    return "\n".join(lines)


def _cell(scored: ScoredHeads, layer: int, head: int) -> str:
    """The highest of a column is bold."""
    text = _pm(scored.heads[layer][head])
    return f"**{text}**" if scored.best[:2] == (layer, head) else text


def _pm(estimate: Estimate) -> str:
    error = "" if estimate.error is None else f" ± {estimate.error:.3f}"
    return f"{estimate.mean:.3f}{error}"
