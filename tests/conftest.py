"""What most tests share: one thread a process, the command line run inside it, tiny checkpoints.

On a busy machine two threads of small models wait for each other far longer than they compute, in
the processes that tests start as well: one is set before torch is imported.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background, where Ctrl-C is ignored: processes of the tests would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)

SENTENCE = "The cat sat on the mat because it was tired."
_SPEAKING = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "TERM", "ATTNVIZ_TRACEBACK")


@dataclass(frozen=True)
class Result:
    """What a run left: its exit code, standard output and standard error."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def document(self) -> Any:
        """Standard output as JSON that has no NaN or Infinity."""
        assert (self.code, self.err) == (0, "")
        return json.loads(self.out, parse_constant=_refuse)


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """``run("heads", "A text.", stdin=b"", encoding="utf-8", env={})``, in an empty folder."""
    from attnviz.cli import boundary

    for name in _SPEAKING:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)

    def call(
        *arguments: str,
        stdin: bytes = b"",
        encoding: str = "utf-8",
        env: Mapping[str, str] | None = None,
    ) -> Result:
        streams = {name: io.TextIOWrapper(io.BytesIO(), encoding) for name in ("stdout", "stderr")}
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["attnviz", *arguments])
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding))
            for name, stream in streams.items():
                patch.setattr(sys, name, stream)
            for name, value in (env or {}).items():
                patch.setenv(name, value)
            code = boundary.run()
        out, err = (_content(stream).decode(encoding) for stream in streams.values())
        return Result(code, out, err)

    return call


def _content(stream: io.TextIOWrapper) -> bytes:
    stream.flush()
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue()


@pytest.fixture
def document(run: Run) -> Callable[..., Any]:
    """The JSON object of ``attnviz heads ARGUMENTS --json``."""

    def call(*arguments: str, **settings: Any) -> Any:
        return run("heads", *arguments, "--json", **settings).document

    return call


@pytest.fixture
def refused(run: Run) -> Callable[..., str]:
    """The one line of a run that must fail: ``refused(code, *arguments)``."""

    def call(code: int, *arguments: str, **settings: Any) -> str:
        result = run(*arguments, **settings)
        assert result.code == code, result
        assert result.out == ""
        assert result.err.startswith("attnviz: ")
        assert result.err.endswith("\n")
        assert result.err.count("\n") == 1
        assert "Traceback" not in result.err
        assert result.err.startswith("attnviz: unexpected") == (code == 1)
        return result.err.removeprefix("attnviz: ").rstrip("\n")

    return call


@pytest.fixture(scope="session")
def program() -> Sequence[str]:
    """The command line as a process of its own."""
    return (sys.executable, "-c", "from attnviz.cli.main import main; main()")


@pytest.fixture
def environment() -> dict[str, str]:
    """The variables of a process that nobody has set up for colour or width."""
    kept = {name: value for name, value in os.environ.items() if name not in _SPEAKING}
    return kept | {"PYTHONUNBUFFERED": ""}


_WORDS = ("<pad>", "<s>", "</s>", "<unk>", "the", "cat", "sat", "on", "mat", "because", "tired")


def save_tokenizer(directory: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(WordLevel({word: n for n, word in enumerate(_WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        pad_token="<pad>",
    ).save_pretrained(directory)


def _random_model(kind: str) -> Any:
    import transformers

    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    if kind == "gpt2":
        return transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                vocab_size=13, n_positions=17, n_embd=6, n_layer=2, n_head=3, n_inner=5, **ids
            )
        )
    if kind == "llama":
        return transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                vocab_size=13,
                hidden_size=12,
                num_hidden_layers=2,
                num_attention_heads=6,
                num_key_value_heads=2,
                head_dim=4,
                intermediate_size=5,
                max_position_embeddings=23,
                **ids,
            )
        )
    if kind == "bert":
        return transformers.BertForMaskedLM(
            transformers.BertConfig(
                vocab_size=13,
                hidden_size=6,
                num_hidden_layers=2,
                num_attention_heads=3,
                intermediate_size=5,
                max_position_embeddings=19,
                pad_token_id=0,
            )
        )
    assert kind == "t5"
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=13,
            d_model=6,
            d_kv=5,
            d_ff=7,
            num_layers=2,
            num_heads=3,
            decoder_start_token_id=0,
            pad_token_id=0,
            eos_token_id=2,
        )
    )


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A directory with a tiny random ``gpt2``, ``llama`` (grouped), ``bert`` or ``t5``."""
    import torch
    from transformers.utils import logging

    made: dict[str, Path] = {}

    def get(kind: str) -> Path:
        if kind not in made:
            torch.manual_seed(7)
            logging.disable_progress_bar()
            made[kind] = tmp_path_factory.mktemp("checkpoints") / kind
            _random_model(kind).save_pretrained(made[kind])
            save_tokenizer(made[kind])
        return made[kind]

    return get
