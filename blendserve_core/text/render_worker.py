"""The process in which a chat template runs: a JSON line tells it the template, each later one is a list of conversations."""

from __future__ import annotations

import json
import sys
from typing import Any

from transformers.utils.chat_template_utils import render_jinja_template

from blendserve_core.line_process import answer, limit_cpu, limit_memory
from blendserve_core.text.chat_template import MAX_RENDERED_CHARS, MEMORY_LIMIT_BYTES


def main() -> None:
    limit_memory(MEMORY_LIMIT_BYTES)
    answer("ready")
    template, special_tokens, cpu_limit_s = json.loads(sys.stdin.readline())
    answer("ready")
    for line in sys.stdin:
        answer([_render(messages, template, special_tokens, cpu_limit_s) for messages in json.loads(line)])


def _render(
    messages: list[dict[str, Any]], template: str, special_tokens: dict[str, Any], cpu_limit_s: int
) -> tuple[str | None, str]:
    """The conversation as text, or None and why there is none. transformers runs templates in Jinja's immutable sandbox."""
    limit_cpu(cpu_limit_s)
    try:
        rendered, _ = render_jinja_template([messages], chat_template=template, add_generation_prompt=True, **special_tokens)
    except Exception as error:  # whatever a template does with a conversation is that conversation's error
        return None, str(error) or type(error).__name__
    if len(rendered[0]) > MAX_RENDERED_CHARS:
        return None, f"it makes {len(rendered[0]):,} characters of the conversation, more than {MAX_RENDERED_CHARS:,}"
    return rendered[0], ""


if __name__ == "__main__":
    main()
