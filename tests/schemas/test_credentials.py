import pytest

from blendserve_core.job.prepare import prepare
from schemas.credentials import refuse_credentials, without_credentials
from schemas.parameters import JobParameters

SECRETS = [
    ("s3://AKIA:hunter2@bucket/rows.parquet", "s3://AKIA:***@bucket/rows.parquet"),
    ("sftp://me:p:w@host/x?a=1", "sftp://me:***@host/x?a=1"),
    ("https://host/x?X-Amz-Signature=hunter2&b=2", "https://host/x?X-Amz-Signature=***&b=2"),
    ("https://account.blob/x?sv=1&sig=hunter2", "https://account.blob/x?sv=1&sig=***"),
    ("https://host/x?access_token=hunter2#top", "https://host/x?access_token=***#top"),
]
PLAIN = ["runs/a:b@c.parquet", "s3://bucket/day=1/*.parquet", "sftp://me@host:22/x", "https://host/x?version=2", "openai/gsm8k"]


@pytest.mark.parametrize(("address", "shown"), SECRETS)
def test_credentials_are_never_shown(address, shown):
    assert without_credentials(address) == shown
    with pytest.raises(ValueError, match="holds a credential") as refused:
        refuse_credentials("requests", address)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("address", PLAIN)
def test_addresses_without_credentials_pass(address):
    assert without_credentials(address) == address
    refuse_credentials("requests", address)


@pytest.mark.parametrize("field", ["requests", "output"])
def test_a_job_whose_addresses_hold_credentials_ends_before_it_leaves_a_trace(field, tmp_path):
    fields = {"requests": str(tmp_path / "x.parquet"), "output": str(tmp_path / "out")}
    parameters = JobParameters.model_validate(fields | {field: "s3://AKIA:hunter2@bucket/x"})
    with pytest.raises(ValueError, match=f"{field}: .*holds a credential"):
        prepare(parameters)
    assert "hunter2" not in parameters.title
    assert not list(tmp_path.iterdir())
