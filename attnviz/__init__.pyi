from attnviz import errors as errors
from attnviz.api.analyses import ablate as ablate
from attnviz.api.analyses import attribute as attribute
from attnviz.api.analyses import diff as diff
from attnviz.api.analyses import generate as generate
from attnviz.api.analyses import params as params
from attnviz.api.analyses import patch as patch
from attnviz.api.analyses import patterns as patterns
from attnviz.api.analyses import prune as prune
from attnviz.api.analyses import rollout as rollout
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
    "attribute",
    "capture",
    "diff",
    "errors",
    "generate",
    "heatmap",
    "params",
    "patch",
    "patterns",
    "prune",
    "rollout",
    "scaled_dot_product_attention",
]

def _callable(package: str) -> None: ...
