"""Tiny tokenizers of the two common kinds, saved as model folders."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if not loop.first and message['role'] == messages[loop.index0 - 1]['role'] %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)
CORPUS = ["Say hi. Is it even? Answer yes or no. alpha beta gamma", "user: assistant: one two three", "é 👩🏽 🚀 Grüße"] * 4


def save_byte_level(folder: Path, *, template: str | None = TEMPLATE, add_bos: bool = True) -> Path:
    """Byte-level BPE, as in Llama 3, Qwen and SmolLM: a token may end in the middle of a character."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return _save(tokenizer, folder, alphabet, template, add_bos)


def save_metaspace(folder: Path, *, template: str | None = TEMPLATE, add_bos: bool = True) -> Path:
    """BPE with spaces as word marks and bytes as fallback, as in Llama 2 and Mistral: decoding strips the first space."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(content=" ", left=1)]
    )
    return _save(tokenizer, folder, [chr(i) for i in range(32, 127)], template, add_bos)


def _save(tokenizer: Tokenizer, folder: Path, alphabet: list[str], template: str | None, add_bos: bool) -> Path:
    special = ["<s>", "</s>", "<unk>"]
    bytes_ = [f"<0x{i:02X}>" for i in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=900, special_tokens=special + bytes_, initial_alphabet=alphabet, show_progress=False, limit_alphabet=400
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    if add_bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    fast.chat_template = template
    fast.save_pretrained(folder)
    return folder
