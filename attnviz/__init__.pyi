from attnviz import errors as errors
from attnviz.api.attention import AttentionResult as AttentionResult
from attnviz.api.attention import scaled_dot_product_attention as scaled_dot_product_attention
from attnviz.api.capture import capture as capture
from attnviz.api.head_maps import HeadMaps as HeadMaps
from attnviz.api.heatmap import heatmap as heatmap
from attnviz.attention.module import MultiHeadAttention as MultiHeadAttention

__version__: str
__all__ = [
    "AttentionResult",
    "HeadMaps",
    "MultiHeadAttention",
    "__version__",
    "capture",
    "errors",
    "heatmap",
    "scaled_dot_product_attention",
]
