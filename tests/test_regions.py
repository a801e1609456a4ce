"""Regions of a text: spans by place and by words, pairs, chats; and what is refused."""

import json

import numpy as np
import pytest

import attnviz
from attnviz.errors import LoadError, UnsupportedError, UsageError
from attnviz.measures.words import text_of
from attnviz.models.chats import chat_text
from attnviz.models.model import ChatTemplate
from attnviz.models.resolve import load
from attnviz.models.work import LoadOptions, Work
from attnviz.options import RegionOptions
from attnviz.regions import as_chat, finished, read_chat, region_reader

from .chat_models import CHAT, LLAMA2, TEMPLATES, write_chat_model

TEXT = "The cat sat on the mat because it was tired."


@pytest.fixture(scope="module")
def chat_models(tmp_path_factory):
    place = tmp_path_factory.mktemp("chats")
    found = {
        name: str(write_chat_model(place / name, template, in_settings=name == "gemma"))
        for name, template in TEMPLATES.items()
    }
    return {**found, "none": str(write_chat_model(place / "none", None))}


def encoded(name, text=TEXT, backend="numpy", **asked):
    tokens = 0 if backend == "numpy" else None
    model = load(name, LoadOptions(work=Work(tokens), backend=backend))
    reader = region_reader(model, text, RegionOptions.of(asked))
    return reader.encode(reader.text)


def texts_of(tokens):
    found = {}
    for text, name in zip(tokens.texts, tokens.regions, strict=True):
        found[name] = found.get(name, "") + text
    return found


@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_chat_is_what_transformers_makes_of_it(chat_models, name, backend):
    """The same ids, and of each role exactly what it said, but for the blanks that are trimmed."""
    from transformers import AutoTokenizer

    chat = [*CHAT[name == "gemma" :]]  # which refuses a system prompt
    tokens = encoded(chat_models[name], backend=backend, chat=chat)
    tokenizer = AutoTokenizer.from_pretrained(chat_models[name])
    expected = tokenizer.apply_chat_template(chat, return_dict=True)["input_ids"]
    assert [*tokens.ids] == [*expected]
    found = texts_of(tokens)
    for message in chat:
        assert text_of([found[message["role"]]]).strip() == message["content"].strip()
    assert set(found) == {*(message["role"] for message in chat), "template"}
    special = {text for text, one in zip(tokens.texts, tokens.special, strict=True) if one}
    assert special
    assert special <= {*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()}


def test_the_generation_prompt_belongs_to_the_template(chat_models):
    model = load(chat_models["chatml"], LoadOptions(work=Work(0)))
    asked = RegionOptions(chat="user: Hi")
    reader = region_reader(model, "Hi", asked, answering=True)
    assert reader.text.endswith("<|im_start|>assistant\n")
    assert set(reader.encode(reader.text).regions) == {"user", "template"}
    with pytest.raises(UsageError, match="end the chat before the assistant"):
        region_reader(model, "", RegionOptions(chat="user: Hi\nassistant: Ho"), answering=True)


def test_regions_of_roles_and_of_spans_within_them(chat_models):
    """Turns of one role are one region, and a span takes its tokens from a role."""
    chat = "user: one\nassistant: two\nuser: three"
    found = texts_of(encoded(chat_models["llama2"], chat=chat))
    assert "".join(found["user"].split()) == "onethree"
    assert found["assistant"].strip() == "two"
    tokens = encoded(chat_models["chatml"], chat=[*CHAT], spans={"who": "The cat"})
    assert texts_of(tokens)["who"] == "The cat"
    assert texts_of(tokens)["assistant"] == " sat on the mat because it was tired."


def test_places_in_a_chat_are_those_of_its_contents():
    """Parts that a template would print are refused."""
    template = ChatTemplate(LLAMA2, {"bos_token": "<s>", "eos_token": "</s>"})
    found = chat_text("made", template, CHAT, False)
    said = [found.text[start:end] for start, end in found.places]
    assert said == [CHAT[0]["content"], CHAT[1]["content"].rstrip(), CHAT[2]["content"]]
    parts = read_chat('[{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]')
    with pytest.raises(UsageError, match="takes contents as texts, not in parts"):
        chat_text("made", ChatTemplate("{{ messages[0].content }}", {}), parts, False)


def test_a_template_that_is_broken_or_rewrites_a_message_is_refused():
    with pytest.raises(LoadError, match="chat template of 'made' cannot be used"):
        chat_text("made", ChatTemplate("{% for %}", {}), CHAT, False)
    with pytest.raises(LoadError, match=r"cannot be used: .*unsafe"):
        chat_text("made", ChatTemplate("{{ messages.__class__.__mro__ }}", {}), CHAT, False)
    for written in (
        "{{ m.content | upper }}",
        "{% if loop.first %}{{ m.content }}{% endif %}",
        "{{ m.content }}{{ m.content }}",
        "{{ m.content[:9] }}",
        "{{ m.content | length }}{{ m.content }}",
    ):
        source = f"{{% for m in messages %}}{written}{{% endfor %}}"
        with pytest.raises(UnsupportedError, match="leaves out, repeats or rewrites message"):
            chat_text("made", ChatTemplate(source, {}), CHAT, False)


@pytest.mark.parametrize(
    "given",
    [
        "user: Hi\n there\nassistant: Ho",
        '[{"role": "user", "content": "Hi\\n there"}, {"role": "assistant", "content": "Ho"}]',
        '{"messages": [{"role": "user", "content": "Hi\\n there"}, '
        '{"role": "assistant", "content": "Ho"}]}',
    ],
)
def test_a_chat_is_read_from_text_and_from_a_file(given, tmp_path):
    expected = [{"role": "user", "content": "Hi\n there"}, {"role": "assistant", "content": "Ho"}]
    assert read_chat(given) == expected
    (tmp_path / "a chat").write_text(given)
    assert read_chat(str(tmp_path / "a chat")) == expected


def test_what_is_no_chat_is_refused():
    for given, words in (
        ("Hello there", "neither a file nor a chat"),
        ("[{", "neither a file nor a chat"),
        ("[]", "has no messages"),
        ('[{"role": "user"}]', "message 1 is not a role with content"),
        ('[{"role": "user", "content": 3}]', "message 1 is not a role with content"),
        ('["user"]', "message 1 is not a role with content"),
        ('[{"role": "user", "content": ["a"]}]', "message 1 is not a role with content, .* parts"),
    ):
        with pytest.raises(UsageError, match=words):
            read_chat(given)


def test_a_span_is_found():
    """Words within words only if they stand nowhere else."""
    for span, expected in (
        ("1:3", "The cat"),
        ("The cat", "The cat"),
        ("The … sat", "The cat sat"),
        ("because...tired", " because it was tired"),
        (" it ", " it"),
        ("mat", " mat"),
    ):
        tokens = encoded("tiny", span=(f"who={span}",))
        assert texts_of(tokens)["who"] == expected
        assert set(tokens.regions) == {"who", "other"}
    found = encoded("mha", "나는 오늘 학교에 갔다", span=("where=학교",))
    assert texts_of(found)["where"] == "학교에"
    found = encoded("mha", "the then the-n", span=("one=then",))
    assert found.regions == ("other", "one", "other")


def test_spans_from_a_file(tmp_path):
    (tmp_path / "spans.txt").write_text("who=The cat\n\nit=9:10\n")
    assert texts_of(encoded("tiny", spans=tmp_path / "spans.txt")) | {"other": ""} == {
        "other": "",
        "who": "The cat",
        "it": " it",
    }


def test_a_cut_text_keeps_its_regions_or_is_refused():
    model = load("tiny", LoadOptions())
    reader = region_reader(model, TEXT, RegionOptions(span=("who=The cat",)))
    assert reader.encode(TEXT, 3).regions == ("other", "who", "who")
    assert reader.encode(TEXT, 3).ids == model.encode(TEXT, 3).ids
    with pytest.raises(UsageError, match="cuts 'who' off"):
        reader.encode(TEXT, 1)


def test_a_pair_is_read_as_a_bert_reads_it(trained_bert):
    """Its weights are those of transformers with the segments of both sentences."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    one, other = "She opened the door slowly", "the animal was tired"
    tokenizer = AutoTokenizer.from_pretrained(trained_bert)
    model = AutoModel.from_pretrained(trained_bert, attn_implementation="eager").eval()
    with torch.no_grad():  # of random numbers, so that they are seen
        model.embeddings.token_type_embeddings.weight.normal_(0, 2)
        read = tokenizer(one, other, return_tensors="pt")
        expected = torch.stack(model(**read, output_attentions=True).attentions)[:, 0].numpy()
        del read["token_type_ids"]
        alone = torch.stack(model(**read, output_attentions=True).attentions)[:, 0].numpy()
    assert np.abs(expected - alone).max() > 1e-3
    directory = trained_bert.parent / "segments"
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    for given in (str(directory), attnviz.load(str(directory)), model):
        asked = {"tokenizer": tokenizer} if given is model else {}
        report = attnviz.heads(given, one, second=other, **asked)
        found = np.stack([layer.weights for layer in report.first.record.layers])
        np.testing.assert_allclose(found, expected, atol=1e-5)
        assert [*report.first.record.keys.ids] == read["input_ids"][0].tolist()
        assert {*report.first.regions.keys} == {"first", "second", "special"}
    # Nothing stays behind: a single text is read as before.
    single = attnviz.heads(model, one, tokenizer=tokenizer).first.record.layers[0].weights
    with torch.no_grad():
        plain = model(**tokenizer(one, return_tensors="pt"), output_attentions=True)
    np.testing.assert_allclose(single, plain.attentions[0][0].numpy(), atol=1e-5)


def test_a_pair_without_separator_says_so(document):
    found = document("The cat sat.", "--and", "It was tired.")
    said = "joins two texts with nothing between them"
    assert any(said in note for note in found["model"]["notes"])
    assert found["text"] == "The cat sat.\nIt was tired."


def test_options_that_do_not_go_together(refused, chat_models, tmp_path):
    (tmp_path / "chat.json").write_text(json.dumps([*CHAT]))
    chat = str(tmp_path / "chat.json")
    none = refused(5, "heads", "--chat", chat, "--model", chat_models["none"])
    assert "its regions with --span" in none
    gemma = refused(2, "heads", "--chat", chat, "--model", chat_models["gemma"])
    assert "System role not supported" in gemma


def test_python_takes_the_same_names(chat_models):
    report = attnviz.heads("tiny", TEXT, spans={"who": (1, 3), "it": "it"})
    assert dict(report.first.regions.queries) == {"who": 2, "it": 1, "other": 10}
    model = chat_models["chatml"]
    found = attnviz.heads(model, chat=[*CHAT])
    assert {*found.first.regions.keys} == {"system", "user", "assistant", "template"}
    assert attnviz.generate(model, chat=[*CHAT[:2]], tokens=3).run.regions is not None
    with pytest.raises(UsageError, match="is \\(start, end\\) or words, got 3"):
        attnviz.heads("tiny", TEXT, spans={"who": 3})
    with pytest.raises(UsageError, match="expected a text"):
        attnviz.heads("tiny")
    with pytest.raises(UsageError, match="is not a list of messages"):
        attnviz.heads("tiny", chat=[{"role": {1}}])


PARTS = ChatTemplate(
    "{% for m in messages %}[{{ m.role }}]{% if m.reasoning_content and loop.last %}"
    "({{ m.reasoning_content }}){% endif %}{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content or [] %}{{ p.text or '<image>' }};{% endfor %}{% endif %}"
    "{% for call in m.tool_calls or [] %}{{ call.function.name }}{% endfor %}{% endfor %}",
    {},
)


def test_parts_thoughts_and_calls_stand_where_the_template_writes_them():
    call = {"type": "function", "function": {"name": "sum"}}
    thought = {"role": "assistant", "reasoning_content": "Hm", "content": "a"}
    chat = read_chat(
        json.dumps(
            [
                {"role": "user", "name": "mary", "content": [{"type": "image"}, {"text": "one"}]},
                thought,
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "content": "3"},
                thought,
            ]
        )
    )
    found = chat_text("made", PARTS, chat, False)
    assert found.text == "[user]<image>;one;[assistant]a[assistant]sum[tool]3[assistant](Hm)a"
    said = [found.text[start:end] for start, end in found.places]
    assert sorted(zip(found.owners, said, strict=True)) == [
        (0, "one"),
        (1, "a"),
        (3, "3"),
        (4, "Hm"),
        (4, "a"),
    ]


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_chat_in_place_of_a_prompt_is_finished_by_its_template(chat_models, name):
    from transformers import AutoTokenizer

    model = load(chat_models[name], LoadOptions(work=Work(0)))
    tokenizer = AutoTokenizer.from_pretrained(chat_models[name])
    chat = [*CHAT[name == "gemma" :]]
    asked = (
        (chat[:-1], True, {"add_generation_prompt": True}),
        (chat[:-1], False, {}),
        (chat, True, {"continue_final_message": True}),
        (chat, False, {}),
    )
    for given, answering, said in asked:
        text = finished(model, as_chat([*given]), answering=answering)
        expected = tokenizer.apply_chat_template(given, return_dict=True, **said)["input_ids"]
        assert [*model.encode(text).ids] == [*expected]
        pasted = tokenizer.apply_chat_template(given, tokenize=False, **said)
        assert pasted == text


def test_a_pasted_template_has_no_second_first_token(chat_models):
    for tokens in (0, None):
        model = load(chat_models["llama3"], LoadOptions(work=Work(tokens)))
        found = model.encode("<s>Who?<|eot_id|>")
        assert [found.texts[0], found.texts[-1]] == ["<s>", "<|eot_id|>"]
        assert found.special == (True, *(False for _ in found.ids[1:-1]), True)
