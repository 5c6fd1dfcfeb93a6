import json

import pytest
from tiny_tokenizer import TEMPLATE, save_byte_level, save_metaspace

from blendserve_core.text.tokenizer import PromptTokenizer


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    return save_byte_level(tmp_path_factory.mktemp("model"))


def test_text_comes_back_byte_for_byte(model_folder):
    tokenizer = PromptTokenizer.load(model_folder)
    for text in ["Say hi.", " two  spaces ", "👩🏽\u200d🚀 é vs e\u0301", "a\x00b\u2028c\x85d", "اكتب كلمة"]:
        assert tokenizer.decode(tokenizer.encode_text(text)) == text


def test_messages_are_rendered_by_the_template_and_get_no_second_bos(model_folder):
    tokenizer = PromptTokenizer.load(model_folder)
    messages = [{"role": "user", "content": "Hi."}]
    bos, *rest = tokenizer.encode_messages(messages)
    assert tokenizer.render(messages) == "<s>user: Hi.\nassistant:"
    assert tokenizer.encode_text("Hi.")[0] == bos
    assert bos not in rest


def test_a_tokenizer_without_a_default_bos_gets_none(tmp_path):
    tokenizer = PromptTokenizer.load(save_byte_level(tmp_path, add_bos=False))
    assert tokenizer.decode(tokenizer.encode_text("Hi.")[:1]) == "H"


def test_a_refusal_of_the_template_is_a_value_error_with_its_words(model_folder):
    tokenizer = PromptTokenizer.load(model_folder)
    with pytest.raises(ValueError, match="roles must alternate"):
        tokenizer.render([{"role": "user", "content": "One."}, {"role": "user", "content": "Two."}])


def test_a_model_without_a_template_says_so(tmp_path):
    tokenizer = PromptTokenizer.load(save_byte_level(tmp_path, template=None))
    with pytest.raises(ValueError, match="no chat template"):
        tokenizer.encode_messages([{"role": "user", "content": "Hi."}])


def test_end_tokens_come_from_the_generation_config_and_the_tokenizer(tmp_path):
    save_byte_level(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))
    assert PromptTokenizer.load(tmp_path).eos_token_ids == (7, 9, 1)


def test_end_tokens_fall_back_to_the_model_config(tmp_path):
    save_byte_level(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": 5, "vocab_size": 9000}))
    tokenizer = PromptTokenizer.load(tmp_path)
    assert tokenizer.eos_token_ids == (5, 1)
    assert tokenizer.vocab_size == 9000


def test_many_texts_encode_as_one_by_one(tmp_path):
    tokenizer = PromptTokenizer.load(save_metaspace(tmp_path, template=TEMPLATE))
    texts = ["Say hi.", "", "Grüße 👩🏽"]
    assert tokenizer.encode_texts(texts) == [tokenizer.encode_text(text) for text in texts]
    assert tokenizer.encode_texts([]) == []


@pytest.fixture
def model_with_code(tmp_path):
    """A model folder whose tokenizer is a Python file of its own, which leaves a mark where it is run."""
    folder, mark = save_byte_level(tmp_path / "model"), tmp_path / "was-run"
    (folder / "tokenization_own.py").write_text(f"open({str(mark)!r}, 'w')\nclass OwnTokenizer: pass\n")
    own = {"auto_map": {"AutoTokenizer": ["tokenization_own.OwnTokenizer", None]}, "tokenizer_class": "OwnTokenizer"}
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | own))
    (folder / "config.json").write_text('{"model_type": "own", "auto_map": {"AutoConfig": "tokenization_own.X"}}')
    return folder, mark


def test_code_that_comes_with_a_model_is_never_run(model_with_code):
    folder, mark = model_with_code
    with pytest.raises(ValueError, match="code of its own, which is never run"):
        PromptTokenizer.load(folder)
    assert not mark.exists()


def test_a_folder_without_a_tokenizer_is_named(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ValueError, match=f"{tmp_path}: no tokenizer that can be read"):
        PromptTokenizer.load(tmp_path)
