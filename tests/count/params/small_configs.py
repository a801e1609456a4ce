"""Fields of small configs of every family that is counted, from a table."""

from pathlib import Path

import yaml

_TABLE = yaml.safe_load(Path(__file__).with_name("small_configs.yaml").read_text(encoding="utf-8"))
COMPLETED, ODD = _TABLE["completed"], _TABLE["odd"]
DECODER, WIDE, SLIDING, ROUTED, LATENT, GPT, BERT, T5, VIT, WHISPER = (
    _TABLE["fields"][name]
    for name in (
        *("decoder", "wide", "sliding", "routed", "latent"),
        *("gpt", "bert", "t5", "vit", "whisper"),
    )
)
