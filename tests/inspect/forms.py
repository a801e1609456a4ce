"""One model in every form: as it is stored, what runs it, and the numbers it is computed in."""

import json
import shutil
from copy import deepcopy
from pathlib import Path

import attnviz
from attnviz.errors import UnsupportedError
from attnviz.models.resolve import load
from attnviz.models.work import LoadOptions, Work

from ..small_models import bert_fields, gpt_fields, llama_fields, random_model

TINY = Path(attnviz.__file__).parent / "data" / "tiny"
VOCABULARY = json.loads((TINY / "config.json").read_text(encoding="utf-8"))["vocab_size"]
LLAMA = llama_fields(48, 96, 256, (4, 2, 12), 3)
BERT = bert_fields(48, 96, 256, 4, 3)
FAMILIES = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", LLAMA),
    "mistral": ("MistralForCausalLM", "MistralConfig", {**LLAMA, "sliding_window": 8}),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", LLAMA),
    "gemma": ("GemmaForCausalLM", "GemmaConfig", LLAMA),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", gpt_fields(48, 256, 4, 3)),
    "neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", BERT),
    "phi": ("PhiForCausalLM", "PhiConfig", BERT),
    "opt": ("OPTForCausalLM", "OPTConfig", {**BERT, "ffn_dim": 96, "word_embed_proj_dim": 48}),
    "bert": ("BertForMaskedLM", "BertConfig", BERT),
    "roberta": ("RobertaForMaskedLM", "RobertaConfig", {**BERT, "pad_token_id": 1}),
}
STORED = ("float32", "float16", "bfloat16")

FORMS = [
    *((stored, "numpy", "auto") for stored in STORED),
    *((stored, "torch", dtype) for stored in STORED for dtype in STORED),
]


def stored(folder, family, scale, seed):
    """Return the directory of each form of the bundled model, or of a random one of a family.

    scale: what matrices are multiplied by: as they are drawn, rows are all but uniform. The bundled
    model has each weight multiplied by a number that is drawn around one.
    """
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    places = {dtype: folder / f"{family}-{scale}-{seed}-{dtype}" for dtype in STORED}
    if not any(place.exists() for place in places.values()):
        torch.manual_seed(seed)
        if family == "tiny":
            whole = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
        else:
            whole = random_model(FAMILIES[family], vocab_size=VOCABULARY)
        with torch.no_grad():
            for weight in whole.parameters():
                if family == "tiny":
                    weight.mul_(1 + (scale - 1) * torch.randn(weight.shape))
                elif weight.dim() > 1:
                    weight.mul_(scale)
        for dtype, place in places.items():
            deepcopy(whole).to(getattr(torch, dtype)).save_pretrained(place)
            for file in TINY.glob("tokenizer*"):
                shutil.copy(file, place)
    return {form: str(places[form[0]]) for form in FORMS if _runs(str(places["float32"]), form)}


def _runs(directory, form):
    try:
        if form[1] == "numpy":
            loaded(directory, form)
    except UnsupportedError:
        return False
    return True


def loaded(directory, form):
    backend = form[1]
    tokens = 1 if backend == "numpy" else None
    return load(directory, LoadOptions(backend=backend, dtype=form[2], work=Work(tokens)))
