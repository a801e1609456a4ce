"""The grid of heads that documents share: a table without scripts, put in order with them."""

import pytest

import attnviz

CAT = "The cat sat on the mat because it was tired."


@pytest.fixture(scope="module")
def ablated(tmp_path_factory):
    path = tmp_path_factory.mktemp("grid") / "ablate.html"
    report = attnviz.ablate("tiny", CAT)
    report.save(path)
    return path, report


def _names(shown):
    script = "[...document.querySelectorAll('.heads td[title]')].map((one) => one.dataset.name)"
    return list(shown.js(script))


def _order(shown, by):
    shown.page.locator(".order select").first.select_option(by)
    return _names(shown)


def test_heads_are_ordered_by_the_effect_of_ablation(opened, ablated):
    path, report = ablated
    shown = opened(path, ready=False)
    before = _names(shown)
    effects = {
        report.name(each.variant): each.shown(report.metric).value for each in report.effects
    }
    assert before == [*effects]
    assert _order(shown, "effect of ablation") == sorted(effects, key=lambda name: -effects[name])
    assert shown.js("document.querySelector('.heads').classList.contains('ordered')")
    labels = {report.head_name(head): label.said for head, label in report.labels.items()}
    by_label = _order(shown, "label")
    found = [labels[name] for name in by_label if name in labels]
    assert found == sorted(found, key=str.lower)
    assert {*by_label[len(found) :]}.isdisjoint(labels)
    assert _order(shown, "layer") == before


def test_a_cell_says_name_label_and_value(opened, ablated):
    shown = opened(ablated[0], ready=False)
    shown.page.locator(".heads td[data-name=L0H0]").hover()
    assert shown.text(".order span").startswith("L0H0: 0.24")
    assert "previous token" in shown.text(".order span")
    high = shown.page.locator(".heads").first.bounding_box()
    shown.page.locator(".heads td[data-name=L0H0]").focus()
    shown.press("ArrowRight", "ArrowDown")
    assert shown.text(".order span").startswith("L1H1: ")
    assert shown.page.locator(".heads").first.bounding_box() == high
    assert shown.js("document.querySelectorAll('.heads [tabindex=\"0\"]').length") == 1
    api = pytest.importorskip("axe_playwright_python.sync_playwright")
    for theme in ("light", "dark"):
        assert shown.js("document.documentElement.dataset.theme") == theme
        found = api.Axe().run(shown.page)
        assert found.violations_count == 0, found.generate_report()
        shown.page.locator("#theme").click()


def test_the_grid_stands_without_scripts_and_fits_a_phone(opened, ablated):
    shown = opened(ablated[0], ready=False, scripts=False, width=390, height=844)
    cells = shown.page.locator(".heads td[title]")
    assert cells.count() == 24
    assert cells.first.inner_text() == "+.24"
    box = shown.page.locator(".heads").first.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390
    assert shown.page.locator(".order").count() == 0


def test_every_document_with_a_grid_has_it(opened, run, tmp_path):
    asked = {
        "patterns": ["--seed", "0"],
        "why": [CAT],
        "ablate": [CAT],
        "patch": [
            "When Mary and John went out, John gave a book to",
            "When Mary and John went out, Mary gave a book to",
        ],
    }
    for command, given in asked.items():
        assert run(command, *given, "--save", f"{command}.html").code == 0
        shown = opened(tmp_path / f"{command}.html", ready=False)
        kinds = shown.page.locator(".order select").first.locator("option").all_inner_texts()
        assert kinds[0] == "layer"
        before = _names(shown)
        after = _order(shown, kinds[-1])
        assert sorted(after) == sorted(before)
        assert after != before
        assert shown.js("document.querySelectorAll('.heads td[title]').length") == len(before)
        shown.page.set_viewport_size({"width": 320, "height": 700})
        assert shown.js("document.documentElement.scrollWidth") == 320


def test_maps_answer_the_pointer_and_the_theme_is_chosen(opened, run, tmp_path):
    run("head", "L1H2", CAT, "--save", "head.html")
    shown = opened(tmp_path / "head.html", ready=False, scheme="dark", width=390)
    shown.page.locator(".maps .tip").nth(4).hover()
    assert shown.text("#told").startswith("cat (2) → The (1): 0.0")
    ground = "getComputedStyle(document.body).backgroundColor"
    assert shown.js(ground) == "rgb(14, 18, 23)"
    shown.page.locator("#theme").click()
    assert shown.js(ground) == "rgb(255, 255, 255)"
    assert shown.page.locator(".maps > div").first.get_attribute("tabindex") == "0"  # it scrolls
