"""Fields of small configs: sizes that cannot be mistaken for one another."""

DECODER = {
    "vocab_size": 29,
    "hidden_size": 48,
    "intermediate_size": 17,
    "num_hidden_layers": 5,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 37,
    "pad_token_id": 0,
}
WIDE = {**DECODER, "head_dim": 12}
"""Heads wider than the model's width divided by them: allowed where the config says how wide."""

GPT = {"vocab_size": 29, "n_positions": 37, "n_embd": 30, "n_layer": 5, "n_head": 6}
BERT = {
    "vocab_size": 29,
    "hidden_size": 30,
    "num_hidden_layers": 3,
    "num_attention_heads": 5,
    "intermediate_size": 17,
    "max_position_embeddings": 37,
    "type_vocab_size": 3,
    "pad_token_id": 0,
}
T5 = {
    "vocab_size": 29,
    "d_model": 30,
    "d_kv": 7,
    "d_ff": 17,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "num_heads": 5,
    "relative_attention_num_buckets": 11,
}
_ENCODER_DECODER = {
    "vocab_size": 29,
    "d_model": 30,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_ffn_dim": 17,
    "decoder_ffn_dim": 19,
    "encoder_attention_heads": 5,
    "decoder_attention_heads": 3,
    "pad_token_id": 0,
    "decoder_start_token_id": 0,
}
BART = _ENCODER_DECODER | {"max_position_embeddings": 38}
VIT = {
    "hidden_size": 30,
    "num_hidden_layers": 3,
    "num_attention_heads": 5,
    "intermediate_size": 17,
    "image_size": 21,
    "patch_size": 7,
    "num_channels": 2,
    "qkv_bias": False,
}
SLIDING = {"sliding_window": 11}
ROUTED = {
    "moe_intermediate_size": 13,
    "n_routed_experts": 4,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 2,
}
LATENT = {
    "kv_lora_rank": 11,
    "q_lora_rank": 13,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 5,
}
WHISPER = dict(
    _ENCODER_DECODER,
    num_mel_bins=7,
    max_source_positions=41,
    max_target_positions=43,
    bos_token_id=1,
    eos_token_id=2,
)
