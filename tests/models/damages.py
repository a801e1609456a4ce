"""What happens to the files of a checkpoint: each function returns a change of its directory."""

import json

WEIGHTS, CONFIG = "model.safetensors", "config.json"


def edit(path, **fields):
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def fields(**changed):
    return lambda directory: edit(directory / CONFIG, **changed)


def put(name, content):
    content = content.encode(errors="surrogateescape") if isinstance(content, str) else content
    return lambda directory: (directory / name).write_bytes(content)


def cut(name, end):
    return lambda directory: (directory / name).write_bytes((directory / name).read_bytes()[:end])
