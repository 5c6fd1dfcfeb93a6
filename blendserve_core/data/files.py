"""Find input files: a file, a folder, a glob or an fsspec URI, without markers, checksums and half-written files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import IO, Any, cast
from urllib.parse import unquote

import fsspec
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

PARQUET_SUFFIXES = (".parquet", ".parq", ".pq")
JSONL_SUFFIXES = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
_HASH_WHOLE_BYTES = 256 << 20
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file of a dataset. ``name`` is its path below what the user named; ``version`` is its time or ETag."""

    fs: fsspec.AbstractFileSystem
    path: str
    name: str
    size: int
    version: str

    @property
    def is_local(self) -> bool:
        return isinstance(self.fs, LocalFileSystem)

    @property
    def partitions(self) -> dict[str, str | None]:
        """Hive partition values in the path, as text: ``lang=en/a.parquet`` has ``{"lang": "en"}``."""
        pairs = [part.split("=", 1) for part in PurePosixPath(self.name).parts[:-1] if "=" in part]
        return {unquote(key): None if value == _HIVE_NULL else unquote(value) for key, value in pairs}

    def open(self) -> IO[bytes]:
        return cast("IO[bytes]", self.fs.open(self.path, "rb"))


def find_files(requests: str) -> list[InputFile]:
    """All Parquet and JSON Lines files that ``requests`` names, in the order of their names; empty where there are none.

    Names beginning with ``.`` or ``_`` and unknown suffixes are passed over, except for a file named outright.
    """
    fs, root = url_to_fs(requests)
    if fs.isfile(root):
        return [_input_file(fs, fs.info(root), PurePosixPath(root).parent)]
    if fs.isdir(root):
        return _below(fs, root)
    if not any(character in requests for character in "*?["):
        return []
    found = cast("dict[str, dict[str, Any]]", fs.glob(root, detail=True))
    base = PurePosixPath(_fixed_part(root))
    files = [_input_file(fs, info, base) for info in found.values() if info["type"] == "file"]
    folders = [file for path, info in found.items() if info["type"] == "directory" for file in _below(fs, path, base)]
    return sorted((file for file in {*files, *folders} if not _is_stray(file.name)), key=lambda file: file.name)


def is_parquet(file: InputFile) -> bool:
    """By suffix, else by the first bytes. Raises ValueError for a file of neither kind."""
    if file.name.lower().endswith(PARQUET_SUFFIXES):
        return True
    if file.name.lower().endswith(JSONL_SUFFIXES):
        return False
    with file.open() as stream:
        if stream.read(4) == b"PAR1":
            return True
    raise ValueError(
        f"{file.path}: neither a Parquet file nor named like JSON Lines. Known suffixes: "
        f"{', '.join(PARQUET_SUFFIXES + JSONL_SUFFIXES)}."
    )


def digest_of(files: Iterable[InputFile]) -> str:
    """Hash over names, sizes and content; of large or remote datasets the time or ETag of each file stands for its content."""
    listed = list(files)
    hashes_content = all(file.is_local for file in listed) and sum(file.size for file in listed) <= _HASH_WHOLE_BYTES
    digest = hashlib.blake2b(digest_size=16)
    for file in listed:
        digest.update(repr((file.name, file.size)).encode())
        digest.update(_content_hash(file) if hashes_content else file.version.encode())
    return digest.hexdigest()


def _content_hash(file: InputFile) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    with file.open() as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.digest()


def _below(fs: fsspec.AbstractFileSystem, root: str, base: PurePosixPath | None = None) -> list[InputFile]:
    base = base or PurePosixPath(root)
    files = [_input_file(fs, info, base) for info in cast("dict[str, dict[str, Any]]", fs.find(root, detail=True)).values()]
    return sorted((file for file in files if not _is_stray(file.name)), key=lambda file: file.name)


def _input_file(fs: fsspec.AbstractFileSystem, info: dict[str, Any], base: PurePosixPath) -> InputFile:
    path = PurePosixPath(info["name"])
    name = str(path.relative_to(base)) if path.is_relative_to(base) else path.name
    version = next((info[key] for key in ("ETag", "etag", "md5Hash", "mtime", "LastModified", "created") if key in info), "")
    return InputFile(fs, info["name"], name, info["size"], str(version))


def _is_stray(name: str) -> bool:
    parts = PurePosixPath(name.lower()).parts
    is_hidden = any(part.startswith((".", "_")) and "=" not in part for part in parts)
    return is_hidden or not parts[-1].endswith(PARQUET_SUFFIXES + JSONL_SUFFIXES)


def _fixed_part(pattern: str) -> str:
    """The folders of a glob before its first wildcard."""
    parts = PurePosixPath(pattern).parts
    wild = next(i for i, part in enumerate(parts) if any(character in part for character in "*?["))
    return str(PurePosixPath(*parts[:wild]))
