import json

import pytest
from staging_helpers import parameters

from blendserve_core.data.fingerprint import fingerprint_parts, job_fingerprint, lengths_key


@pytest.fixture
def model_folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 2048}))
    (tmp_path / "generation_config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(bytes(5 << 20))
    return tmp_path


def changed(model_folder, before, **options):
    after = fingerprint_parts(parameters("x", **options), "digest", model_folder)
    return {part for part in after if after[part] != before.get(part)}


@pytest.fixture
def before(model_folder):
    return fingerprint_parts(parameters("x"), "digest", model_folder)


def test_the_same_job_has_the_same_fingerprint(model_folder):
    first = job_fingerprint(fingerprint_parts(parameters("x"), "digest", model_folder))
    assert first == job_fingerprint(fingerprint_parts(parameters("x"), "digest", model_folder))
    assert first != job_fingerprint(fingerprint_parts(parameters("x"), "other digest", model_folder))


def key(model_folder, **options):
    job = parameters("x", **options)
    return lengths_key(job, fingerprint_parts(job, "digest", model_folder))


@pytest.mark.parametrize(
    "options", [{"sampling": {"seed": 1, "max_tokens": 9}}, {"dtype": "float32"}, {"columns": {"request_id": "id"}}]
)
def test_lengths_are_found_again_with_other_settings(model_folder, options):
    assert key(model_folder, **options) == key(model_folder)


@pytest.mark.parametrize("options", [{"limit": 5}, {"columns": {"prompt": "question"}}])
def test_lengths_are_not_taken_from_other_prompts(model_folder, options):
    assert key(model_folder, **options) != key(model_folder)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"limit": 5}, "limit"),
        ({"dtype": "float32"}, "dtype"),
        ({"columns": {"prompt": "question"}}, "columns.prompt"),
        ({"sampling": {"seed": 1}}, "sampling.seed"),
        ({"sampling": {"response_format": '{"type": "json_object"}'}}, "sampling.response_format"),
    ],
)
def test_options_that_change_an_output_change_the_fingerprint_and_say_which(model_folder, before, options, part):
    assert changed(model_folder, before, **options) == {part}


@pytest.mark.parametrize(
    "options",
    [{"policy": "random"}, {"shards": 4}, {"engine": {"max_step_tokens": 64}}, {"engine": {"kv_cache_tokens": 4096}}],
)
def test_how_the_work_is_done_is_no_part_of_it(model_folder, before, options):
    assert changed(model_folder, before, **options) == set()


def test_a_pool_smaller_than_the_context_bounds_the_outputs(model_folder, before):
    assert changed(model_folder, before, engine={"kv_cache_tokens": 1024}) == {"context"}


@pytest.mark.parametrize("offset", [0, (5 << 20) - 1])
def test_a_changed_weight_changes_the_weights_part(model_folder, before, offset):
    content = bytearray((model_folder / "model.safetensors").read_bytes())
    content[offset] = 1
    (model_folder / "model.safetensors").write_bytes(content)
    assert changed(model_folder, before) == {"weights"}


def test_a_new_chat_template_changes_the_part_of_its_name(model_folder, before):
    (model_folder / "chat_template.jinja").write_text("{{ messages }}")
    assert changed(model_folder, before) == {"chat template"}
