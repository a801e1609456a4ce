"""The model that a command takes without ``--model``.

It is that of ``ATTNVIZ_MODEL``, the one that ``attnviz use`` keeps, or the bundled one. Only the
command line has a default of this kind: a program, and the rules of ``check``, name their model.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attnviz.errors import AttnvizError, LoadError, OfflineError
from attnviz.reading import open_regular

VARIABLE, USE = "ATTNVIZ_MODEL", "attnviz use"
BUNDLED = "tiny"
_LONGEST = 2**14  # the most bytes that are kept: a path is shorter


class DefaultName(str):
    """A model's name that was not typed but taken from ``source``: a variable, ``attnviz use``."""

    source: str

    def __new__(cls, name: str, source: str) -> DefaultName:
        made = super().__new__(cls, name)
        made.source = source
        return made


def default_model() -> str:
    """Return the model of a command if none is typed; LoadError for an unreadable default."""
    if named := os.environ.get(VARIABLE):
        return DefaultName(named, VARIABLE)
    if kept := kept_model():
        return DefaultName(kept, USE)
    return BUNDLED


@contextmanager
def blamed(name: str) -> Iterator[None]:
    """Add the source of the model's name to errors of the block, unless the name was typed."""
    try:
        yield
    except AttnvizError as error:
        if isinstance(name, DefaultName):
            raise type(error)(f"{error} (the model is that of {name.source})") from error
        raise


# What attnviz use keeps ------------------------------------------------------------------------


def kept_file() -> Path:
    """Return the path of the file in which ``attnviz use`` stores the name of a model.

    It is in ``$XDG_CONFIG_HOME`` or ``~/.config``. Raises LoadError if there is no home directory.
    """
    given = os.environ.get("XDG_CONFIG_HOME", "")
    try:
        folder = Path(given) if os.path.isabs(given) else Path.home() / ".config"
    except RuntimeError as error:
        raise LoadError(
            "there is no home directory: set XDG_CONFIG_HOME or ATTNVIZ_MODEL"
        ) from error
    return folder / "attnviz" / "model"


def kept_model() -> str | None:
    """Return the name that ``attnviz use`` stored, or None; LoadError for a damaged file."""
    mend = "attnviz use --none removes it"
    try:
        path = kept_file()
    except LoadError:  # without a home nothing was kept
        return None
    try:
        with open_regular(Path(os.path.realpath(path))) as stream:
            name = stream.read(_LONGEST).decode().removesuffix("\n")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UnicodeDecodeError:
        name = ""
    except IsADirectoryError as error:
        raise LoadError(f"{str(path)!r} is a directory: remove it") from error
    except OSError as error:
        raise LoadError(f"cannot read {str(path)!r}: {error.strerror or error}; {mend}") from error
    if not name.isprintable() or not 0 < len(name) < _LONGEST - 1:
        raise LoadError(f"{str(path)!r} does not hold the name of a model: {mend}")
    return name


def keep(name: str) -> Path:
    """Store the name of a model for later runs; return the file's path.

    A path is made absolute. Raises LoadError if there is no such model here, or the file cannot be
    written.
    """
    from attnviz.draw.files import whole_file

    kept = checked(name)
    path = kept_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LoadError(f"cannot write {str(path)!r}: {error.strerror or error}") from error
    with whole_file(path) as stream:
        stream.write(f"{kept}\n".encode())
    return path


def forget() -> bool:
    """Remove the file of ``attnviz use``; return whether there was one."""
    path = kept_file()
    try:
        path.unlink()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise LoadError(f"cannot remove {str(path)!r}: {error.strerror or error}") from error
    return True


def checked(name: str) -> str:
    """Return the name of a model, made absolute if it is a path.

    Raises LoadError if its files are not all on this computer.
    """
    from attnviz.models.resolve import resolve

    source = resolve(name)
    if not name.isprintable():
        raise LoadError(f"{name!r} has characters that cannot be printed: rename it")
    if source.kind in ("directory", "hub"):
        from attnviz.models import checkpoint_files as files
        from attnviz.models.hub import find_checkpoint
        from attnviz.models.work import LoadOptions

        try:
            directory = find_checkpoint(
                name, LoadOptions(offline=True, allow_pickle=True)
            ).directory
        except OfflineError as error:
            raise LoadError(
                f"{name!r} is neither a directory here nor complete in the local cache: attnviz "
                f"heads --model {name} fetches it"
            ) from error
        fields = files.read_config(name, directory)
        weights = files.weight_files(name, files.file_names(directory), directory.joinpath, True)
        files.check_layers(name, fields, files.check_weights(name, directory, weights))
    path = os.path.expanduser(name)
    is_path = source.kind == "directory" or (source.kind == "shape" and os.path.isfile(path))
    return os.path.abspath(path) if is_path else name
