"""``heads --save FILE``: every ending, beside what is printed, and with queries and keys."""

import io
import json

import numpy as np
import pytest


def test_a_run_of_generate_is_sent_to_what_replays_it(run, refused):
    run("generate", "Once there was", "--tokens", "3", "--save", "run.jsonl")
    assert "attnviz explore replays it" in refused(3, "heads", "--from", "run.jsonl")


# Queries, keys and norms of --vectors -------------------------------------------------------------


TEXT = "When Mary and John went out, John gave Mary a book."


def test_a_saved_file_has_the_page_of_the_model(run, tmp_path):
    run("heads", TEXT, "--vectors", "--save", "a.npz", "--save", "model.html")
    run("heads", "--from", "a.npz", "--save", "file.html")
    assert (tmp_path / "file.html").read_bytes() == (tmp_path / "model.html").read_bytes()


def test_the_weights_follow_from_what_was_saved(run, tmp_path):
    run("heads", TEXT, "--vectors", "--layer", "2,4", "--save", "a.npz")
    with np.load(tmp_path / "a.npz", allow_pickle=False) as kept:
        found = {name: kept[name] for name in kept}
    scores = found["queries"] @ found["keys"].transpose(0, 2, 1) * found["query_key_factor"]
    scores[:, ~np.tri(scores.shape[1], dtype=bool)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(weights, found["weights"], atol=3e-5)
    assert found["value_norms"].shape == (8, weights.shape[-1])


def test_json_has_the_norms(run, tmp_path):
    run("heads", TEXT, "--vectors", "--save", "a.json", "--save", "a.npz")
    heads = json.loads((tmp_path / "a.json").read_text())["heads"]
    with np.load(tmp_path / "a.npz") as kept:
        norms = [head["value_norms"] for head in heads]
        np.testing.assert_allclose(norms, kept["value_norms"], rtol=1e-6)
    run("heads", "--from", "a.json", "--save", "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "The file has no queries and keys" in page
    assert '"norms":' in page


def test_without_the_option_files_are_as_before(run, tmp_path):
    run("heads", TEXT, "--save", "a.npz", "--save", "a.json")
    with np.load(tmp_path / "a.npz") as kept:
        assert {*kept} == {"provenance", "weights", "layers", "heads", "tokens", "token_ids"}
    assert "value_norms" not in (tmp_path / "a.json").read_text()
    run("heads", "--from", "a.npz", "--save", "page.html")
    assert "The file has no value norms, queries and keys" in (tmp_path / "page.html").read_text()


def test_several_runs_in_another_order_keep_their_own(run, tmp_path):
    """The second text has another order of heads: its arrays are in that of the first."""
    (tmp_path / "texts.txt").write_text(f"{TEXT}\nThe cat sat on the mat because it was tired.")
    given = ("--texts", "texts.txt", "--sort", "entropy", "--vectors")
    wanted = run("heads", *given, "--save", "a.npz", "--json").document
    assert run("heads", "--from", "a.npz", "--json").document["heads"] == wanted["heads"]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("value_norms", lambda array: array[:, 1:]),
        ("queries", lambda array: array[1:]),
        ("keys", lambda array: array * np.nan),
        ("keys", lambda array: array.astype(np.int64)),
        ("query_key_factor", lambda array: array * np.inf),
        ("tokens", lambda array: array[::-1]),
        ("token_ids", lambda array: array[:-1]),
        ("layers", lambda array: array + 1),
        ("heads", lambda array: array.astype(str)),
    ],
)
def test_damage_is_refused(run, refused, tmp_path, name, change):
    run("heads", TEXT, "--vectors", "--save", "a.npz")
    with np.load(tmp_path / "a.npz") as kept:
        arrays = {one: kept[one] for one in kept}
    arrays[name] = change(arrays[name])
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    (tmp_path / "a.npz").write_bytes(stream.getvalue())
    assert "a.npz" in refused(3, "heads", "--from", "a.npz")
