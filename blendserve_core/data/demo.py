"""Demo requests: three families of opposite demand, from the documentation topics that come with every Python.

Classifying is nearly all prefill, most of it shared; writing is nearly all decode; answering lies between.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from blendserve_core.data.durable import written_whole

_TOPICS_BY_LABEL = {
    "statement": "assert assignment break continue del for if import raise return try while with",
    "class": "attribute-access attribute-references callable-types class customization types",
    "number": "binary bitwise floating integers numbers numeric-types power shifting typesnumeric unary",
    "text": "formatstrings string-methods strings",
    "collection": "dict lists sequence-types slicings subscriptions typesmapping typesseq typesseq-mutable",
    "debugging": "debugger exceptions execmodel",
}
_QUESTIONS = (
    "What is this passage about? Answer in one sentence.",
    "Which terms does this passage explain? List them.",
    "What should a programmer remember from this passage?",
    "Which mistake does this passage help to avoid?",
)
_TUTORIAL = (
    "Write a section of a Python tutorial for beginners about '{topic}'. Explain the idea in your own words, show short "
    "examples with their output, and end with an exercise. These notes say what it is about:\n\n{passage}"
)
_SEED = 7


def write_demo_requests(path: Path, *, num_classify: int = 160, num_answer: int = 100, num_tutorial: int = 40) -> None:
    """Write the requests as Parquet with request_id, task, messages and max_tokens; equal for equal Python versions."""
    order = random.Random(_SEED)
    requests = [*_classify(order, num_classify), *_answer(order, num_answer), *_tutorial(order, num_tutorial)]
    order.shuffle(requests)
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as temporary:
        pq.write_table(pa.Table.from_pylist(requests, _SCHEMA), temporary)


_SCHEMA = pa.schema(
    [
        ("request_id", pa.string()),
        ("task", pa.string()),
        ("messages", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
        ("max_tokens", pa.int32()),
    ]
)


def _classify(order: random.Random, num_requests: int) -> Iterator[dict[str, Any]]:
    """One label for a passage, after the same instructions and examples for all."""
    by_label = {label: [t for name in names.split() for t in _passages(name)] for label, names in _TOPICS_BY_LABEL.items()}
    examples = {label: order.choice(passages) for label, passages in by_label.items()}
    shown = [f"Passage: {text}\nLabel: {label}" for label, text in examples.items()]
    instructions = f"Label each passage of Python's documentation with one of: {', '.join(_TOPICS_BY_LABEL)}."
    asked = sorted({text for passages in by_label.values() for text in passages} - set(examples.values()))
    order.shuffle(asked)
    for number, text in enumerate(_cycled(asked, num_requests)):
        prompt = "\n\n".join([instructions, *shown, f"Passage: {text}\nLabel:"])
        yield _request("classify", number, prompt, max_tokens=2)


def _answer(order: random.Random, num_requests: int) -> Iterator[dict[str, Any]]:
    """Several questions about each passage, which comes first and so is shared."""
    passages = [text for name in sorted(topics) for text in _passages(name)]
    order.shuffle(passages)
    asked = [(text, question) for text in passages for question in _QUESTIONS]
    for number, (text, question) in enumerate(_cycled(asked, num_requests)):
        yield _request("answer", number, f"{text}\n\n{question}", max_tokens=64)


def _tutorial(order: random.Random, num_requests: int) -> Iterator[dict[str, Any]]:
    """A long text about a topic."""
    noted = [(name, passages[0]) for name in sorted(topics) if (passages := _passages(name))]
    order.shuffle(noted)
    for number, (name, text) in enumerate(_cycled(noted, num_requests)):
        yield _request("tutorial", number, _TUTORIAL.format(topic=name, passage=text), max_tokens=order.choice((256, 320, 384)))


def _request(task: str, number: int, prompt: str, max_tokens: int) -> dict[str, Any]:
    messages = [{"role": "user", "content": prompt}]
    return {"request_id": f"{task}-{number:04d}", "task": task, "messages": messages, "max_tokens": max_tokens}


def _passages(name: str) -> list[str]:
    """Paragraphs of running text of a topic, of some 25 to 100 words; none where this Python has no such topic."""
    paragraphs = re.split(r"\n\s*\n", topics.get(name, ""))
    running = [" ".join(text.split()) for text in paragraphs if text[:1].isalpha()]
    return [text for text in running if 160 <= len(text) <= 640 and not text.endswith(":")]


def _cycled(items: list[Any], count: int) -> Iterator[Any]:
    return (items[i % len(items)] for i in range(count))
