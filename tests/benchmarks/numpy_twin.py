"""A small step for the benchmarks: the NumPy path over the weights of a model of transformers."""

from attnviz.attention.family_reading import by_role, checkpoint_layout
from attnviz.attention.numpy_stack import NumpyStack
from attnviz.models.stack_model import StackModel
from attnviz.models.work import sizes_of_stack
from attnviz.records import ModelInfo


def numpy_twin(model):
    """The same model as NumPy runs it, without a tokenizer."""
    fields = {**model.config.to_dict(), "architectures": [type(model).__name__]}
    arrays = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
    shapes = {name: array.shape for name, array in arrays.items()}
    read = checkpoint_layout(fields, shapes)
    shape = read.shape
    info = ModelInfo(
        name="twin",
        revision=None,
        architecture=read.architecture,
        dtype="float32",
        layers=shape.layers,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        weights="random",
        backend="numpy",
    )
    roles = {part.name: role for role, part in reversed(list(read.parts.items()))}
    sizes = sizes_of_stack(
        shape, {role: shapes[name] for name, role in roles.items()}, read.predicts
    )
    stack = NumpyStack(shape, by_role(arrays, read.parts))
    return StackModel(info, stack, lambda: None, sizes=sizes)
