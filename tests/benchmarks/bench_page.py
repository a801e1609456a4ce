"""The interactive page in a browser: its shell and sizes, the start, hovers, tasks that block.

    python tests/benchmarks/bench_page.py [REPEATS]

Needs playwright and a chromium. Prints kilobytes, and milliseconds: of the first paint and the
first use, of the script of a hover over the map, of a head under the pointer, of a hover over the
lines of a whole layer, and of the processor in the longest task of the start and of a change of the
view. A figure is the median of its hovers and the least of all repeats: other programs only add.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

import attnviz
from attnviz.draw.page.shell import packed_scripts, source, style

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.draw.page.test_numbers import made

TEXT = "When Mary and John went out, John gave Mary a book."
HOVER = """async (kind) => { const took = [];
set({ scope: kind === "lines" ? "over" : "head" }, "head");
for (let i = 0; i < 41; i++) {
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 30)));
  const begun = performance.now(), query = (i * 7) % shown.n;
  if (kind === "head") preview((i * 13 + 1) % shown.count);
  else look({ query, key: Math.min((i * 5) % shown.m, shown.seen(query) - 1), direction: "to" });
  while (due.size) drawDue();
  if (i) took.push(performance.now() - begun);
}
preview();
return took.sort((a, b) => a - b)[20]; }"""
START = """[performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? NaN,
Number(document.body.dataset.ready)]"""


_FRAMES = ("TracingStartedInBrowser", "FrameCommittedInBrowser")
"""The events that name the process of a page; others belong to the browser's own pages."""


def longest_task(browser, page, act):
    """The milliseconds of the processor in the longest task of the page while something is done."""
    browser.start_tracing(
        page=page, categories=["toplevel", "disabled-by-default-devtools.timeline"]
    )
    act()
    page.wait_for_timeout(1500)
    events = json.loads(browser.stop_tracing())["traceEvents"]
    told = [event["args"].get("data", {}) for event in events if event["name"] in _FRAMES]
    own = {frame.get("processId") for data in told for frame in [data, *data.get("frames", [])]}
    threads = {
        (event["pid"], event["tid"])
        for event in events
        if event["name"] == "thread_name" and event["args"]["name"] == "CrRendererMain"
    }
    return max(
        event.get("tdur", 0) / 1000
        for event in events
        if event["name"].endswith("RunTask")
        and event["pid"] in own
        and (event["pid"], event["tid"]) in threads
    )


def measured(browser, path):
    page = browser.new_page(viewport={"width": 1440, "height": 900})

    def start():
        page.goto(path.as_uri())
        page.wait_for_selector("body[data-ready][data-painted]", state="attached")

    tasks = [longest_task(browser, page, start)]
    paint, ready = page.evaluate(START)
    hovers = [page.evaluate(HOVER, kind) for kind in ("map", "head", "lines")]
    tasks.append(longest_task(browser, page, lambda: page.evaluate("setView('both')")))
    page.close()
    return paint, ready, *hovers, *tasks


def main():
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    reports = {
        "bundled model": attnviz.heads("tiny", TEXT, vectors=True),
        "144 heads × 256": made(12, 12, 256),
        "512 heads × 80": made(16, 32, 80),
        "1,024 heads × 64": made(32, 32, 64),
    }
    template = Path(attnviz.__file__).parent / "draw" / "page" / "page.html"
    parts = [style("page.css"), source("early.js"), source("unpack.js"), packed_scripts()]
    print(f"shell: {(template.stat().st_size + sum(map(len, parts))) / 1000:.1f} kB")
    titles = ("kB", "paint", "ready", "map", "head", "lines", "start", "view")
    print(f"{'':18}" + "".join(f"{title:>8}" for title in titles))
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for name, report in reports.items():
            path = Path(folder) / "page.html"
            report.save(path)
            rows = [measured(browser, path) for _ in range(repeats)]
            least = map(min, zip(*rows, strict=True))
            numbers = "".join(f"{number:8.1f}" for number in least)
            print(f"{name:18}{path.stat().st_size / 1000:8,.0f}{numbers}")


if __name__ == "__main__":
    main()
