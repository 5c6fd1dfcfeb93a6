"""One request's published rows as a line of the output file, or of the error file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from blendserve_core.data.openai.bodies import COMPLETIONS_URL, url_of
from blendserve_core.data.openai.lines import BODY, CUSTOM_ID, URL

Row = dict[str, Any]
_STATUS = {"unsupported_url": 404, "engine_error": 500}


@dataclass(frozen=True, slots=True)
class Job:
    """What all lines share: the model's name, seconds since 1970, the job's fingerprint, and the text of single tokens."""

    model: str
    created: int
    fingerprint: str
    token_text: Callable[[int], str]


def is_error(samples: list[Row]) -> bool:
    return any(sample["error"] is not None for sample in samples)


def to_line(number: int, samples: list[Row], job: Job) -> dict[str, Any]:
    """The line of request ``number`` (from 0), whose ``samples`` are the rows published for it."""
    digest = hashlib.blake2b(f"{job.fingerprint}:{number}".encode(), digest_size=16).hexdigest()
    status, body = _failure(samples) if is_error(samples) else (200, _success(digest, samples, job))
    return {
        "id": f"batch_req_{digest}",
        "custom_id": samples[0].get(CUSTOM_ID),
        "response": {"status_code": status, "request_id": f"req_{digest}", "body": body},
        "error": None,
    }


def _failure(samples: list[Row]) -> tuple[int, dict[str, Any]]:
    error = next(sample["error"] for sample in samples if sample["error"] is not None)
    status = _STATUS.get(error["type"], 400 if error["stage"] == "stage" else 500)
    kind = "invalid_request_error" if status < 500 else "server_error"
    return status, {"error": {"message": error["message"], "type": kind, "param": None, "code": error["type"]}}


def _success(digest: str, samples: list[Row], job: Job) -> dict[str, Any]:
    is_completion = url_of(samples[0].get(URL), json.loads(samples[0][BODY])) == COMPLETIONS_URL
    to_choice = _completion_choice if is_completion else _chat_choice
    return {
        "id": f"cmpl-{digest}" if is_completion else f"chatcmpl-{digest}",
        "object": "text_completion" if is_completion else "chat.completion",
        "created": job.created,
        "model": job.model,
        "choices": [to_choice(sample, job.token_text) for sample in samples],
        "usage": _usage(samples),
    }


def _usage(samples: list[Row]) -> dict[str, Any]:
    """Tokens of a request: its prompt counts once, and as cached what its first sample found in the cache."""
    num_prompt = samples[0]["num_prompt_tokens"]
    num_output = sum(sample["num_output_tokens"] for sample in samples)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_output,
        "total_tokens": num_prompt + num_output,
        "prompt_tokens_details": {"cached_tokens": samples[0]["num_cached_tokens"]},
    }


def _chat_choice(sample: Row, token_text: Callable[[int], str]) -> dict[str, Any]:
    logprobs = sample.get("logprobs")
    return {
        "index": sample["sample_index"],
        "message": {"role": "assistant", "content": sample["output_text"], "refusal": None},
        "logprobs": logprobs and {"content": [_chat_token(token, token_text) for token in logprobs], "refusal": None},
        "finish_reason": sample["finish_reason"],
    }


def _chat_token(token: Row, token_text: Callable[[int], str]) -> dict[str, Any]:
    alternatives = zip(token["top_token_ids"], token["top_logprobs"], strict=True)
    top = [_named(token_text(token_id), logprob) for token_id, logprob in alternatives]
    return _named(token_text(token["token_id"]), token["logprob"]) | {"top_logprobs": top}


def _named(text: str, logprob: float) -> dict[str, Any]:
    """A token by its text. Part of a character has no text of its own, and no bytes that could be told from it."""
    return {"token": text, "logprob": logprob, "bytes": None if "\ufffd" in text else list(text.encode())}


def _completion_choice(sample: Row, token_text: Callable[[int], str]) -> dict[str, Any]:
    logprobs = sample.get("logprobs")
    return {
        "index": sample["sample_index"],
        "text": sample["output_text"],
        "logprobs": logprobs and _completion_logprobs(logprobs, token_text),
        "finish_reason": sample["finish_reason"],
    }


def _completion_logprobs(tokens: list[Row], token_text: Callable[[int], str]) -> dict[str, Any]:
    texts = [token_text(token["token_id"]) for token in tokens]
    offsets = [0]
    for text in texts[:-1]:
        offsets.append(offsets[-1] + len(text))
    return {
        "tokens": texts,
        "token_logprobs": [token["logprob"] for token in tokens],
        "top_logprobs": [
            {token_text(i): logprob for i, logprob in zip(token["top_token_ids"], token["top_logprobs"], strict=True)}
            for token in tokens
        ],
        "text_offset": offsets,
    }
