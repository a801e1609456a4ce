"""A model hub of a few directories, served on loopback, and the real client that talks to it."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

COMMIT = "0123456789abcdef0123456789abcdef01234567"


# The client reads its settings when it is imported, so each run is a process.
_SCRIPT = """
import json, sys, time
from attnviz.errors import AttnvizError
{imports}
answers = []
for name, options in json.loads(sys.argv[1]):
    said = []
    def progress(file, done, total):
        said.append([file, done, total])
    start = time.monotonic()
    try:
        {call}
    except AttnvizError as error:
        found = {{"error": str(error), "kind": type(error).__name__, "exit_code": error.exit_code}}
    answers.append(found | {{"progress": said, "seconds": time.monotonic() - start}})
print(json.dumps(answers))
"""
FIND = _SCRIPT.format(
    imports="from attnviz.models.hub import LoadOptions, find_checkpoint",
    call="""found = find_checkpoint(name, LoadOptions(progress=progress, **options))
        found = {"directory": str(found.directory), "revision": found.revision}""",
)
LOAD = _SCRIPT.format(
    imports="from attnviz.models.huggingface import LoadOptions, load_transformers",
    call="""found = load_transformers(name, LoadOptions(progress=progress, **options))
        found = {"revision": found.info.revision, "ids": found.encode("the cat").ids}""",
)
SPEC = _SCRIPT.format(
    imports="from attnviz.count.params.find_spec import find_spec",
    call="""spec = find_spec(name, **options)
        heavy = {"torch", "transformers", "numpy"} & set(sys.modules)
        found = {"revision": spec.revision, "source": spec.source, "heavy": sorted(heavy),
                 "layers": spec.spec.main.depth}""",
)


def ask(script, name, env, **options):
    """What a script answers about a model, with nothing but ``env`` said of hubs."""
    return ask_all(script, [(name, options)], env)[0]


def ask_all(script, calls, env):
    """The same for several models and options, one after another in one process."""
    kept = {key: text for key, text in os.environ.items() if not key.startswith(("HF_", "HUG"))}
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(calls)],
        env=kept | {"NO_PROXY": "127.0.0.1"} | env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    answers = json.loads(done.stdout)
    assert not any("\n" in answer.get("error", "") for answer in answers)
    return answers


@dataclass
class StandInHub:
    """What the hub serves, and what it was asked for.

    models: directory of each model id.
    gated, private, down: ids that are refused with 403, 401 and 503.
    broken: file names whose transfer stops midway.
    dripping: file names that come at ten bytes a second.
    listing: what it answers instead of the list of them.
    headers: what stands in the place of the true headers, by the name of the file.
    """

    models: dict[str, Path] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    private: set[str] = field(default_factory=set)
    down: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)
    dripping: set[str] = field(default_factory=set)
    listing: bytes = b""
    headers: dict[str, dict[str, str]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    endpoint: str = ""

    def fetched(self):
        """The files that were sent."""
        return [line.split("/")[-1] for line in self.requests if line.startswith("GET /resolve")]


@contextmanager
def serving(hub):
    """Serve ``hub`` on a free port of loopback."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        hub.endpoint = f"http://127.0.0.1:{server.server_port}"
        try:
            yield hub
        finally:
            server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    hub: StandInHub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self._answer(with_body=False)

    def do_GET(self):
        self._answer(with_body=True)

    def log_message(self, *_):
        """Nothing goes to the test's standard error."""

    def _answer(self, with_body):
        path = unquote(self.path.split("?")[0])
        if path.startswith("/api/models/"):
            self.hub.requests.append(f"{self.command} {path}")
            self._list(path.removeprefix("/api/models/").split("/revision/")[0])
        elif "/resolve/" in path:
            name, _, rest = path.strip("/").partition("/resolve/")
            revision, _, file = rest.partition("/")
            self.hub.requests.append(f"{self.command} /resolve/{file}")
            self._file(name, revision, file, with_body)
        else:
            self._refuse(404, "")

    def _list(self, name):
        directory = self.hub.models.get(name)
        if directory is None:
            return self._refuse(404, "RepoNotFound")
        if self.hub.listing:
            return self._send(self.hub.listing)
        files = [{"rfilename": path.name} for path in sorted(directory.iterdir())]
        return self._send(json.dumps({"id": name, "sha": COMMIT, "siblings": files}).encode())

    def _file(self, name, revision, file, with_body):
        if name in self.hub.private:
            return self._refuse(401, "")
        if name in self.hub.down:
            return self._refuse(503, "")
        if name not in self.hub.models:
            return self._refuse(404, "RepoNotFound")
        if name in self.hub.gated:
            return self._refuse(403, "GatedRepo")
        if revision not in ("main", COMMIT):
            return self._refuse(404, "RevisionNotFound")
        path = self.hub.models[name] / file
        if not path.is_file():
            return self._refuse(404, "EntryNotFound", self.hub.headers.get(file, {}))
        content = path.read_bytes()
        if with_body and file in self.hub.broken:
            return self._break_off(content)
        tag = hashlib.sha256(content).hexdigest()
        self._head(content, {"ETag": f'"{tag}"'} | self.hub.headers.get(file, {}))
        if with_body and file in self.hub.dripping:
            self._drip(content)
        elif with_body:
            self.wfile.write(content)
        return None

    def _drip(self, content):
        for place in range(len(content)):
            time.sleep(0.1)
            try:
                self.wfile.write(content[place : place + 1])
            except OSError:
                break
        self.close_connection = True

    def _break_off(self, content):
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2])
        self.close_connection = True

    def _refuse(self, status, code, headers=None):
        self.send_response(status)
        for name, text in (headers or {}).items():
            self.send_header(name, text)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", "two\\nlines of\\nreasons")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send(self, content):
        self._head(content, {})
        self.wfile.write(content)

    def _head(self, content, headers):
        self.send_response(200)
        told = {"Content-Length": str(len(content)), "X-Repo-Commit": COMMIT} | headers
        for name, text in told.items():
            self.send_header(name, text)
        self.end_headers()
