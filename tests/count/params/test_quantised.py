"""Quantised weights: what is counted from a config against files that imitate each format."""

import json
import math

import numpy as np
import pytest
from safetensors.numpy import save_file

from attnviz.count.params.params import params
from attnviz.count.params.request import NamedModel, ParamsRequest
from attnviz.count.params.wording import dtype_words
from attnviz.errors import UsageError

WIDE, INNER, HEADS, VOCAB, LAYERS = 256, 640, 8, 96, 3
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": WIDE,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS // 2,
    "vocab_size": VOCAB,
    "tie_word_embeddings": False,
    "dtype": "float16",
}
SHAPES = {
    "self_attn.q_proj": (WIDE, WIDE),
    "self_attn.k_proj": (WIDE // 2, WIDE),
    "self_attn.v_proj": (WIDE // 2, WIDE),
    "self_attn.o_proj": (WIDE, WIDE),
    "mlp.gate_proj": (INNER, WIDE),
    "mlp.up_proj": (INNER, WIDE),
    "mlp.down_proj": (WIDE, INNER),
}
MATRICES = {
    f"model.layers.{layer}.{name}": shape
    for layer in range(LAYERS)
    for name, shape in SHAPES.items()
}
TABLES = {"model.embed_tokens": (VOCAB, WIDE), "lm_head": (VOCAB, WIDE)}
INT8 = {"num_bits": 8, "type": "int", "strategy": "channel"}
INT4_GROUPS = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}
FP4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
HQQ = {"weight_quant_params": {"nbits": 4, "group_size": 64, "axis": 1}}
TORCHAO = {"default": {"_type": "Int4WeightOnlyConfig", "_data": {"group_size": 32}}}
NUMBERS = 2 * LAYERS * WIDE // 2
"""What is cached for a token."""


def zeros(kind, *shape):
    return np.zeros(shape, kind)


def packs(layout):
    """A format by its arrays, each a kind of numbers and a shape, for o outputs and i inputs."""
    return lambda o, i: {name: zeros(kind, *shape) for name, (kind, shape) in layout(o, i).items()}


def gptq(bits=4, group=128):
    def layout(o, i):
        groups = math.ceil(i / group) if group > 0 else 1
        weights = {"qweight": ("i4", (i * bits // 32, o)), "scales": ("f2", (groups, o))}
        return {**weights, "qzeros": ("i4", (groups, o * bits // 32)), "g_idx": ("i4", (i,))}

    return packs(layout)


def mlx(bits, group=64):
    def layout(o, i):
        scale = ("f2", (o, i // group))
        return {"weight": ("u4", (o, i * bits // 32)), "scales": scale, "biases": scale}

    return packs(layout)


def scaled(*scales, width=8):
    """Numbers of ``width`` bits and, for each scale, an array of its kind and shape."""

    def layout(o, i):
        beside = {f"scale_{n}": (kind, shape(o, i)) for n, (kind, shape) in enumerate(scales)}
        return {"weight": ("u1", (o, i * width // 8)), **beside}

    return packs(layout)


AWQ = packs(
    lambda o, i: {
        "qweight": ("i4", (i, o // 8)),
        "qzeros": ("i4", (math.ceil(i / 128), o // 8)),
        "scales": ("f2", (math.ceil(i / 128), o)),
    }
)
NF4 = packs(
    lambda o, i: {
        "weight": ("u1", (o * i // 2, 1)),
        "weight.absmax": ("f4", (math.ceil(o * i / 64),)),
        "weight.quant_map": ("f4", (16,)),
        "weight.quant_state.bitsandbytes__nf4": ("u1", (100,)),
    }
)
NF4_DOUBLE = packs(
    lambda o, i: {
        "weight": ("u1", (o * i // 2, 1)),
        "weight.absmax": ("u1", (math.ceil(o * i / 64),)),
        "weight.nested_absmax": ("f4", (math.ceil(o * i / 64 / 256),)),
        "weight.nested_quant_map": ("f4", (256,)),
        "weight.quant_map": ("f4", (16,)),
        "weight.quant_state.bitsandbytes__nf4": ("u1", (112,)),
    }
)
INT8_PACK = packs(lambda o, i: {"weight": ("i1", (o, i)), "SCB": ("f4", (o,)), "form": ("u1", ())})
FP8_BLOCKS = scaled(("f4", lambda o, i: (math.ceil(o / 128), math.ceil(i / 128))))
PACKED_INT32 = packs(
    lambda o, i: {
        "weight_packed": ("i4", (o, math.ceil(i / 8))),
        "weight_scale": ("f2", (o, math.ceil(i / 128))),
        "weight_zero_point": ("i4", (o // 8, math.ceil(i / 128))),
        "weight_shape": ("i8", (2,)),
        "weight_g_idx": ("i4", (i,)),
    }
)


def said(method, **fields):
    return {"quant_method": method, **fields}


def compressed(form, weights, inputs=None, **more):
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    groups = {"group_0": group}
    own = {"format": form, "config_groups": groups, "ignore": ["lm_head"]}
    return said("compressed-tensors", **own | more)


CHANNEL = scaled(("f2", lambda o, i: (o, 1)))
SIXTEENTHS, ONE = ("u1", lambda o, i: (o, i // 16)), ("f4", lambda o, i: (1,))
NVFP4, NVFP4_WEIGHTS = scaled(SIXTEENTHS, ONE, ONE, width=4), scaled(SIXTEENTHS, ONE, width=4)
FP8 = scaled(ONE, ONE)
FBGEMM = scaled(("f4", lambda o, i: (o, 1)), ("f4", lambda o, i: (1,)))
HALVES = ("f2", lambda o, i: (o * i // 64, 1))

FORMATS = {
    "gptq": (said("gptq", bits=4, group_size=128, sym=False), gptq()),
    "gptq in one group": (said("gptq", bits=8, group_size=-1, desc_act=True), gptq(8, -1)),
    "gptq 3-bit": (said("gptq", bits=3, group_size=64), gptq(3, 64)),
    "awq": (said("awq", bits=4, group_size=128, version="gemm"), AWQ),
    "nf4": ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, NF4),
    "nf4 double": (
        said("bitsandbytes", load_in_4bit=True, bnb_4bit_use_double_quant=True),
        NF4_DOUBLE,
    ),
    "bitsandbytes 8": (said("bitsandbytes", load_in_8bit=True), INT8_PACK),
    "fp8": (said("fp8", weight_block_size=[128, 128]), FP8_BLOCKS),
    "fp8 of a tensor": (said("fp8"), scaled(("f4", lambda o, i: ()))),
    "fbgemm": (said("fbgemm_fp8"), FBGEMM),
    "compressed int4": (
        compressed("pack-quantized", INT4_GROUPS | {"symmetric": False, "actorder": "group"}),
        PACKED_INT32,
    ),
    "compressed int8": (compressed("int-quantized", INT8), CHANNEL),
    "compressed nvfp4": (
        compressed("nvfp4-pack-quantized", FP4, inputs=FP4 | {"dynamic": "local"}),
        NVFP4,
    ),
    "compressed nvfp4 of weights": (compressed("nvfp4-pack-quantized", FP4), NVFP4_WEIGHTS),
    "modelopt": (said("modelopt", quant_algo="NVFP4", ignore=["lm_head"]), NVFP4),
    "modelopt of weights": (said("modelopt_fp4", quant_algo="W4A16_NVFP4"), NVFP4_WEIGHTS),
    "modelopt fp8 blocks": (said("modelopt", quant_algo="FP8_PB_WO"), FP8_BLOCKS),
    "nvfp4": (said("nvfp4"), NVFP4_WEIGHTS),
    "hqq": (
        said("hqq", quant_config=HQQ, skip_modules=["lm_head"]),
        scaled(HALVES, HALVES, width=4),
    ),
    "torchao int4": (
        said("torchao", quant_type=TORCHAO),
        scaled(("f2", lambda o, i: (i // 32, o, 2)), width=4),
    ),
    "torchao int8": (
        said("torchao", quant_type="int8_weight_only"),
        scaled(("f2", lambda o, i: (o,))),
    ),
}


def tensors_of(pack):
    """The tensors of a file whose matrices are stored as ``pack`` says by name."""
    found = {"model.norm.weight": zeros("f2", WIDE)}
    for layer in range(LAYERS):
        for name in ("input_layernorm", "post_attention_layernorm"):
            found[f"model.layers.{layer}.{name}.weight"] = zeros("f2", WIDE)
    for name, shape in (MATRICES | TABLES).items():
        chosen = pack(name)
        stored = {"weight": zeros("f2", *shape)} if chosen is None else chosen(*shape)
        found.update({f"{name}.{key}": value for key, value in stored.items()})
    return found


def inside(pack):
    return lambda name: pack if name in MATRICES else None


def folder_of(path, about, key="quantization_config"):
    path.mkdir()
    (path / "config.json").write_text(json.dumps({**LLAMA, key: about}))
    return path


def counted(folder, **options):
    (case,) = params([NamedModel(str(folder))], ParamsRequest(**options)).cases
    return case.cost


def check(path, tensors, about, key="quantization_config"):
    right = sum(tensor.nbytes for tensor in tensors.values())
    bare = counted(folder_of(path / "bare", about, key))
    assert bare.weight_bytes == right
    assert sum(line.numbers or 0 for line in bare.storage.lines) == bare.total
    folder = folder_of(path / "whole", about, key)
    save_file(tensors, folder / "model.safetensors")
    whole = counted(folder)
    assert (whole.weight_bytes, whole.total, whole.stated) == (right, bare.total, "files")
    assert whole.cache == bare.cache


@pytest.mark.parametrize("name", FORMATS)
def test_a_config_and_its_files_have_the_same_bytes(tmp_path, name):
    about, pack = FORMATS[name]
    check(tmp_path, tensors_of(inside(pack)), about)


def test_modelopt_may_name_the_way_of_each_module(tmp_path):
    """In models of images the names have one part more."""
    ways = {name: {"quant_algo": "FP8" if "attn" in name else "NVFP4"} for name in MATRICES}
    named = {name.replace("model.", "model.language_model."): way for name, way in ways.items()}
    about = said("modelopt", quant_algo="MIXED_PRECISION", quantized_layers=named)
    tensors = tensors_of(lambda name: None if name in TABLES else FP8 if "attn" in name else NVFP4)
    check(tmp_path, tensors, about)


@pytest.mark.parametrize(
    ("file", "fields", "pack"),
    [
        ("hf_quant_config.json", {"quantization": {"quant_algo": "NVFP4"}}, NVFP4),
        ("hf_quant_config.json", {"quantization": {"kv_cache_quant_algo": "FP8"}}, None),
        ("quantize_config.json", {"bits": 4, "group_size": 64, "sym": True}, gptq(4, 64)),
        ("quant_config.json", {"w_bit": 4, "q_group_size": 128, "zero_point": True}, AWQ),
    ],
)
def test_a_file_beside_the_config_may_say_it(tmp_path, file, fields, pack):
    folder = folder_of(tmp_path / "m", None)
    (folder / file).write_text(json.dumps(fields))
    right = sum(tensor.nbytes for tensor in tensors_of(inside(pack)).values())
    assert counted(folder).weight_bytes == right


def test_mlx_quantises_tables_too_and_names_exceptions(tmp_path):
    own = {"model.layers.0.mlp.down_proj": None, "model.embed_tokens": mlx(8)}
    about = {
        "group_size": 64,
        "bits": 4,
        "model.layers.0.mlp.down_proj": False,
        "model.embed_tokens": {"group_size": 64, "bits": 8},
    }
    check(tmp_path, tensors_of(lambda name: own.get(name, mlx(4))), about, "quantization")


def test_widths_and_modules_of_their_own(tmp_path):
    """GPTQModel writes regexes: a minus leaves modules out, a plus changes them."""
    dynamic = {r"-:.*\.0\..*(up|gate)_proj": {}, r"+:.*\.1\.self_attn.*": {"bits": 8}}

    def pack(name):
        left_out = ".0." in name and name.endswith(("up_proj", "gate_proj"))
        wide = ".1.self_attn" in name
        return None if left_out or name in TABLES else gptq(8 if wide else 4)

    about = {"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": dynamic}
    check(tmp_path, tensors_of(pack), about)


def test_gptq_may_name_the_modules_that_it_quantises(tmp_path):
    chosen = [["self_attn.q_proj", "self_attn.o_proj"], ["mlp.up_proj"]]
    ends = tuple(name for names in chosen for name in names)
    about = said("gptq", bits=4, group_size=128, modules_in_block_to_quantize=chosen)
    check(tmp_path, tensors_of(lambda name: gptq() if name.endswith(ends) else None), about)


@pytest.mark.parametrize(
    ("ignored", "left_out"),
    [
        (["model.layers.1", "lm_head"], lambda name: ".1." in name),
        (["re:.*layers\\.2\\.mlp.*", "lm_head"], lambda name: ".2.mlp" in name),
        (["model.layers.*.self_attn*", "lm_head"], lambda name: "self_attn" in name),
        (["o_proj", "lm_head"], lambda name: name.endswith("o_proj")),
        (["gate", "proj", "lm_head"], lambda name: False),
    ],
)
def test_modules_that_are_left_out(tmp_path, ignored, left_out):
    weights = {"num_bits": 8, "type": "float", "strategy": "channel"}
    about = compressed("float-quantized", weights, ignore=ignored)
    tensors = tensors_of(lambda name: None if name in TABLES or left_out(name) else CHANNEL)
    check(tmp_path, tensors, about)


@pytest.mark.parametrize(
    ("about", "named"),
    [
        ({"quant_method": "exl2", "bits": 4.65}, "exl2"),
        ({"quant_method": "gptq", "bits": 5}, "gptq with 5 bits"),
        ({"quant_method": "awq", "group_size": 10**30}, "awq with 1000"),
        ({"quant_method": "torchao", "quant_type": "autoquant"}, "torchao autoquant"),
        ({"quant_method": "fp8", "expert_dtype": "fp4"}, "fp8 with other experts"),
        ({"quant_method": "fp8", "ignore": ["re:(a+)+$"]}, "the modules re:"),
        ({"quant_method": "fp8", "ignore": ["re:" + ".*" * 9]}, "the modules re:"),
        (compressed("marlin-24", INT4_GROUPS), "compressed-tensors marlin-24"),
        ({"bits": "four"}, "an unnamed format"),
        ("zipped", "zipped"),
    ],
)
def test_a_scheme_that_is_not_known_is_named_and_nothing_fits(tmp_path, about, named):
    folder = folder_of(tmp_path / "m", about)
    cost = counted(folder)
    assert (cost.weight_bytes, cost.needed_bytes) == (None, None)
    assert named in cost.storage.scheme
    with pytest.raises(UsageError, match="is quantised as"):
        counted(folder, memory="24GB")
    assert counted(folder, memory="24GB", dtype="int4").weight_bytes == -(-cost.total // 2)


def test_activations_and_caches_alone_quantise_no_weights(tmp_path):
    about = compressed("dense", {}, kv_cache_scheme={"num_bits": 8})
    cost = counted(folder_of(tmp_path / "m", about))
    assert (cost.storage, cost.cache_dtype) == (None, "int8")


@pytest.mark.parametrize(
    ("said_of", "bits"), [("FP8", 8), ("INT8", 8), ("NVFP4", 4.5), (None, 16), ("None", 16)]
)
@pytest.mark.parametrize("weights", ["FP8", None])
def test_a_file_beside_the_config_may_say_how_the_cache_is_stored(tmp_path, said_of, bits, weights):
    """NVFP4 has a scale of eight bits for sixteen numbers."""
    folder = folder_of(tmp_path / "m", None)
    about = {"quant_algo": weights, "kv_cache_quant_algo": said_of}
    (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": about}))
    cost = counted(folder, memory="24GB", tokens=100)
    assert cost.cache.bytes == 100 * NUMBERS * bits / 8
    assert cost.cache.bytes_per_token == NUMBERS * bits / 8
    assert counted(folder, cache_dtype="float16").cache.bytes_per_token == 2 * NUMBERS
    assert counted(folder, dtype="float16").cache.bytes_per_token == 2 * NUMBERS


def test_a_cache_that_is_not_known_is_named_and_nothing_fits(tmp_path):
    folder = folder_of(tmp_path / "m", said("fp8", kv_cache_quant_algo="INT3_X"))
    assert dtype_words(counted(folder)).endswith("cache float16, not int3_x, which is not known")
    with pytest.raises(UsageError, match="caches keys and values as int3_x"):
        counted(folder, memory="24GB")
    assert counted(folder, memory="24GB", cache_dtype="int4").cache.bytes_per_token == NUMBERS / 2


@pytest.mark.parametrize(
    ("scheme", "dtype"),
    [({"num_bits": 8, "type": "float"}, "float8"), ({"num_bits": 4, "type": "float"}, "nvfp4")],
)
def test_a_config_may_describe_the_numbers_of_its_cache(tmp_path, scheme, dtype):
    about = said("modelopt", quant_algo="FP8", kv_cache_scheme=scheme)
    assert counted(folder_of(tmp_path / "m", about)).cache_dtype == dtype


@pytest.mark.parametrize("nested", [True, False])
def test_towers_keep_their_numbers(tmp_path, nested):
    """A quantised text part, or a format that quantises the text part alone, in a model of images.

    The oracle adds up the text layers' matrices of the class itself.
    """
    import torch
    import transformers

    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
    vision = {**sizes, "num_hidden_layers": 2, "image_size": 28, "patch_size": 14}
    text = {**sizes, "num_hidden_layers": 2, "num_key_value_heads": 2, "head_dim": 32}
    config = transformers.Gemma3Config(
        text_config={**text, "vocab_size": 96},
        vision_config=vision,
        architectures=["Gemma3ForConditionalGeneration"],
    )
    config.save_pretrained(tmp_path / "m")
    about = compressed("int-quantized", INT8) if nested else said("awq", bits=4, group_size=64)
    fields = json.loads((tmp_path / "m" / "config.json").read_text())
    (fields["text_config"] if nested else fields)["quantization_config"] = about
    (tmp_path / "m" / "config.json").write_text(json.dumps({**fields, "dtype": "bfloat16"}))
    with torch.device("meta"):
        model = transformers.Gemma3ForConditionalGeneration(config)
    right = 0
    for name, weight in model.named_parameters():
        if "language_model.layers" in name and name.endswith("proj.weight"):
            o, i = weight.shape
            right += o * i + 2 * o if nested else o * i // 2 + i // 64 * (o // 2 + 2 * o)
        else:
            right += 2 * weight.numel()
    (case,) = params([NamedModel(str(tmp_path / "m"))], ParamsRequest()).cases
    assert case.built.weight_bytes == right


def test_a_quantised_model_caches_in_the_dtype_of_its_config(tmp_path):
    import torch
    from safetensors import torch as files

    folder = folder_of(tmp_path / "m", {"quant_method": "fp8"})
    weight = torch.zeros(8, 16, dtype=torch.float8_e4m3fn)
    files.save_file({"a.weight": weight, "a.scale": torch.ones(1)}, folder / "model.safetensors")
    cost = counted(folder)
    assert (cost.weight_bytes, cost.dtype, cost.cache_dtype) == (8 * 16 + 4, "float16", "float16")
