"""Captions next to the photos, as sidecars, and inside them, as descriptions in their metadata."""

from __future__ import annotations

import logging
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sightline.errors import ConfigError, DataError
from sightline.io.files import (
    atomic_path,
    content_digest,
    counted,
    printable,
    shared_stems,
    sidecar_of,
    write_atomically,
)
from sightline.types import Caption

log = logging.getLogger("sightline.bulk")
# XMP's description, IPTC's caption, and the IPTC field for text that stands for a picture.
METADATA_FIELDS = ("XMP-dc:Description", "IPTC:Caption-Abstract", "XMP-iptcCore:AltTextAccessibility")


@dataclass
class PhotoChanges:
    """What a run wrote next to and into the photos."""

    unsure: int = 0  # captions that were left out
    sidecars: int = 0
    replaced: int = 0  # of the sidecars: those that had another text, now in NAME.txt.bak
    kept: int = 0  # other texts that were there and were kept
    embedded: int = 0

    def add(self, other: PhotoChanges) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def lines(self) -> list[str]:
        """One line for each kind of change."""
        found = []
        if self.sidecars:
            earlier = f", {self.replaced:,} of them for another text, kept as NAME.txt.bak" if self.replaced else ""
            found.append(f"{counted(self.sidecars, 'sidecar')} written{earlier}")
        if self.kept:
            found.append(f"{self.kept:,} .txt files existed already and were kept; --overwrite replaces them")
        if self.embedded:
            found.append(
                f"captions written into {counted(self.embedded, 'photo')}; each original is kept as NAME_original: "
                "`exiftool -restore_original FOLDER` restores them, `-delete_original` removes them"
            )
        if self.unsure:
            found.append(
                f"{counted(self.unsure, 'caption')} only in the table, unsure or below --min-confidence: "
                "see --include-unsure"
            )
        return found


def write_sidecars(captions: Sequence[Caption], overwrite: bool) -> PhotoChanges:
    """Write ``dog.txt`` next to each ``dog.jpg``, or ``dog.jpg.txt`` where there is a ``dog.png``, too.

    Sidecars and embedded captions are written before their part counts as done, and writing them twice changes
    nothing: a killed job leaves no gap.
    """
    shared_stems.cache_clear()  # photos may have arrived since the last part
    changes = PhotoChanges()
    for caption in captions:
        photo = Path(caption.source)
        text = f"{caption.text}\n".encode()
        try:
            target = sidecar_of(photo, shared_stems(photo.parent.absolute()))
            before = target.read_bytes() if target.exists() else None
        except OSError as error:
            raise DataError(f"the sidecar of {printable(photo)} cannot be read: {error.strerror}") from None
        if before is not None and before != text and not overwrite:
            changes.kept += 1
        elif before != text:
            earlier = target.with_name(f"{target.name}.bak")
            if before is not None and not earlier.exists():  # perhaps a person's words
                write_atomically(earlier, before)
            write_atomically(target, text)
            changes.sidecars += 1
            changes.replaced += before is not None
    return changes


def find_exiftool() -> str:
    program = shutil.which("exiftool")
    if program is None:
        raise ConfigError("--embed needs the program exiftool, which is not installed: see exiftool.org")
    return program


def embed(captions: Sequence[Caption], overwrite: bool) -> PhotoChanges:
    """Write captions into the photos' XMP and IPTC descriptions, with one run of exiftool.

    A photo keeps its date. What it was before is kept as ``dog.jpg_original``, the name exiftool restores from.
    """
    lines: list[str] = []
    before: dict[Path, bytes] = {}  # each photo's digest
    kept: dict[Path, Path] = {}  # the originals that this run keeps
    for caption in captions:
        path = Path(caption.source).resolve()
        if any(mark in str(path) for mark in "\r\n"):
            log.warning("%s has a line break in its name: its description is not written", printable(path))
            continue
        try:
            before[path] = content_digest(path)
        except OSError as error:
            log.warning("%s cannot be read (%s): its description is not written", printable(path), error.strerror)
            continue
        original = path.with_name(f"{path.name}_original")
        if not original.exists():
            _keep(path, original)
            kept[path] = original
        lines += [f"-{field}={caption.description()}" for field in METADATA_FIELDS]
        # Existing tags are replaced only on demand ("-wm cg": create, do not overwrite); the file's dates are kept.
        lines += ["-codedcharacterset=utf8", *([] if overwrite else ["-wm", "cg"]), "-P", "-overwrite_original", "-q"]
        lines += [str(path), "-execute"]
    if not lines:
        return PhotoChanges()
    try:
        done = subprocess.run(
            [find_exiftool(), "-charset", "filename=utf8", "-@", "-"],
            input="\n".join(lines) + "\n",
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
        )
    finally:
        changed = {path for path, digest in before.items() if not path.exists() or content_digest(path) != digest}
        for path in kept.keys() - changed:
            kept[path].unlink()
    if done.returncode not in (0, 1):  # 1: some file could not be written, and stderr says which
        raise DataError(f"exiftool failed with code {done.returncode}: {done.stderr.strip()[-200:]}")
    for line in done.stderr.splitlines():
        log.warning("exiftool: %s", printable(line))
    return PhotoChanges(embedded=len(changed))


def _keep(path: Path, original: Path) -> None:
    """Keep a photo under a second name. exiftool replaces the file of the first name, so a hard link is enough."""
    try:
        original.hardlink_to(path)
    except OSError:  # a file system without links
        with atomic_path(original) as temporary:
            shutil.copy2(path, temporary)
