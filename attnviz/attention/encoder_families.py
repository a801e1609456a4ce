"""Which encoders ``NumpyStack`` can run; see ``families``."""

from __future__ import annotations

from dataclasses import replace

from attnviz.attention.family import LINEAR, SIZES, UNEMBEDDING, Family, linear, norm

_POOLER = linear("pooler.dense", "d_model")
_CLASSIFIED = linear("classifier", "labels")
_ANSWERED = linear("qa_outputs", "2")
_CHOSEN = linear("classifier", "1")
_DENSE_CLASSIFIED = {
    **linear("classifier.dense", "d_model"),
    **linear("classifier.out_proj", "labels"),
}
_NEXT = linear("cls.seq_relationship", "2")
_BERT_PREDICTIONS = {
    **linear("cls.predictions.transform.dense", "d_model", role="prediction"),
    **norm("cls.predictions.transform.LayerNorm", "prediction_norm"),
    "cls.predictions.decoder.weight": UNEMBEDDING,
    "cls.predictions.bias": "unembedding.bias: vocabulary",
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
        "BertModel": {name: f"?{said}" for name, said in _POOLER.items()},
        "BertForMaskedLM": _BERT_PREDICTIONS,
        "BertForPreTraining": {**_BERT_PREDICTIONS, **_POOLER, **_NEXT},
        "BertForNextSentencePrediction": {**_POOLER, **_NEXT},
        "BertForSequenceClassification": {**_POOLER, **_CLASSIFIED},
        "BertForMultipleChoice": {**_POOLER, **_CHOSEN},
        "BertForTokenClassification": _CLASSIFIED,
        "BertForQuestionAnswering": _ANSWERED,
    },
    tied=True,
    settings={"position_embedding_type": ("absolute",), "tie_word_embeddings": (True,)},
    silent=(
        *("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"),
        *("directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_type"),
        *("pooler_num_fc_layers", "pooler_size_per_head"),
    ),
    unused=r"(cls|pooler|classifier|qa_outputs)\..*|embeddings\.position_ids",
)

_ROBERTA = replace(
    _BERT,
    model_types=("roberta",),
    prefixes=("roberta.", ""),
    heads={
        "RobertaModel": _BERT.heads["BertModel"],
        "RobertaForMaskedLM": {
            **linear("lm_head.dense", "d_model", role="prediction"),
            **norm("lm_head.layer_norm", "prediction_norm"),
            "lm_head.decoder.weight": UNEMBEDDING,
            "lm_head.bias": "unembedding.bias: vocabulary",
        },
        "RobertaForSequenceClassification": _DENSE_CLASSIFIED,
        "RobertaForMultipleChoice": {**_POOLER, **_CHOSEN},
        "RobertaForTokenClassification": _CLASSIFIED,
        "RobertaForQuestionAnswering": _ANSWERED,
    },
    head_activation="gelu",
    padding=1,
    settings={**_BERT.settings, "pad_token_id": (1,)},
    unused=r"(lm_head|pooler|classifier|qa_outputs)\..*|embeddings\.position_ids",
)

_PRE_CLASSIFIED = linear("pre_classifier", "d_model")
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
            **linear("vocab_transform", "d_model", role="prediction"),
            **norm("vocab_layer_norm", "prediction_norm"),
            **linear("vocab_projector", "vocabulary", role="unembedding"),
        },
        "DistilBertForSequenceClassification": {**_PRE_CLASSIFIED, **_CLASSIFIED},
        "DistilBertForMultipleChoice": {**_PRE_CLASSIFIED, **_CHOSEN},
        "DistilBertForTokenClassification": _CLASSIFIED,
        "DistilBertForQuestionAnswering": _ANSWERED,
    },
    settings={"sinusoidal_pos_embds": (False, True), "tie_word_embeddings": (True,)},
    silent=("dropout", "qa_dropout", "seq_classif_dropout", "tie_weights_"),
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
            **linear("discriminator_predictions.dense", "d_model"),
            **linear("discriminator_predictions.dense_prediction", "1"),
        },
        "ElectraForMaskedLM": {
            **linear("generator_predictions.dense", "embedding", role="prediction"),
            **norm("generator_predictions.LayerNorm", "prediction_norm", "embedding"),
            **linear("generator_lm_head", "vocabulary", "embedding", role="unembedding"),
        },
        "ElectraForSequenceClassification": _DENSE_CLASSIFIED,
        "ElectraForTokenClassification": _CLASSIFIED,
        "ElectraForQuestionAnswering": _ANSWERED,
    },
    head_activation="gelu",
    prefixes=("electra.", ""),
    settings={**_BERT.settings, "summary_activation": ("gelu",)},
    silent=(*_BERT.silent, "summary_last_dropout", "summary_type", "summary_use_proj"),
    unused=r"(generator_\w+|discriminator_\w+|classifier|qa_outputs)\..*|.*\.position_ids",
)

ENCODERS = (_BERT, _ROBERTA, _DISTILBERT, _ELECTRA)
