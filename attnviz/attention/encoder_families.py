"""Which encoders ``NumpyStack`` can run; see ``families``."""

from __future__ import annotations

from dataclasses import replace

from attnviz.attention.families import LINEAR, SIZES, UNEMBEDDING, Family

_POOLER = {"pooler.dense.weight": "?d_model d_model", "pooler.dense.bias": "?d_model"}


_BERT_PREDICTIONS = {
    "cls.predictions.transform.dense.weight": "d_model d_model",
    "cls.predictions.transform.dense.bias": "d_model",
    "cls.predictions.transform.LayerNorm.weight": "d_model",
    "cls.predictions.transform.LayerNorm.bias": "d_model",
    "cls.predictions.decoder.weight": UNEMBEDDING,
    "cls.predictions.bias": "vocabulary",
}

_BERT = Family(
    model_types=("bert",),
    sizes={**SIZES, "types": "type_vocab_size=2"},
    tensors={
        "tokens": "embeddings.word_embeddings",
        "positions": "embeddings.position_embeddings",
        "types": "embeddings.token_type_embeddings",
        "embedding_norm": "embeddings.LayerNorm",
        "layers.N.query": "encoder.layer.N.attention.self.query",
        "layers.N.key": "encoder.layer.N.attention.self.key",
        "layers.N.value": "encoder.layer.N.attention.self.value",
        "layers.N.output": "encoder.layer.N.attention.output.dense",
        "layers.N.attention_norm": "encoder.layer.N.attention.output.LayerNorm",
        "layers.N.up": "encoder.layer.N.intermediate.dense",
        "layers.N.down": "encoder.layer.N.output.dense",
        "layers.N.feed_norm": "encoder.layer.N.output.LayerNorm",
    },
    prefixes=("bert.", ""),
    norm="layer",
    order="after",
    norm_eps="layer_norm_eps",
    activation="hidden_act",
    causal=False,
    biases=dict.fromkeys(LINEAR, True),
    heads={
        "BertModel": _POOLER,
        "BertForMaskedLM": _BERT_PREDICTIONS,
        "BertForPreTraining": {
            **_BERT_PREDICTIONS,
            "pooler.dense.weight": "d_model d_model",
            "pooler.dense.bias": "d_model",
            "cls.seq_relationship.weight": "2 d_model",
            "cls.seq_relationship.bias": "2",
        },
    },
    tied=True,
    settings={"position_embedding_type": ("absolute",), "tie_word_embeddings": (True,)},
    silent=("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"),
    unused=r"(cls|pooler|classifier|qa_outputs)\..*|embeddings\.position_ids",
)

_ROBERTA = replace(
    _BERT,
    model_types=("roberta",),
    prefixes=("roberta.", ""),
    heads={
        "RobertaModel": _POOLER,
        "RobertaForMaskedLM": {
            "lm_head.dense.weight": "d_model d_model",
            "lm_head.dense.bias": "d_model",
            "lm_head.layer_norm.weight": "d_model",
            "lm_head.layer_norm.bias": "d_model",
            "lm_head.decoder.weight": UNEMBEDDING,
            "lm_head.bias": "vocabulary",
        },
    },
    padding=1,
    settings={**_BERT.settings, "pad_token_id": (1,)},
    unused=r"(lm_head|pooler|classifier|qa_outputs)\..*|embeddings\.position_ids",
)

_DISTILBERT = replace(
    _BERT,
    model_types=("distilbert",),
    sizes={
        "layers": "n_layers",
        "heads": "n_heads",
        "d_model": "dim",
        "d_ff": "hidden_dim",
        "vocabulary": "vocab_size",
        "context": "max_position_embeddings",
    },
    tensors={
        "tokens": "embeddings.word_embeddings",
        "positions": "embeddings.position_embeddings",
        "embedding_norm": "embeddings.LayerNorm",
        "layers.N.query": "transformer.layer.N.attention.q_lin",
        "layers.N.key": "transformer.layer.N.attention.k_lin",
        "layers.N.value": "transformer.layer.N.attention.v_lin",
        "layers.N.output": "transformer.layer.N.attention.out_lin",
        "layers.N.attention_norm": "transformer.layer.N.sa_layer_norm",
        "layers.N.up": "transformer.layer.N.ffn.lin1",
        "layers.N.down": "transformer.layer.N.ffn.lin2",
        "layers.N.feed_norm": "transformer.layer.N.output_layer_norm",
    },
    prefixes=("distilbert.", ""),
    norm_eps="=1e-12",
    activation="activation",
    heads={
        "DistilBertModel": {},
        "DistilBertForMaskedLM": {
            "vocab_transform.weight": "d_model d_model",
            "vocab_transform.bias": "d_model",
            "vocab_layer_norm.weight": "d_model",
            "vocab_layer_norm.bias": "d_model",
            "vocab_projector.weight": UNEMBEDDING,
            "vocab_projector.bias": "vocabulary",
        },
    },
    settings={"sinusoidal_pos_embds": (False, True), "tie_word_embeddings": (True,)},
    silent=("dropout", "qa_dropout", "seq_classif_dropout"),
    unused=r"(vocab_\w+|pre_classifier|classifier|qa_outputs)\..*|embeddings\.position_ids",
)

_ELECTRA = replace(
    _BERT,
    model_types=("electra",),
    sizes={**_BERT.sizes, "embedding": "embedding_size"},
    tensors={**_BERT.tensors, "embedding_projection": "embeddings_project"},
    heads={
        "ElectraModel": {},
        "ElectraForPreTraining": {
            "discriminator_predictions.dense.weight": "d_model d_model",
            "discriminator_predictions.dense.bias": "d_model",
            "discriminator_predictions.dense_prediction.weight": "1 d_model",
            "discriminator_predictions.dense_prediction.bias": "1",
        },
        "ElectraForMaskedLM": {
            "generator_predictions.LayerNorm.weight": "embedding",
            "generator_predictions.LayerNorm.bias": "embedding",
            "generator_predictions.dense.weight": "embedding d_model",
            "generator_predictions.dense.bias": "embedding",
            "generator_lm_head.weight": "vocabulary embedding",
            "generator_lm_head.bias": "vocabulary",
        },
    },
    prefixes=("electra.", ""),
    silent=(
        *_BERT.silent,
        *("summary_activation", "summary_last_dropout", "summary_type", "summary_use_proj"),
    ),
    unused=r"(generator_\w+|discriminator_\w+|classifier|qa_outputs)\..*|.*\.position_ids",
)

ENCODERS = (_BERT, _ROBERTA, _DISTILBERT, _ELECTRA)
