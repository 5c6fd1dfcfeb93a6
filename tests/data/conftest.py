import pytest
from staging_helpers import byte_tokenizer


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory):
    return byte_tokenizer(tmp_path_factory.mktemp("byte_model"))
