"""What most tests share: one thread a process, the command line run inside it, tiny checkpoints.

On a busy machine two threads of small models wait for each other far longer than they compute, in
the processes that tests start as well: one is set before NumPy or torch is imported.

Golden screens lie in ``golden/`` beside their tests; after a wanted change of the drawing, write
them anew with ``ATTNVIZ_GOLDEN=write pytest tests/CAPABILITY`` and look at the difference.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import signal
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from .command_line import document, fitted, redrawn, refused, reported, run
from .made_records import reports
from .small_models import SPECIAL, TINY, VOCABULARY, random_model, word_tokenizer
from .terminals import environment, look, program, screen, start, step_of

__all__ = [
    "document",
    "environment",
    "fitted",
    "look",
    "program",
    "redrawn",
    "refused",
    "reported",
    "reports",
    "run",
    "screen",
    "start",
    "step_of",
]
"""The fixtures that stand in other modules: pytest takes them from here."""

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background, where Ctrl-C is ignored: processes of the tests would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)

SHARED = {
    "tests/test_default_screens.py": "reports",
    "tests/test_readme.py": "reports",
    "tests/cli/test_explain.py": "reports",
    "tests/cli/test_app.py": "reports",
    "tests/inspect/head/test_head.py": "reports",
    "tests/inspect/report/test_report.py": "reports",
    "tests/docs/test_schemas.py": "reports",
    "tests/oracle/test_oracle.py": "reports",
    "tests/test_house.py": "source",
    "tests/test_imports.py": "source",
    "tests/test_docstrings.py": "source",
    "tests/test_options.py": "source",
    "tests/test_words.py": "source",
}
"""Files that draw the same reports of the bundled model, or read the same source of the package:
one worker measures or reads it once for all.
"""
SENTENCE = "The cat sat on the mat because it was tired."
_numbers = count()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give each worker whole files, so that what a file's tests share is made once."""
    from xdist.scheduler import LoadFileScheduling

    class WholeFiles(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            return SHARED.get(file, file)

    return WholeFiles(config, log)


# No test has a deadline in seconds: a machine may be busy.
settings.register_profile(
    "unhurried",
    deadline=None,
    max_examples=30,  # others each time
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("unhurried")


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path_factory):
    """The user's cache of these tests, in which labels are kept: nobody's own is touched."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    # Matplotlib's list of fonts takes seconds to make, whoever it is for.
    monkeypatch.setenv("MPLCONFIGDIR", os.environ.get("MPLCONFIGDIR", str(home / "matplotlib")))
    cache = tmp_path_factory.getbasetemp() / "caches" / str(next(_numbers))
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(cache / "config"))
    return cache


@pytest.fixture
def one_thread():
    """Small matrices are slower on several threads."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def save_tokenizer(directory):
    word_tokenizer().save_pretrained(directory)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """A directory with a tiny random ``gpt2``, ``llama`` (grouped), ``bert`` or ``t5``."""
    import torch
    from transformers.utils import logging

    made = {}

    def get(kind):
        if kind not in made:
            torch.manual_seed(7)
            logging.disable_progress_bar()
            made[kind] = tmp_path_factory.mktemp("checkpoints") / kind
            ids = SPECIAL if kind in ("gpt2", "llama") else {"pad_token_id": 0}
            model = random_model(TINY[kind], vocab_size=VOCABULARY, **ids)
            model.save_pretrained(made[kind])
            save_tokenizer(made[kind])
        return made[kind]

    return get


@pytest.fixture(scope="session")
def trained_bert(tmp_path_factory):
    """Return the directory of a BERT whose heads attend as trained ones do."""
    from .bert_by_hand import write_bert

    directory = tmp_path_factory.mktemp("checkpoints") / "bert-by-hand"
    write_bert(directory)
    return directory


@pytest.fixture
def golden(request):
    """Compares a screen with ``golden/NAME.txt`` beside the test; see the top."""
    folder = request.path.parent / "golden"

    def check(name, screen):
        path = folder / f"{name}.txt"
        if os.environ.get("ATTNVIZ_GOLDEN") == "write":
            path.write_text(screen, encoding="utf-8")
        assert screen == path.read_text(encoding="utf-8")

    return check


def without_times(document):
    """Return a document of JSON without the durations at any depth."""
    if isinstance(document, dict):
        kept = {
            key: each for key, each in document.items() if key != "timings" and "second" not in key
        }
        return {key: without_times(each) for key, each in kept.items()}
    return [*map(without_times, document)] if isinstance(document, list) else document
