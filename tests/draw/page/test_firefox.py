"""The page paints and answers in Firefox too, without an error; skipped where no Firefox is found.

Firefox is asked over its own socket (Marionette), which needs no driver and no other package.
"""

from __future__ import annotations

import base64
import csv
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import attnviz

from .conftest import MARY

_NAMES = ("firefox", "firefox-esr")
_START = 120  # seconds, on a busy machine

READY = """const done = arguments[0], see = () =>
document.body.dataset.ready && document.body.dataset.painted ? done(true) : setTimeout(see, 50);
see();"""
ERRORS = """return Services.console.getMessageArray().filter((said) =>
said instanceof Ci.nsIScriptError && !(said.flags & 1) && /^file:/.test(said.sourceName)
).map((said) => said.errorMessage);"""
INKED = """const colours = (pen, wide, high) =>
  new Set(new Uint32Array(pen.getImageData(0, 0, wide, high).data.buffer)).size;
return [...document.querySelectorAll("#map canvas, #lines canvas, #grid canvas")].map((one) =>
  colours(one.getContext("2d"), one.width, one.height));"""

BOX = """const map = document.querySelector("#map");
map.scrollIntoView({ block: "center" });
return map.getBoundingClientRect();"""
READOUT = "return document.querySelector('#readout').textContent"


class Firefox:
    """A Firefox without a window, and what it is asked."""

    def __init__(self, path: str, profile: Path) -> None:
        self.folder = profile / "downloads"
        self.folder.mkdir()
        wanted = {
            "marionette.port": 0,
            "browser.download.folderList": 2,
            "browser.download.dir": str(self.folder),
        }
        lines = [f"user_pref({json.dumps(key)}, {json.dumps(to)});\n" for key, to in wanted.items()]
        (profile / "user.js").write_text("".join(lines))
        given = ["--headless", "--no-remote", "--remote-allow-system-access", "--marionette"]
        self.process = subprocess.Popen(
            [path, *given, "--profile", str(profile)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        port, until = profile / "MarionetteActivePort", time.monotonic() + _START
        while not (port.exists() and port.read_text()):
            if self.process.poll() is not None or time.monotonic() > until:
                pytest.skip("Firefox does not start here: the page was not opened in it")
            time.sleep(0.05)
        self.socket = socket.create_connection(("127.0.0.1", int(port.read_text())), _START)
        self.file = self.socket.makefile("rb")
        self._read()
        self.ask("WebDriver:NewSession", capabilities={})

    def _read(self) -> Any:
        digits = b""
        while (letter := self.file.read(1)) != b":":
            digits += letter
        return json.loads(self.file.read(int(digits)))

    def ask(self, name: str, **given: Any) -> Any:
        content = json.dumps([0, 1, name, given]).encode()
        self.socket.sendall(b"%d:%s" % (len(content), content))
        _, _, error, answer = self._read()
        assert error is None, error
        return answer

    def js(self, script: str, wait: bool = False) -> Any:
        name = "WebDriver:ExecuteAsyncScript" if wait else "WebDriver:ExecuteScript"
        return self.ask(name, script=script, args=[])["value"]

    def press(self, key: str) -> None:
        self._act(
            {
                "type": "key",
                "actions": [{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}],
            }
        )

    def point(self, x: float, y: float) -> None:
        move = {"type": "pointerMove", "x": round(x), "y": round(y), "duration": 0}
        self._act({"type": "pointer", "actions": [move]})

    def _act(self, what: dict[str, Any]) -> None:
        self.ask("WebDriver:PerformActions", actions=[{"id": what["type"], **what}])
        self.js("requestAnimationFrame(() => setTimeout(arguments[0], 50))", wait=True)

    def close(self) -> None:
        self.socket.close()
        self.process.kill()
        self.process.wait(_START)


@pytest.fixture(scope="module")
def firefox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Firefox]:
    path = next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None:
        pytest.skip("no Firefox was found: the page was not opened in it")
    started = Firefox(path, tmp_path_factory.mktemp("firefox"))
    yield started
    started.close()


def test_firefox_paints_the_page_without_an_error(firefox: Firefox, mary: Path) -> None:
    firefox.ask("WebDriver:SetWindowRect", width=1440, height=1000)
    firefox.ask("WebDriver:Navigate", url=f"{mary.as_uri()}#L1H3&q=8&k=5&lock&pins=L1H2")
    firefox.js(READY, wait=True)
    assert firefox.js("return document.querySelector('#name').textContent") == "L1H3"
    assert "held" in firefox.js("return document.querySelector('#readout').textContent")
    assert min(firefox.js(INKED)) > 20
    picture = base64.b64decode(firefox.ask("WebDriver:TakeScreenshot", full=False)["value"])
    assert picture.startswith(b"\x89PNG")
    assert firefox.js("return document.documentElement.scrollWidth <= innerWidth")
    firefox.js("document.querySelector('#next').click()")
    firefox.js("requestAnimationFrame(() => setTimeout(arguments[0], 50))", wait=True)
    assert firefox.js("return document.querySelector('#name').textContent") == "L2H0"
    firefox.js("print(true); print(false)")
    firefox.ask("Marionette:SetContext", value="chrome")
    assert firefox.js(ERRORS) == []
    firefox.ask("Marionette:SetContext", value="content")


def test_firefox_answers_the_hand(firefox: Firefox, mary: Path) -> None:
    firefox.ask("WebDriver:SetWindowRect", width=1440, height=1000)
    firefox.ask("WebDriver:Navigate", url="about:blank")
    firefox.ask("WebDriver:Navigate", url=f"{mary.as_uri()}#L1H2")
    firefox.js(READY, wait=True)
    firefox.press("j")
    assert firefox.js("return document.querySelector('#name').textContent") == "L1H3"
    box = firefox.js(BOX)
    firefox.point(box["x"] + 0.4 * box["width"], box["y"] + 0.7 * box["height"])
    told, pair = firefox.js(READOUT).split(maxsplit=1)
    query_name, key_name = pair.split(" → ")
    firefox.js("document.querySelector('#save-csv').click()")
    wanted = firefox.folder / "attnviz-tiny-L1H3-raw.csv"
    until = time.monotonic() + _START
    while not (wanted.exists() and wanted.stat().st_size) and time.monotonic() < until:
        time.sleep(0.05)
    rows = list(csv.DictReader(wanted.read_text().splitlines()))
    weights = attnviz.capture("tiny", MARY)["L1H3"]
    assert len(rows) == 14 * 15 // 2
    for row in rows:
        there = weights[int(row["query"]), int(row["key"])]
        assert float(row["weight"]) == pytest.approx(there, abs=3e-5)
    names = [query_name.split(" (")[0], key_name.split(" (")[0]]
    looked = [
        float(row["weight"]) for row in rows if [row["query_token"], row["key_token"]] == names
    ]
    assert min(abs(weight - float(told)) for weight in looked) < 6e-5
