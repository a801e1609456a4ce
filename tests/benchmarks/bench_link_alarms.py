"""How often ``link`` over many prompts calls a part clear where nothing is to be found.

Over 200 models with random weights and prompts of random words: at most five in a hundred may have
a part with an adjusted p of .05 or less. The suite has a sample of ten.
Run with ``python -m pytest tests/benchmarks/bench_link_alarms.py -s``: five minutes of a processor.
"""

import pytest

from ..inspect.link.random_links import random_link

pytestmark = pytest.mark.benchmark

MODELS = 200


@pytest.mark.parametrize("prompts", [5, 10])
def test_false_alarms(prompts):
    alarms = [
        any(part.stands_out for part in random_link(seed, prompts).parts) for seed in range(MODELS)
    ]
    print(f"{prompts} prompts: {sum(alarms)} of {MODELS} models ({sum(alarms) / MODELS:.1%})")
    assert sum(alarms) <= MODELS * 0.08  # twice the standard error above 5%
