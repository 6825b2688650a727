"""Captions as files: tables and WebDataset shards, one file per part."""

from __future__ import annotations

import csv
import io
import json
import shutil
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from sightline.bulk.inputs import FinishedPart, JobPart
from sightline.data.shards import group_samples, is_hidden, key_and_suffix, members, unused
from sightline.data.tables import import_parquet
from sightline.errors import ConfigError, DataError
from sightline.io.files import is_image_path, printable
from sightline.types import COLUMNS, RANK, UNSURE, Caption, Failure, write_csv_row

ROW_GROUP = 10_000  # rows of a Parquet file that are compressed, and read, together; as many are in memory
LARGEST_METADATA = 16 * 2**20  # bytes of a sample's .json


# -- tables ------------------------------------------------------------------------------------------------------------


def write_captions(format: str, target: Path, finished: FinishedPart, several: bool = False) -> None:
    """Write the captions of one part; ``several``: each photo has several candidates."""
    captions = finished.captions
    if format == "tar":
        _write_shard(target, finished)
    elif format == "parquet":
        _write_parquet(target, _columns(captions, several))
    elif format == "csv":
        columns = table_columns(format, several)
        rows = ({**row, "source": to_unicode(caption.source)} for caption in captions for row in caption.rows())
        _write_csv(target, columns, ([row[name] for name in columns] for row in rows))
    else:
        _write_lines(target, (caption.as_dict() for caption in captions))


def write_failures(format: str, target: Path, failures: Sequence[Failure]) -> None:
    """Write the inputs of one part that could not be captioned, and why, as a table."""
    if format == "parquet":
        columns = {
            "source": [to_unicode(failure.source) for failure in failures],
            "reason": [to_unicode(failure.reason) for failure in failures],
        }
        _write_parquet(target, columns)
    elif format == "csv":
        _write_csv(target, ["source", "reason"], [[to_unicode(one.source), to_unicode(one.reason)] for one in failures])
    else:
        _write_lines(target, ({"source": failure.source, "reason": failure.reason} for failure in failures))


def merge(format: str, parts: Sequence[Path], target: Path) -> None:
    """Concatenate the parts in order, without reading all of them into memory."""
    if format == "parquet":
        _merge_parquet(parts, target)
        return
    with target.open("wb") as out:
        for number, part in enumerate(parts):
            with part.open("rb") as file:
                if format == "csv" and number:
                    file.readline()  # its header
                shutil.copyfileobj(file, out)
                if format != "tar" and file.tell() and not _ends_with_newline(file):  # a person edited it
                    out.write(b"\n")


def _ends_with_newline(file: BinaryIO) -> bool:
    file.seek(-1, io.SEEK_END)
    return file.read(1) == b"\n"


def table_columns(format: str, several: bool) -> list[str]:
    """The columns of a Parquet or CSV table. Of several candidates, CSV has a row each, Parquet a list."""
    return [*COLUMNS, *([RANK if format == "csv" else "others"] if several else [])]


def check_columns(format: str, part: Path, several: bool) -> None:
    """Refuse tables with other columns than this version writes; JSON lines and shards name their values."""
    if format == "parquet":
        with _report_damage(part):
            found = import_parquet().ParquetFile(part).schema_arrow.names
    elif format == "csv":
        with part.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            found = next(csv.reader(file), [])
    else:
        return
    columns = table_columns(format, several)
    if found != columns:
        raise ConfigError(
            f"{printable(part)} was edited, or is of another version of Sightline: it has the columns "
            f"{printable(', '.join(found))}, this one writes {', '.join(columns)}; restore these, choose another "
            "output, or begin again with --overwrite"
        )


def to_unicode(text: str) -> str:
    """A file name as valid Unicode: names may hold any bytes, tables only text."""
    return text.encode("utf-8", "backslashreplace").decode()


def _columns(captions: Sequence[Caption], several: bool) -> dict[str, list[Any]]:
    rows = [{**caption.as_row(), "source": to_unicode(caption.source)} for caption in captions]
    columns: dict[str, list[Any]] = {name: [row[name] for row in rows] for name in COLUMNS}
    if several:
        columns["others"] = [[other.text for other in caption.others] for caption in captions]
    return columns


def _write_parquet(target: Path, columns: dict[str, list[Any]]) -> None:
    import pyarrow

    types = {
        "source": pyarrow.string(),
        "caption": pyarrow.string(),
        "confidence": pyarrow.float32(),
        UNSURE: pyarrow.bool_(),
        "ood_score": pyarrow.float32(),
        "finished": pyarrow.bool_(),
        "others": pyarrow.list_(pyarrow.string()),
        "reason": pyarrow.string(),
    }
    table = pyarrow.table(columns, schema=pyarrow.schema([(name, types[name]) for name in columns]))
    import_parquet().write_table(table, target, compression="zstd")


def _merge_parquet(parts: Sequence[Path], target: Path) -> None:
    """Parts are small: their rows are gathered into row groups of a size that reads well."""
    import pyarrow

    writer: Any = None
    schema: Any = None
    pending: list[Any] = []
    rows = 0

    def write() -> None:
        nonlocal pending, rows
        writer.write_table(pyarrow.concat_tables(pending))
        pending, rows = [], 0
        pyarrow.default_memory_pool().release_unused()

    try:
        for part in parts:
            with _report_damage(part):
                schema = schema or import_parquet().ParquetFile(parts[-1]).schema_arrow
                writer = writer or import_parquet().ParquetWriter(target, schema, compression="zstd")
                for batch in import_parquet().ParquetFile(part).iter_batches(ROW_GROUP, use_threads=False):
                    table = pyarrow.Table.from_batches([batch])
                    pending.append(table.select(schema.names).cast(schema))  # edited ones may have other types
                    rows += table.num_rows
                    if rows >= ROW_GROUP:
                        write()
        if pending:
            write()
    finally:
        if writer:
            writer.close()


@contextmanager
def _report_damage(part: Path) -> Iterator[None]:
    import pyarrow

    try:
        yield
    except pyarrow.ArrowException as error:
        raise DataError(
            f"{printable(part)} is damaged ({error}): restore it, or delete it and run the same command again"
        ) from None


def _write_csv(target: Path, header: list[str], rows: Iterable[list[Any]]) -> None:
    with target.open("w", encoding="utf-8", newline="") as file:
        for row in (header, *rows):
            write_csv_row(file, row)


def _write_lines(target: Path, rows: Iterable[dict[str, Any]]) -> None:
    with target.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


# -- shards ------------------------------------------------------------------------------------------------------------


def _write_shard(target: Path, finished: FinishedPart) -> None:
    """Copy a shard with our captions added, or make a new shard of single photos."""
    if finished.part.shard:
        copy_captioned(target, finished.part.shard, dict(zip(finished.positions, finished.captions)))
        return
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as out:
        for key, suffix, data, caption in _samples(finished.part, finished.captions):
            add_file(out, f"{key}{suffix}", data)
            add_caption(out, key, caption, {"source": to_unicode(caption.source)})


def _samples(part: JobPart, captions: Sequence[Caption]) -> Iterator[tuple[str, str, bytes, Caption]]:
    for index, caption in enumerate(captions):
        path = Path(caption.source)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise DataError(
                f"{path} was captioned but is gone ({error.strerror}): run the same command again"
            ) from None
        yield f"{part.number:06d}{index:06d}", path.suffix.lower(), data, caption


def copy_captioned(target: Path, shard: str, captions: Mapping[int, Caption]) -> None:
    """Copy a shard with our caption as each sample's ``.txt``; samples without a caption are left out.

    ``captions`` are by position among the shard's photos, as names may repeat. An existing ``.txt`` becomes
    ``.original.txt``; ``.json`` gains the key ``sightline``; the rest is copied. Keys that repeat get a number, and
    names that lead out of the folder they are unpacked to lose what leads out.
    """
    with Path(shard).open("rb") as file, tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as out:
        length = file.seek(0, io.SEEK_END)
        entries = [entry for entry in members(file, shard) if isinstance(entry, tarfile.TarInfo) and entry.isreg()]
        photos = [entry for entry in entries if is_image_path(entry.name) and not is_hidden(entry)]
        by_offset = {entry.offset: captions[at] for at, entry in enumerate(photos) if at in captions}
        keys: set[str] = set()
        for sample in group_samples(entry for entry in entries if entry.offset_data + entry.size <= length):
            captioned = [(entry, by_offset[entry.offset]) for entry in sample if entry.offset in by_offset]
            if captioned:
                key = unused(safe_name(key_and_suffix(sample[0].name)[0]), keys)
                keys.add(key)
                _copy_sample(out, file, key, sample, captioned)


def _copy_sample(
    out: tarfile.TarFile,
    file: BinaryIO,
    key: str,
    sample: list[tarfile.TarInfo],
    captioned: list[tuple[tarfile.TarInfo, Caption]],
) -> None:
    """The first photo's caption is the sample's; further photos' captions are in its ``.json``, by member name."""
    metadata: dict[str, Any] = {}
    names = {f"{key}.txt", f"{key}.json"}  # ours
    for entry in sample:
        file.seek(entry.offset_data)
        data = file.read(entry.size)
        old_key, suffix = key_and_suffix(entry.name)
        if suffix == "json" and len(data) <= LARGEST_METADATA and isinstance(found := _json(data), dict):
            metadata = found
            continue
        rest = f".original.{suffix}" if suffix in ("txt", "json") else entry.name[len(old_key) :]
        copied = safe_name(key + rest)
        number = 1
        while copied in names:  # a shard of ours, captioned again
            number += 1
            copied = f"{key}.original{number}.{suffix.rpartition('.')[2]}"
        names.add(copied)
        add_file(out, copied, data)
    facts: dict[str, Any] = {}
    if key != key_and_suffix(sample[0].name)[0]:
        facts["renamed_from"] = to_unicode(captioned[0][0].name)
    if len(captioned) > 1:
        facts["photos"] = {to_unicode(entry.name): _without_source(caption) for entry, caption in captioned}
    add_caption(out, key, captioned[0][1], metadata, facts)


def safe_name(name: str) -> str:
    """A member's name without what leads out of the folder it is unpacked to: ``../../x`` becomes ``x``."""
    parts = name.replace("\\", "/").split("/")
    if name.startswith(("/", "\\")) or ".." in parts or parts[0].endswith(":"):
        parts = [part for part in parts if part not in ("", ".", "..") and not part.endswith(":")]
        return "/".join(parts) or "unnamed"
    return name


def add_caption(
    out: tarfile.TarFile,
    key: str,
    caption: Caption,
    metadata: Mapping[str, Any],
    facts: Mapping[str, Any] | None = None,
) -> None:
    """Add a sample's caption as ``.txt``, and with its metadata as ``.json``; ``facts`` stand beside the caption."""
    add_file(out, f"{key}.txt", caption.text.encode())
    content = {**metadata, "sightline": {**_without_source(caption), **(facts or {})}}
    add_file(out, f"{key}.json", json.dumps(content).encode())


def _without_source(caption: Caption) -> dict[str, Any]:
    return {name: value for name, value in caption.as_dict().items() if name != "source"}


def add_file(out: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)  # without owner and time: the same captions make the same shard
    entry.size = len(data)
    out.addfile(entry, io.BytesIO(data))


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None
