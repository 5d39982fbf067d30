"""The folder of one run: its header (run.json), where each file lies, and the lock of its one writer."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from autotune.errors import UserError
from autotune.history.parts import to_bytes, write_atomically, write_part
from autotune.history.schema import SCHEMA_VERSION, TABLES
from autotune.spec.objective import Budget, Objective, Slo

State = Literal["running", "interrupted", "done", "failed"]
Scalar = bool | int | float | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHeader:
    """Everything needed to say what a run was and to go on with it, the two YAML texts included.

    `options` are the command-line options that change what is done (`vllm_python`, `allow_quality_loss`,
    `simulate`, ...). Times are Unix seconds. `elapsed_s`: wall seconds spent searching, all sessions together; while
    one runs, up to the last trial that ended. `devices`: what the newest session had (CPU: engine ranks).
    `offered_gpu_s`: devices x wall seconds, all sessions together. Versions that wrote neither left None; `had_devices`
    and `had_gpu_s` are then what follows from the rest.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    name: str
    seed: int
    command: tuple[str, ...]
    space_text: str
    workload_text: str
    objectives: tuple[Objective, ...]
    slos: tuple[Slo, ...]
    budget: Budget
    started_at: float
    space_file: str | None = None
    workload_file: str | None = None
    options: Mapping[str, Scalar] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    state: State = "running"
    finished_at: float | None = None
    elapsed_s: float = 0.0
    devices: int | None = None
    offered_gpu_s: float | None = None
    message: str = ""
    schema_version: int = SCHEMA_VERSION

    @property
    def had_devices(self) -> int | None:
        if self.devices is not None:
            return self.devices
        given = self.options.get("devices")  # the GPUs of one machine; null for a CPU's ranks and a cluster's nodes
        return given if isinstance(given, int) else None

    @property
    def had_gpu_s(self) -> float | None:
        if self.offered_gpu_s is not None or not self.elapsed_s:
            return self.offered_gpu_s or 0.0
        # With `devices` alone a newer version went on with an older one's run, of which it didn't know how many it had.
        devices = None if self.devices is not None else self.had_devices
        return None if devices is None else devices * self.elapsed_s


_HEADER: TypeAdapter[RunHeader] = TypeAdapter(RunHeader)


@dataclass(frozen=True, slots=True)
class RunDir:
    """`path` is the run's folder; `create` or `open` it, so that the header is known to be good."""

    path: Path

    @classmethod
    def create(cls, path: Path, header: RunHeader) -> RunDir:
        """Makes the folder, its tables (empty, but with their schema) and the header. Raises UserError where a run
        already lies."""
        run = cls(path)
        if run.header_file.exists():
            raise UserError(
                "a run already lies here",
                file=run.header_file,
                remedy="go on with it by --resume, or choose another folder with --out",
            )
        path.mkdir(parents=True, exist_ok=True)
        for name, schema in TABLES.items():
            folder = run.table(name)
            folder.mkdir(exist_ok=True)
            write_part(folder, to_bytes(schema.empty_table()))  # a reader always finds every column
        run._write(header)
        return run

    @classmethod
    def open(cls, path: Path) -> RunDir:
        """Raises UserError when there is no readable run of a known version."""
        run = cls(path)
        run.header()
        return run

    @property
    def header_file(self) -> Path:
        return self.path / "run.json"

    @property
    def journal(self) -> Path:
        """The study's Optuna journal."""
        return self.path / "study.journal"

    def table(self, name: str) -> Path:
        """The dataset folder of one of `schema.TABLES`."""
        return self.path / f"{name}.parquet"

    def logs(self, trial: int, attempt: int) -> Path:
        """Where this attempt's engine log and argv lie; the folder is made."""
        return self._folder("logs", trial, attempt)

    def failures(self, trial: int, attempt: int) -> Path:
        """Where what is needed to look into this attempt's failure lies; the folder is made."""
        return self._folder("failures", trial, attempt)

    def header(self) -> RunHeader:
        """Reads run.json. Raises UserError naming the file, the key and what to do."""
        file = self.header_file
        try:
            content = json.loads(file.read_text())
        except FileNotFoundError:
            raise UserError("no run lies here", file=file, remedy="name the folder that `vtune search` wrote") from None
        except (OSError, ValueError) as error:
            raise UserError(f"can't be read: {error}", file=file, remedy="name another run's folder") from None
        version = content.get("schema_version") if isinstance(content, dict) else None
        if not isinstance(version, int) or version > SCHEMA_VERSION:
            raise UserError(
                f"this vtune reads versions up to {SCHEMA_VERSION}",
                file=file,
                key="schema_version",
                value=version,
                remedy="update vtune" if isinstance(version, int) else "name another run's folder",
            )
        try:
            return _HEADER.validate_python(content)
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(str(part) for part in first["loc"])
            raise UserError(first["msg"], file=file, key=key, remedy="restore the file, or name another run") from None

    def update(self, **changes: Any) -> RunHeader:
        """Changes fields of the header on disk and returns it, e.g. `update(state="done", finished_at=time.time())`."""
        header = replace(self.header(), **changes)
        self._write(header)
        return header

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Held by the one process that writes this run. Raises UserError while another holds it; the kernel lets go
        of it however that process ends."""
        file = self.path / ".lock"
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
                raise UserError(
                    f"another vtune (process {owner or 'unknown'}) is writing this run",
                    file=self.path,
                    remedy="wait for it, stop it, or choose another folder with --out",
                ) from None
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
            yield
        finally:
            os.close(descriptor)

    def _folder(self, kind: str, trial: int, attempt: int) -> Path:
        folder = self.path / kind / (f"{trial:04d}" if attempt == 1 else f"{trial:04d}-attempt-{attempt}")
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _write(self, header: RunHeader) -> None:
        content = _HEADER.dump_json(_HEADER.validate_python(asdict(header)), indent=2)
        write_atomically(self.header_file, content + b"\n")
