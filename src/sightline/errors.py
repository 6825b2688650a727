"""Every mistake a user can cause, as one line: what happened, which value, what to do."""

import difflib
from collections.abc import Iterable


class SightlineError(Exception):
    """Base of all errors that are the input's fault and not ours."""


class ConfigError(SightlineError):
    """A recipe, an option or a command line that cannot be carried out."""


class DataError(SightlineError):
    """A dataset, captions file or results file that is missing, empty or contradicts itself."""


class ImageError(SightlineError):
    """A picture that cannot be opened, is too large, or is not a picture."""


class CheckpointError(SightlineError):
    """A model folder that is incomplete, damaged or does not fit."""


def nearest(name: str, choices: Iterable[str]) -> str:
    """`` (did you mean 'x'?)`` where a known name is close to a wrong one, else nothing."""
    close = difflib.get_close_matches(name, list(choices), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
