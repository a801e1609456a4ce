from attnviz import errors as errors
from attnviz.api.analyses import ablate as ablate
from attnviz.api.analyses import check as check
from attnviz.api.analyses import diff as diff
from attnviz.api.analyses import generate as generate
from attnviz.api.analyses import params as params
from attnviz.api.analyses import patch as patch
from attnviz.api.analyses import path as path
from attnviz.api.analyses import patterns as patterns
from attnviz.api.analyses import prune as prune
from attnviz.api.analyses import rollout as rollout
from attnviz.api.analyses import scaling as scaling
from attnviz.api.analyses import sweep as sweep
from attnviz.api.analyses import train as train
from attnviz.api.analyses import verify as verify
from attnviz.api.analyses import why as why
from attnviz.api.analysis import Analysis as Analysis
from attnviz.api.attention import AttentionResult as AttentionResult
from attnviz.api.attention import scaled_dot_product_attention as scaled_dot_product_attention
from attnviz.api.capture import capture as capture
from attnviz.api.head_maps import HeadMaps as HeadMaps
from attnviz.api.heatmap import heatmap as heatmap
from attnviz.attention.module import MultiHeadAttention as MultiHeadAttention

__version__: str
__all__ = [
    "Analysis",
    "AttentionResult",
    "HeadMaps",
    "MultiHeadAttention",
    "__version__",
    "ablate",
    "capture",
    "check",
    "diff",
    "errors",
    "generate",
    "heatmap",
    "params",
    "patch",
    "path",
    "patterns",
    "prune",
    "rollout",
    "scaled_dot_product_attention",
    "scaling",
    "sweep",
    "train",
    "verify",
    "why",
]

def _callable(package: str) -> None: ...
