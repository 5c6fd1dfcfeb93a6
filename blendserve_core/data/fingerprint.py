"""What stands for everything that changes an output: finished rows are found again under it, and anything new starts afresh."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import blendserve_core
import schemas
from blendserve_core.data.columns import PROMPT_KINDS
from schemas.parameters import JobParameters

_CONFIG_FILES = ("config.json", "generation_config.json")
_TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "merges.txt",
)  # fmt: skip
_TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json")
# What makes texts to tokens, formats to masks and tokens to numbers.
_LIBRARIES = ("torch", "transformers", "tokenizers", "xgrammar")
# Whatever these parts do, each row's prompt and sampling show it.
_OF_ROWS = ("requests", "columns", "limit", "sampling", "on_too_long")
_SAMPLED_BLOCKS = 64
_BLOCK_BYTES = 1 << 20


def job_fingerprint(parts: Mapping[str, str]) -> str:
    """Hex digest over :func:`fingerprint_parts`."""
    return _hash(json.dumps(parts, sort_keys=True).encode())


def lengths_key(parameters: JobParameters, parts: Mapping[str, str]) -> str:
    """Hex digest of prompts and model alone: output lengths of a job are found under it by jobs with other settings."""
    prompts = [parameters.limit, {ours: theirs for ours, theirs in parameters.columns.items() if ours in PROMPT_KINDS}]
    same = [parts[name] for name in ("requests", "weights", "model config", "tokenizer", "chat template")]
    return _hash(json.dumps([prompts, same], sort_keys=True).encode())


def reuse_key(parts: Mapping[str, str]) -> str:
    """Hex digest of all that changes an output but for a row's own prompt and sampling, which its work digest holds."""
    same = {name: part for name, part in parts.items() if name.split(".")[0] not in _OF_ROWS}
    return _hash(json.dumps(same, sort_keys=True).encode())


def fingerprint_parts(parameters: JobParameters, source_digest: str, model_folder: Path) -> dict[str, str]:
    """The digest part by part, to tell what has changed between two jobs; options as they are, everything else as digests.

    In what order requests run, in how many shards and with how much memory changes no text, and is no part of it; but for a KV
    pool that is smaller than the model's context, and so bounds prompts and outputs.
    """
    included = dict.fromkeys(("columns", "limit", "sampling", "dtype", "on_too_long"), True)
    included |= {"engine": {"kv_dtype", "batch_invariant"}}
    options = json.loads(parameters.model_dump_json(include=included))
    return {
        "requests": source_digest,
        **_flat(options),
        "context": str(_context_tokens(parameters, model_folder)),
        "weights": _hash(repr([_weights_identity(path) for path in sorted(model_folder.glob("*.safetensors"))]).encode()),
        "model config": _hash_files(model_folder / name for name in _CONFIG_FILES),
        "tokenizer": _hash_files(model_folder / name for name in _TOKENIZER_FILES),
        "chat template": _hash_files(model_folder / name for name in _TEMPLATE_FILES),
        "code": code_digest(),
        "libraries": ", ".join(f"{name} {version(name)}" for name in _LIBRARIES),
    }


def _flat(options: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested options by their dotted names."""
    flat: dict[str, str] = {}
    for name, value in options.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": json.dumps(value)}
    return flat


def _context_tokens(parameters: JobParameters, model_folder: Path) -> int | None:
    config = json.loads((model_folder / "config.json").read_text(encoding="utf-8"))
    bounds = (config.get("max_position_embeddings"), parameters.engine.kv_cache_tokens)
    return min((bound for bound in bounds if bound is not None), default=None)


def code_digest() -> str:
    """Digest of the sources that turn a row into a text."""
    roots = [Path(module.__path__[0]) for module in (blendserve_core, schemas)]
    sources = (path for root in roots for pattern in ("*.py", "*.cpp", "*.inc") for path in sorted(root.rglob(pattern)))
    return _hash_files(sources)


def _weights_identity(path: Path) -> tuple[str, int, str]:
    """Name, size, and a digest of header and blocks spread evenly over a weights file, which may have many gigabytes."""
    size = path.stat().st_size
    digest = hashlib.blake2b(digest_size=16)
    step = max(_BLOCK_BYTES, size // _SAMPLED_BLOCKS)
    with path.open("rb") as file:
        for offset in [*range(0, size, step), max(0, size - _BLOCK_BYTES)]:
            file.seek(offset)
            digest.update(file.read(_BLOCK_BYTES))
    return path.name, size, digest.hexdigest()


def _hash_files(paths: Iterable[Path]) -> str:
    """Digest over names and content of those files that exist."""
    digest = hashlib.blake2b(digest_size=16)
    for path in paths:
        if path.exists():
            content = path.read_bytes()
            digest.update(f"{path.name}:{len(content)}:".encode() + content)
    return digest.hexdigest()


def _hash(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
