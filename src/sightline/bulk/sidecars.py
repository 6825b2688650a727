"""Captions beside and inside the photos themselves: ``dog.txt`` by ``dog.jpg``, and the description in its metadata.

Both are written before the part counts as done, and writing the same again changes nothing, so a killed job leaves no
gap. What a person wrote there before stays, unless it is to be overwritten.
"""

from __future__ import annotations

import logging
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from sightline.errors import ConfigError, DataError
from sightline.io.files import printable, write_atomically
from sightline.types import Caption

log = logging.getLogger(__name__)
# XMP's description, IPTC's caption, and the field the IPTC standard has for text that stands for a picture.
FIELDS = ("XMP-dc:Description", "IPTC:Caption-Abstract", "XMP-iptcCore:AltTextAccessibility")


def write_sidecars(captions: Sequence[Caption], overwrite: bool) -> int:
    """``dog.txt`` by each ``dog.jpg``; returns how many were left as they were."""
    kept = 0
    for caption in captions:
        target = Path(caption.source).with_suffix(".txt")
        text = caption.text + "\n"
        try:
            before = target.read_text(encoding="utf-8", errors="replace") if target.exists() else None
        except OSError as error:
            raise DataError(f"{printable(target)} cannot be read: {error.strerror}") from None
        if before is not None and before != text and not overwrite:
            kept += 1
        elif before != text:
            write_atomically(target, text)
    return kept


def find_exiftool() -> str:
    program = shutil.which("exiftool")
    if program is None:
        raise ConfigError("--embed needs the program exiftool, which is not installed: see exiftool.org")
    return program


def embed(captions: Sequence[Caption], overwrite: bool) -> None:
    """The sentence as the photos' XMP and IPTC description, by one run of exiftool."""
    if not captions:
        return
    lines = []
    for caption in captions:
        path = str(Path(caption.source).absolute())
        if "\n" in path:
            log.warning("%s has a line break in its name: its description is not written", printable(path))
            continue
        sentence = " ".join(caption.sentence().split())
        lines += [f"-{field}={sentence}" for field in FIELDS]
        # Existing tags are only replaced on demand ("-wm cg": create, do not write over); dates of the file are kept.
        lines += ["-codedcharacterset=utf8", *([] if overwrite else ["-wm", "cg"]), "-P", "-overwrite_original", "-q"]
        lines += [path, "-execute"]
    done = subprocess.run(
        [find_exiftool(), "-charset", "filename=utf8", "-@", "-"],
        input="\n".join(lines) + "\n",
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",
    )
    if done.returncode not in (0, 1):  # 1: some file could not be written, and stderr says which
        raise DataError(f"exiftool failed with code {done.returncode}: {done.stderr.strip()[-200:]}")
    for complaint in done.stderr.splitlines():
        log.warning("exiftool: %s", printable(complaint))
