"""Text to token ids and back, as the model's own tokenizer and chat template have it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from blendserve_core.text.chat_template import ChatTemplate, Conversation, Rendered


class PromptTokenizer:
    """A model folder's tokenizer, with the few operations a batch job needs.

    ``eos_token_ids`` are the ids that end a text of their own accord. ``vocab_size`` is the number of ids the model knows,
    which may be more than the tokenizer has names for. ``pretrained`` is transformers' own object.
    """

    def __init__(self, tokenizer: Any, eos_token_ids: tuple[int, ...], vocab_size: int) -> None:
        self._tokenizer = self.pretrained = tokenizer
        self.folder = Path(tokenizer.name_or_path)
        self.eos_token_ids = eos_token_ids
        self.vocab_size = vocab_size

    @classmethod
    def load(cls, model_folder: Path) -> PromptTokenizer:
        """Read the tokenizer of a local model folder. Raises ValueError where it has none that can be read.

        Code that comes with a model is never run; there is no switch for it.
        """
        tokenizer = _load_pretrained(model_folder)
        config = _read_json(model_folder / "config.json")
        generation = _read_json(model_folder / "generation_config.json")
        vocab_size = max(len(tokenizer), _text_config(config).get("vocab_size") or 0)
        return cls(tokenizer, _eos_token_ids(generation, config, tokenizer.eos_token_id), vocab_size)

    def encode_text(self, text: str) -> list[int]:
        """Token ids of a plain prompt; a BOS is added only where the tokenizer does so by default."""
        return self.encode_texts([text])[0]

    def encode_texts(self, texts: Sequence[str], *, is_rendered: bool = False) -> list[list[int]]:
        """Token ids of many texts at once. ``is_rendered`` texts come from a chat template and bring their own BOS."""
        if not texts:
            return []
        add_special_tokens = not is_rendered
        return self._tokenizer(list(texts), add_special_tokens=add_special_tokens, return_attention_mask=False, verbose=False)[
            "input_ids"
        ]

    def encode_messages(self, messages: Conversation) -> list[int]:
        """Token ids of a conversation up to where the assistant's answer begins. Errors as in :meth:`render`."""
        return self.encode_texts([self.render(messages)], is_rendered=True)[0]

    def render(self, messages: Conversation) -> str:
        """A conversation as the chat template writes it, open for the assistant's answer.

        Raises ValueError with its message where the template refuses the conversation.
        """
        (rendered,) = self.render_all([messages])
        if rendered.text is None:
            raise ValueError(rendered.problem)
        return rendered.text

    def render_all(self, conversations: Sequence[Conversation]) -> list[Rendered]:
        """Many conversations at once, each a text or what is wrong. Raises ValueError for a template that never ends."""
        if not self._tokenizer.chat_template:
            return [Rendered(None, "the model has no chat template: give a prompt column instead of messages")] * len(
                conversations
            )
        rendered = self._chat_template.render(conversations)
        return [one if one.text is not None else Rendered(None, f"chat template: {one.problem}") for one in rendered]

    @cached_property
    def _chat_template(self) -> ChatTemplate:
        return ChatTemplate(self._tokenizer.get_chat_template(), self._tokenizer.special_tokens_map)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids without special tokens; spaces are left as the model wrote them."""
        return self._tokenizer.decode(token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def _load_pretrained(model_folder: Path) -> Any:
    from transformers import AutoTokenizer  # takes seconds to import

    try:
        return AutoTokenizer.from_pretrained(model_folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # whatever is in the folder, it is the user's to mend
        if "trust_remote_code" in str(error):
            raise ValueError(
                f"{model_folder}: the tokenizer comes with code of its own, which is never run. "
                "Use a model whose tokenizer is a tokenizer.json alone."
            ) from error
        raise ValueError(f"{model_folder}: no tokenizer that can be read: {error}") from error


def _eos_token_ids(generation: dict[str, Any], config: dict[str, Any], own: int | None) -> tuple[int, ...]:
    """The generation config's ids (else the model config's), and the tokenizer's own."""
    found = generation.get("eos_token_id")
    if found is None:
        found = _text_config(config).get("eos_token_id")
    listed = found if isinstance(found, list) else [found]
    return tuple(dict.fromkeys(token_id for token_id in [*listed, own] if token_id is not None))


def _text_config(config: dict[str, Any]) -> dict[str, Any]:
    return config.get("text_config") or config


def _read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
