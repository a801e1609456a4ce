"""A chat template is a program from a stranger: it is run with limits."""

import pytest

from attnviz.errors import LoadError
from attnviz.models.chats import chat_text, confined
from attnviz.models.model import ChatTemplate

CHAT = [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% set n = namespace(s='aa') %}"
        "{% for a in range(40) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
        "{{ 'a' * 10**10 }}",
        "{% for a in range(9999) %}{{ 'a' * 1000 }}{% endfor %}",
        "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    ],
    ids=["loops", "doubled", "large", "long", "deep"],
)
def test_a_template_without_end_is_refused(source):
    with pytest.raises(LoadError, match=r"the chat template of 'm' (takes more|cannot be used)"):
        chat_text("m", ChatTemplate(source, {}), CHAT, True)


def test_what_a_program_returns_or_raises_is_returned_and_raised():
    assert confined("it", lambda: "é\n\u2028" * 1000) == "é\n\u2028" * 1000

    def refusing():
        raise LoadError("no")

    with pytest.raises(LoadError, match=r"^no$"):
        confined("it", refusing)
