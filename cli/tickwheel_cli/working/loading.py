"""The handlers that a name such as `app:handlers` means."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tickwheel_cli.shared.failures import CommandError

if TYPE_CHECKING:
    from tickwheel import Handlers

_ADVICE = "Name a module and a tickwheel.Handlers in it, such as app:handlers; the folder you are in is looked at, too."


def load(name: str) -> Handlers:
    """Imports the module. Raises CommandError."""
    from tickwheel import Handlers

    module_name, separator, attribute = name.partition(":")
    if not (module_name and separator and attribute):
        raise CommandError("bad_name", f"{name!r} is not of the form module:name", advice=_ADVICE)
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name != missing and not module_name.startswith(f"{missing}."):
            # The module is there, and something that it imports is not.
            raise CommandError(
                "bad_handlers",
                f"{module_name} cannot be imported: {error}",
                advice=f"Install {missing}, or correct the import.",
            ) from error
        raise CommandError("not_found", f"there is no module {missing!r}", advice=_ADVICE) from None
    except (Exception, SystemExit) as error:
        raise CommandError(
            "bad_handlers",
            f"{module_name} cannot be imported: {type(error).__name__}: {error}",
            advice=f"Correct it: `python -c 'import {module_name}'` shows where that comes from.",
        ) from error
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise CommandError("not_found", f"{module_name} has no {attribute!r}", advice=_ADVICE) from None
    if not isinstance(found, Handlers):
        kind = type(found).__name__
        raise CommandError("bad_handlers", f"{name} is a {kind}, and no tickwheel.Handlers", advice=_ADVICE)
    if not len(found):
        raise CommandError(
            "no_handlers", f"{name} has no handler", advice="Add one with @handlers.on(topic)."
        )
    return found
