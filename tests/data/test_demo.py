from collections import Counter

import pyarrow.parquet as pq

from blendserve_core.data.demo import write_demo_requests


def test_there_are_three_families_of_at_least_three_hundred_requests(tmp_path):
    write_demo_requests(tmp_path / "made" / "requests.parquet")
    requests = pq.read_table(tmp_path / "made" / "requests.parquet")
    assert requests.schema.names == ["request_id", "task", "messages", "max_tokens"]
    assert Counter(requests.column("task").to_pylist()) == {"classify": 160, "answer": 100, "tutorial": 40}
    assert len(set(requests.column("request_id").to_pylist())) == 300
    assert len(set(map(str, requests.column("messages").to_pylist()))) > 280


def test_the_requests_are_the_same_each_time(tmp_path):
    write_demo_requests(tmp_path / "a.parquet")
    write_demo_requests(tmp_path / "b.parquet")
    assert pq.read_table(tmp_path / "a.parquet").equals(pq.read_table(tmp_path / "b.parquet"))


def test_classifying_shares_instructions_and_examples(tmp_path):
    write_demo_requests(tmp_path / "requests.parquet")
    rows = pq.read_table(tmp_path / "requests.parquet").to_pylist()
    prompts = [row["messages"][0]["content"] for row in rows if row["task"] == "classify"]
    shared = prompts[0].rindex("Passage: ")
    assert shared > 1000
    assert {prompt[:shared] for prompt in prompts} == {prompts[0][:shared]}
    assert all(prompt.endswith("\nLabel:") for prompt in prompts)
