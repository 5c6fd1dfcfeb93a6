"""The parameters of a request's body: which are served, which change no text, and which a batch cannot serve."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from blendserve_core.text.printable import quoted

Body = dict[str, Any]
_INT64 = range(-(2**63), 2**63)

# They say who asks, how the answer is delivered or what is kept of it, but not what the text is.
IGNORED = frozenset(
    ["model", "stream", "stream_options", "user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key"]
)
# Served only with a value that asks for nothing special.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "logit_bias": ({},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "use_beam_search": (False,),
    "min_tokens": (0,),
    "skip_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
}
CHAT_NAMES = frozenset(["messages", "max_completion_tokens", "top_logprobs"])
COMPLETION_NAMES = frozenset(["prompt"])


def to_whole(name: str, value: Any) -> int:
    """A whole number of 64 bits, also one written as 8.0. Raises ValueError."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or value != value // 1 or int(value) not in _INT64:
        raise ValueError(f"{name} is {quoted(value)}; it must be a whole number of 64 bits")
    return int(value)


def to_number(name: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or (isinstance(value, int) and value not in _INT64):
        raise ValueError(f"{name} is {quoted(value)}; it must be a number")
    return float(value)


def to_flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{name} is {quoted(value)}; it must be true or false")
    return value


def to_stops(name: str, value: Any) -> list[str]:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise ValueError(f"{name} is {quoted(value)}; it must be a string or a list of strings")
    return stops


def to_token_ids(name: str, value: Any) -> list[int]:
    if not isinstance(value, list):
        raise ValueError(f"{name} is {quoted(value)}; it must be a list of token ids")
    return [to_whole(name, token_id) for token_id in value]


def to_json(name: str, value: Any) -> str:
    """An object, as JSON text."""
    if not isinstance(value, dict):
        raise ValueError(f"{name} is {quoted(value)}; it must be an object")
    return json.dumps(value, ensure_ascii=False)


# Parameters that both kinds of request share, under their own names; the last five are those of open servers.
SHARED: dict[str, Callable[[str, Any], Any]] = {
    "max_tokens": to_whole,
    "temperature": to_number,
    "top_p": to_number,
    "n": to_whole,
    "seed": to_whole,
    "stop": to_stops,
    "presence_penalty": to_number,
    "frequency_penalty": to_number,
    "response_format": to_json,
    "top_k": to_whole,
    "min_p": to_number,
    "repetition_penalty": to_number,
    "stop_token_ids": to_token_ids,
    "ignore_eos": to_flag,
}


def refuse_others(body: Body, own: frozenset[str]) -> None:
    """Raises ValueError naming every parameter that is unknown, or that a batch cannot serve with this value."""
    served = SHARED.keys() | own | IGNORED | {"logprobs"}
    others = {name: value for name, value in body.items() if name not in served and value is not None}
    unknown = [quoted(name) for name in others if name not in NEUTRAL]
    unserved = [
        f"{name} {quoted(value)} is not served" for name, value in others.items() if value not in NEUTRAL.get(name, (value,))
    ]
    problems = [f"unknown parameters: {', '.join(unknown)}"] if unknown else []
    if problems or unserved:
        raise ValueError("; ".join([*problems, *unserved]))
