import json

import pytest

from blendserve_core.perf.model_spec import ModelSpec
from blendserve_core.perf.presets import MODELS, model_spec

LLAMA_3_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
TINY = {
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "vocab_size": 128,
}


def test_llama_3_8b_has_its_published_number_of_parameters():
    spec = ModelSpec.from_config(LLAMA_3_8B)
    assert spec.num_stored_parameters == 8_030_261_248
    assert spec.num_parameters == 8_030_261_248 - 2 * 128256 * 4096
    assert spec.kv_bytes_per_token == 131_072


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama-3-8b", 8.03),
        ("llama-3-70b", 70.55),
        ("llama-2-7b", 6.74),
        ("qwen-2.5-7b", 7.62),
        ("qwen-2.5-72b", 72.71),
        ("deepseek-67b", 67.42),
    ],
)
def test_presets_have_their_published_sizes(name, billions):
    assert model_spec(name).num_stored_parameters / 1e9 == pytest.approx(billions, abs=0.01)


def test_every_preset_is_named_as_it_is_called():
    assert [model_spec(name).name for name in MODELS] == list(MODELS)


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_parameters_are_counted_as_transformers_builds_them(model_type, tied):
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(model_type, **TINY, tie_word_embeddings=tied, head_dim=24)
    model = transformers.AutoModelForCausalLM.from_config(config)
    assert ModelSpec.from_config(config.to_dict()).num_stored_parameters == model.num_parameters()


def test_without_key_value_heads_every_head_has_its_own():
    spec = ModelSpec.from_config({**TINY, "num_key_value_heads": None})
    assert spec.num_kv_heads == spec.num_heads


def test_one_key_value_head_is_multi_query_attention():
    assert ModelSpec.from_config({**TINY, "num_key_value_heads": 1}).kv_width == 16


def test_dtype_decides_the_bytes_of_kv():
    half, full = (ModelSpec.from_config(TINY, dtype=dtype).kv_bytes_per_token for dtype in ("bfloat16", "float32"))
    assert full == 2 * half


def test_a_folder_with_a_config_is_a_model(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_3_8B))
    assert model_spec(str(tmp_path)).num_parameters == model_spec("llama-3-8b").num_parameters


def test_an_unknown_model_lists_the_presets():
    with pytest.raises(ValueError, match="llama-3-8b"):
        model_spec("no-such-model")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None}, "hidden_size=None"),
        ({"dtype": "int3"}, "int3"),
        ({"num_local_experts": 8}, "mixture-of-experts"),
        ({"num_attention_heads": 5}, "no multiple"),
    ],
)
def test_a_config_that_cannot_be_costed_says_why(change, message):
    with pytest.raises(ValueError, match=message):
        ModelSpec.from_config({**TINY, **change})


def test_tensor_parallel_must_divide_the_heads():
    with pytest.raises(ValueError, match="tensor_parallel=8"):
        model_spec("qwen-2.5-7b", tensor_parallel=8)
