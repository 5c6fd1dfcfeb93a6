"""From response formats to compiled grammars over a model's vocabulary. Importing this takes seconds."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import xgrammar

from blendserve_core.structured.formats import BadFormat, ResponseFormat, UnsupportedFormat
from blendserve_core.structured.unenforced import check_regex, check_schema
from blendserve_core.text.tokenizer import PromptTokenizer

# Small models go on with white space for ever where they may.
MAX_WHITE_SPACE = 20
CACHE_BYTES, NUM_KEPT = 256 * 2**20, 64
_SOURCE_LINE = re.compile(r"^\[[\d:]+\] \S+: ")
# In strings with a length, xgrammar allows control characters, which JSON does not.
_BOUNDED_CHARACTER, _JSON_CHARACTER = r"[^\"\\\r\n]", r"[^\0-\x1f\"\\\r\n]"
_REGEX_PARTS = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\.", re.DOTALL)


class FormatCompiler:
    """Compiles formats for one vocabulary, and keeps those that were used last.

    Objects hold no property that their schema does not name, and properties come in the schema's order.
    """

    def __init__(self, tokenizer: Any, vocab_size: int, eos_token_ids: Sequence[int], num_threads: int) -> None:
        self.vocab_size = vocab_size
        self.eos_token_ids = list(eos_token_ids)
        self.num_threads = num_threads
        self._compiler = xgrammar.GrammarCompiler(
            _vocabulary(tokenizer, vocab_size, self.eos_token_ids), max_threads=num_threads, cache_limit_bytes=CACHE_BYTES
        )
        self._compile_once = lru_cache(maxsize=NUM_KEPT)(self._compile)

    @classmethod
    def load(cls, model_folder: Path, num_threads: int) -> FormatCompiler:
        """For the tokenizer of a model folder."""
        tokenizer = PromptTokenizer.load(model_folder)
        return cls(tokenizer.pretrained, tokenizer.vocab_size, tokenizer.eos_token_ids, num_threads)

    def compile(self, response_format: ResponseFormat) -> xgrammar.CompiledGrammar:
        """Raises BadFormat for what is no schema, regex or grammar, UnsupportedFormat for what could not be promised."""
        try:
            return self._compile_once(response_format)
        except RuntimeError as error:
            message = f"{response_format.kind}: {_SOURCE_LINE.sub('', str(error)).strip()}"
            raise (UnsupportedFormat if "not supported" in message else BadFormat)(message) from error

    def _compile(self, response_format: ResponseFormat) -> xgrammar.CompiledGrammar:
        text = response_format.text
        if response_format.kind == "regex":
            check_regex(text)
            return self._compiler.compile_regex(_without_line_breaks(text))
        if response_format.kind == "grammar":
            return self._compiler.compile_grammar(text)
        schema = '{"type": "object"}' if response_format.kind == "json_object" else text
        check_schema(json.loads(schema))
        grammar = str(xgrammar.Grammar.from_json_schema(schema, max_whitespace_cnt=MAX_WHITE_SPACE))
        return self._compiler.compile_grammar(grammar.replace(_BOUNDED_CHARACTER, _JSON_CHARACTER))


def _without_line_breaks(regex: str) -> str:
    """A dot matches no line break, as everywhere but in xgrammar."""
    return _REGEX_PARTS.sub(lambda part: r"[^\n]" if part.group() == "." else part.group(), regex)


def _vocabulary(tokenizer: Any, vocab_size: int, eos_token_ids: list[int]) -> xgrammar.TokenizerInfo:
    """Special tokens have no text here, as they have none in the output; the end tokens are the ones that end a text."""
    found = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=vocab_size, stop_token_ids=eos_token_ids or None)
    texts = list(found.decoded_vocab)
    special = {token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special}
    for token_id in special | set(tokenizer.all_special_ids):
        if token_id < vocab_size:
            texts[token_id] = b""
    return xgrammar.TokenizerInfo(
        texts,
        xgrammar.VocabType.RAW,
        vocab_size=vocab_size,
        stop_token_ids=eos_token_ids,
        add_prefix_space=found.add_prefix_space,
    )
