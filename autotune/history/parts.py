"""Files that are either whole or absent: how everything in a run's folder is written."""

from __future__ import annotations

import os
import time
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

_sequence = count()


def write_atomically(path: Path, content: bytes) -> None:
    """After this returns the file survives a power cut; before, a reader finds the old file or none.

    The temporary name begins with a dot and doesn't end in `.parquet`: pandas and Arrow skip dot names, DuckDB's
    `*.parquet` doesn't match it. A killed writer can leave such a file behind; nobody reads it.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """A rename is durable only once its folder is on disk too (fsync(2))."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def to_bytes(table: pa.Table) -> bytes:
    """The table as one Parquet file, to be written elsewhere (a trial's node sends it to the driver)."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    content: bytes = sink.getvalue().to_pybytes()
    return content


def write_part(folder: Path, content: bytes) -> Path:
    """Adds one file to a dataset folder. Names sort in the order of writing."""
    path = folder / f"part-{time.time_ns():020d}-{os.getpid():07d}-{next(_sequence):06d}.parquet"
    write_atomically(path, content)
    return path


def parts(folder: Path) -> list[str]:
    """The dataset's files, oldest first."""
    return sorted(str(path) for path in folder.glob("part-*.parquet"))
