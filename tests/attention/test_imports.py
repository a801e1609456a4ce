from __future__ import annotations

import subprocess
import sys


def test_the_numpy_path_needs_neither_torch_nor_the_compatibility_layer():
    program = """
import sys
import numpy as np
from attnviz.attention import functional, shape
from attnviz.attention.numpy_attention import NumpyAttention
attention = NumpyAttention.random(8, 2, causal=True, rotary=1e4)
attention(np.ones((3, 8), np.float32), mask=functional.padding_mask(np.ones((1, 3), bool))[0])
loaded = {name.partition(".")[0] for name in sys.modules}
print(sorted(loaded & {"torch", "transformers", "array_api_compat", "keras"}))
"""
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "[]"
