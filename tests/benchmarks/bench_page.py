"""The interactive page in a browser: its size, the first paint, the first use, the next head.

    python tests/benchmarks/bench_page.py [REPEATS]

Needs playwright and a chromium. Prints medians in milliseconds, for the bundled model, 144 heads
over 256 tokens and 1,024 heads over 64 tokens.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

import attnviz

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.draw.page.test_numbers import made

TEXT = "When Mary and John went out, John gave Mary a book."
SWITCH = """() => { const took = [];
for (let i = 0; i < 30; i++) {
  const begun = performance.now();
  state.head = (i * 7 + 1) % shown.count;
  drawHead();
  document.querySelector("#map canvas").getContext("2d").getImageData(0, 0, 1, 1);
  took.push(performance.now() - begun);
}
return took.sort((a, b) => a - b)[15]; }"""
FACTS = """() => [performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? NaN,
Number(document.body.dataset.ready)]"""


def main():
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    reports = {
        "bundled model": attnviz.heads("tiny", TEXT, vectors=True),
        "144 heads × 256": made(12, 12, 256),
        "1,024 heads × 64": made(32, 32, 64),
    }
    print(f"{'':18}{'kB':>8}{'paint':>8}{'ready':>8}{'switch':>8}   ms, median of {repeats}")
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for name, report in reports.items():
            path = Path(folder) / "page.html"
            report.save(path)
            found = []
            for _ in range(repeats):
                page = browser.new_page(viewport={"width": 1440, "height": 900})
                page.goto(path.as_uri())
                page.wait_for_selector("body[data-ready][data-painted]", state="attached")
                found.append([*page.evaluate(FACTS), page.evaluate(SWITCH)])
                page.close()
            paint, ready, switch = (statistics.median(each) for each in zip(*found, strict=True))
            size = path.stat().st_size / 1000
            print(f"{name:18}{size:8,.0f}{paint:8.0f}{ready:8.0f}{switch:8.1f}")


if __name__ == "__main__":
    main()
