"""Tables of captions and of errors, a file per part, in the format asked for; at the end the parts become one file."""

from __future__ import annotations

import csv
import json
import shutil
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sightline.bulk.extras import parquet
from sightline.bulk.inputs import Part
from sightline.bulk.shards import add_caption, add_file, copy_captioned
from sightline.errors import ConfigError, DataError
from sightline.io.files import printable
from sightline.types import COLUMNS, Caption, Failure, cell

FORMS = ("parquet", "jsonl", "csv", "tar")
ROW_GROUP = 10_000  # rows of a Parquet file that are compressed, and read, together; as many are in memory


def error_form(form: str) -> str:
    """Shards hold photos, so their errors are lines of JSON; every other table has errors like itself."""
    return "jsonl" if form == "tar" else form


def write_captions(form: str, target: Path, part: Part, captions: Sequence[Caption], several: bool = False) -> None:
    """The captions of one part, to a file that does not count before it is renamed; ``several``: of each photo."""
    if form == "tar":
        _write_shard(target, part, captions)
    elif form == "parquet":
        _write_parquet(target, _columns(captions, several))
    elif form == "csv":
        rows = [
            [*map(cell, {**one.as_row(), "source": storable(caption.source)}.values())]
            for caption in captions
            for one in (caption, *caption.others)
        ]
        _write_csv(target, list(COLUMNS), rows)
    else:
        _write_lines(target, (caption.as_dict() for caption in captions))


def write_failures(form: str, target: Path, failures: Sequence[Failure]) -> None:
    """The inputs of one part that could not be captioned, and why."""
    form = error_form(form)
    if form == "parquet":
        columns = {
            "source": [storable(failure.source) for failure in failures],
            "reason": [storable(failure.reason) for failure in failures],
        }
        _write_parquet(target, columns)
    elif form == "csv":
        _write_csv(target, ["source", "reason"], [[storable(one.source), storable(one.reason)] for one in failures])
    else:
        _write_lines(target, ({"source": failure.source, "reason": failure.reason} for failure in failures))


def merge(form: str, parts: Iterable[Path], target: Path) -> None:
    """One table of all parts, in order, a little at a time."""
    if form == "parquet":
        _merge_parquet(parts, target)
        return
    with target.open("wb") as out:
        for number, part in enumerate(parts):
            with part.open("rb") as file:
                if form == "csv" and number:
                    file.readline()  # its header
                shutil.copyfileobj(file, out)


def check_columns(form: str, part: Path) -> None:
    """A part of another version of Sightline must not be mixed with ours; lines and shards name their values."""
    if form == "parquet":
        with _sound(part):
            found = parquet().ParquetFile(part).schema_arrow.names
    elif form == "csv":
        with part.open(encoding="utf-8", errors="replace", newline="") as file:
            found = next(csv.reader(file), [])
    else:
        return
    if [name for name in found if name != "others"] != list(COLUMNS):
        raise ConfigError(
            f"{printable(part)} is of another version of Sightline: it has the columns {printable(', '.join(found))}, "
            f"this one writes {', '.join(COLUMNS)}; finish the job with that version, choose another output, "
            "or begin again with --overwrite"
        )


def storable(text: str) -> str:
    """File names may hold bytes that are no text; tables hold text only."""
    return text.encode("utf-8", "backslashreplace").decode()


def _columns(captions: Sequence[Caption], several: bool) -> dict[str, list[Any]]:
    rows = [{**caption.as_row(), "source": storable(caption.source)} for caption in captions]
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
        "unsure": pyarrow.bool_(),
        "ood_score": pyarrow.float32(),
        "finished": pyarrow.bool_(),
        "others": pyarrow.list_(pyarrow.string()),
        "reason": pyarrow.string(),
    }
    table = pyarrow.table(columns, schema=pyarrow.schema([(name, types[name]) for name in columns]))
    parquet().write_table(table, target, compression="zstd")


def _merge_parquet(parts: Iterable[Path], target: Path) -> None:
    """Parts are small; their rows are gathered into groups of a size that reads well."""
    import pyarrow

    writer: Any = None
    waiting: list[Any] = []
    rows = 0

    def write() -> None:
        nonlocal waiting, rows
        writer.write_table(pyarrow.concat_tables(waiting))
        waiting, rows = [], 0
        pyarrow.default_memory_pool().release_unused()

    try:
        for part in parts:
            with _sound(part):
                table = parquet().ParquetFile(part).read(use_threads=False)
            writer = writer or parquet().ParquetWriter(target, table.schema, compression="zstd")
            waiting.append(table)
            rows += table.num_rows
            if rows >= ROW_GROUP:
                write()
        if waiting:
            write()
    finally:
        if writer:
            writer.close()


@contextmanager
def _sound(part: Path) -> Iterator[None]:
    import pyarrow

    try:
        yield
    except pyarrow.ArrowInvalid as error:
        raise DataError(f"{part} is damaged ({error}): delete it and run the same command again") from None


def _write_csv(target: Path, header: list[str], rows: Iterable[list[Any]]) -> None:
    with target.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(header)
        table.writerows(rows)


def _write_lines(target: Path, rows: Iterable[dict[str, Any]]) -> None:
    with target.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _write_shard(target: Path, part: Part, captions: Sequence[Caption]) -> None:
    """A shard again with our captions, or a new shard of single photos."""
    if part.shard:
        copy_captioned(target, part.shard, {caption.source: caption for caption in captions})
        return
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as out:
        for key, suffix, data, caption in _samples(part, captions):
            add_file(out, f"{key}{suffix}", data)
            add_caption(out, key, caption, {"source": storable(caption.source)})


def _samples(part: Part, captions: Sequence[Caption]) -> Iterator[tuple[str, str, bytes, Caption]]:
    for place, caption in enumerate(captions):
        path = Path(caption.source)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise DataError(
                f"{path} was captioned but is gone ({error.strerror}): run the same command again"
            ) from None
        yield f"{part.number:06d}{place:06d}", path.suffix.lower(), data, caption
