"""What is read from a config.json, as transformers 4 and 5 write it, and what is refused."""

from __future__ import annotations

import pytest

from blendserve_core.engine.model.config import ModelConfig

LLAMA = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 2048,
}


def read(**changes: object) -> ModelConfig:
    return ModelConfig.from_dict(LLAMA | changes)


def test_keys_left_out_take_their_defaults() -> None:
    config = read()
    assert (config.num_kv_heads, config.head_dim, config.rope.theta, config.rms_norm_eps) == (4, 16, 10_000.0, 1e-6)
    assert not any((config.tie_word_embeddings, config.qkv_bias, config.output_bias, config.mlp_bias, config.qk_norm))


def test_qwen2_has_biases_that_its_config_does_not_mention() -> None:
    config = read(model_type="qwen2")
    assert config.qkv_bias
    assert not config.output_bias


def test_qwen3_heads_are_128_wide_unless_stated() -> None:
    assert read(model_type="qwen3").head_dim == 128
    assert read(model_type="qwen3", head_dim=32).head_dim == 32


def test_old_and_new_spellings_of_rope_scaling_are_one() -> None:
    scaling = {"factor": 2.0}
    old = read(rope_theta=5e5, rope_scaling={"type": "linear", **scaling})
    new = read(rope_parameters={"rope_type": "linear", "rope_theta": 5e5, **scaling})
    assert old == new
    assert new.rope.rope_type == "linear"


def test_llama3_scaling_falls_back_on_the_stated_context() -> None:
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    assert read(rope_scaling=rope).rope.scaling["original_max_position_embeddings"] == 2048


def test_yarn_added_by_hand_lengthens_the_context() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
    assert read(rope_scaling=yarn).max_context_tokens == 8192


def test_a_window_shorter_than_the_context_is_refused() -> None:
    with pytest.raises(ValueError, match="sliding_window 1024 is shorter than the context of 2048"):
        read(model_type="mistral", sliding_window=1024)


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "mistral", "sliding_window": 4096},
        {"model_type": "mistral", "sliding_window": None},
        {"model_type": "qwen2", "sliding_window": 1024, "use_sliding_window": False},
    ],
)
def test_a_window_that_cuts_nothing_is_served(changes: dict[str, object]) -> None:
    assert read(**changes).max_context_tokens == 2048


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mixtral"}, "'mixtral' is not served"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "'longrope' is not served"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantized weights"),
    ],
)
def test_what_would_be_computed_wrongly_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(**changes)
