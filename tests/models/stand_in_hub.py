"""A model hub of a few directories, served on loopback for the real client to talk to."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class StandInHub:
    """What the hub serves, and what it was asked for.

    models: directory of each model id.
    gated, private, down: ids that are refused with 403, 401 and 503.
    broken: file names whose transfer stops midway.
    listed: whether the server tells the files of a model, as mirrors may not.
    """

    models: dict[str, Path] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    private: set[str] = field(default_factory=set)
    down: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)
    listed: bool = True
    requests: list[str] = field(default_factory=list)
    endpoint: str = ""

    def fetched(self) -> list[str]:
        """The files that were sent."""
        return [line.split("/")[-1] for line in self.requests if line.startswith("GET /resolve")]


@contextmanager
def serving(hub: StandInHub) -> Iterator[StandInHub]:
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

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def log_message(self, *_: object) -> None:
        """Nothing goes to the test's standard error."""

    def _answer(self, with_body: bool) -> None:
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

    def _list(self, name: str) -> None:
        directory = self.hub.models.get(name)
        if directory is None or not self.hub.listed:
            return self._refuse(404, "RepoNotFound")
        files = [{"rfilename": path.name} for path in sorted(directory.iterdir())]
        return self._send(json.dumps({"id": name, "sha": COMMIT, "siblings": files}).encode())

    def _file(self, name: str, revision: str, file: str, with_body: bool) -> None:
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
            return self._refuse(404, "EntryNotFound")
        content = path.read_bytes()
        if with_body and file in self.hub.broken:
            return self._break_off(content)
        tag = hashlib.sha256(content).hexdigest()
        return self._send(content, {"ETag": f'"{tag}"'}, with_body)

    def _break_off(self, content: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2])
        self.close_connection = True

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", "two\\nlines of\\nreasons")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send(
        self, content: bytes, headers: dict[str, str] | None = None, with_body: bool = True
    ) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("X-Repo-Commit", COMMIT)
        for name, text in (headers or {}).items():
            self.send_header(name, text)
        self.end_headers()
        if with_body:
            self.wfile.write(content)
