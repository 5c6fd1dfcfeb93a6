import pyarrow as pa
import pytest

from blendserve_core.data.columns import resolve_columns
from blendserve_core.data.output_schema import output_schema

TEXT = pa.string()
MESSAGES = pa.list_(pa.struct([("content", pa.large_string()), ("name", pa.null()), ("role", pa.string_view())]))


def resolve(fields, mapping=None):
    return resolve_columns(pa.schema(list(fields.items())), mapping or {})


def test_each_kind_of_prompt_is_found_by_name():
    assert resolve({"prompt": TEXT, "x": TEXT}).prompt_kind == "prompt"
    assert resolve({"messages": MESSAGES}).prompt_kind == "messages"
    assert resolve({"prompt_token_ids": pa.list_(pa.int16())}).prompt_kind == "prompt_token_ids"


def test_columns_can_be_mapped_and_left_unused():
    fields = {"question": TEXT, "id": pa.int64(), "n": TEXT, "tokens": pa.int32()}
    columns = resolve(fields, {"prompt": "question", "request_id": "id", "n": "", "max_tokens": "tokens"})
    assert (columns.prompt, columns.request_id, columns.sampling) == ("question", "id", {"max_tokens": "tokens"})


def test_a_mapping_chooses_between_several_prompts():
    fields = {"prompt": TEXT, "messages": MESSAGES}
    with pytest.raises(ValueError, match=r"more than one prompt column: messages, prompt\..*--column messages="):
        resolve(fields)
    assert resolve(fields, {"prompt": "prompt"}).prompt_kind == "prompt"


@pytest.mark.parametrize(
    ("fields", "mapping", "message"),
    [
        ({"text": TEXT}, {}, "no prompt column.*the input has text.*Map yours"),
        ({"text": TEXT}, {"prompt": "txt"}, "no column 'txt' for 'prompt'.*has: text"),
        ({"prompt": TEXT}, {"promt": "prompt"}, "'promt' is no column of ours"),
        ({"prompt": pa.int64()}, {}, "column 'prompt' is int64, but prompt needs text"),
        ({"messages": pa.list_(TEXT)}, {}, "messages needs a list of structs with role and content"),
        ({"messages": pa.list_(pa.struct([("role", TEXT)]))}, {}, "needs a list of structs"),
        ({"prompt_token_ids": pa.list_(pa.float32())}, {}, "needs lists of integers"),
        ({"prompt": TEXT, "n": TEXT}, {}, "column 'n' is string, but n needs numbers; --column n= leaves it unused"),
        ({"prompt": TEXT, "stop": pa.int8()}, {}, "stop needs lists of strings"),
        ({"prompt": TEXT, "request_id": pa.list_(TEXT)}, {}, "request_id needs single values"),
    ],
)
def test_what_cannot_be_a_job_is_refused_with_the_way_out(fields, mapping, message):
    with pytest.raises(ValueError, match=message):
        resolve(fields, mapping)


@pytest.mark.parametrize("text", [pa.large_string(), pa.string_view(), pa.binary(), pa.dictionary(pa.int8(), TEXT), pa.null()])
def test_a_prompt_may_have_any_type_of_text(text):
    assert resolve({"prompt": text}).prompt == "prompt"


def test_added_columns_follow_the_input_and_never_replace_it():
    schema = output_schema(pa.schema([("prompt", TEXT), ("logprobs", pa.int8())]), has_request_id=False, wants_logprobs=True)
    assert schema.names[:4] == ["prompt", "logprobs", "request_id", "sample_index"]
    assert "output_logprobs" in schema.names
    with pytest.raises(ValueError, match="output_text"):
        output_schema(pa.schema([("prompt", TEXT), ("output_text", TEXT)]), has_request_id=True, wants_logprobs=False)
