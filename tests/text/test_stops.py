import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_tokenizer import save_byte_level, save_metaspace

from blendserve_core.text.stops import StopWatcher
from blendserve_core.text.tokenizer import PromptTokenizer


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    return {
        "byte-level": PromptTokenizer.load(save_byte_level(tmp_path_factory.mktemp("byte_level"))),
        "metaspace": PromptTokenizer.load(save_metaspace(tmp_path_factory.mktemp("metaspace"))),
    }


class NaiveWatcher:
    """Decodes every token so far after each token."""

    def __init__(self, tokenizer, stops):
        self.tokenizer, self.stops, self.token_ids = tokenizer, stops, []

    def push(self, token_id):
        self.token_ids.append(token_id)
        text = self.tokenizer.decode(self.token_ids).rstrip("\ufffd")
        return any(stop in text for stop in self.stops)


@pytest.mark.parametrize("kind", ["byte-level", "metaspace"])
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_the_window_finds_what_decoding_everything_finds(tokenizers, kind, data):
    tokenizer = tokenizers[kind]
    token_ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1) | st.integers(259, 420), max_size=120))
    text = tokenizer.decode(token_ids).replace("\ufffd", "")
    stops = data.draw(st.lists(_substrings(text) | st.text(min_size=1, max_size=4), min_size=1, max_size=3))
    watcher, naive = StopWatcher(tokenizer), NaiveWatcher(tokenizer, stops)
    watcher.add(0, stops)
    for token_id in token_ids:
        stopped = naive.push(token_id)
        assert watcher.push(0, token_id) == stopped
        if stopped:
            break


def _substrings(text):
    if not text:
        return st.nothing()
    starts = st.integers(0, len(text) - 1)
    return st.tuples(starts, st.integers(1, 30)).map(lambda span: text[span[0] : span[0] + span[1]])


def test_a_stop_string_across_tokens_ends_the_text_right_before_it(tokenizers):
    tokenizer = tokenizers["byte-level"]
    token_ids = tokenizer.encode_texts(["alpha beta gamma"], is_rendered=True)[0]
    watcher = StopWatcher(tokenizer)
    watcher.add(3, ["a bet"])
    is_stopped = [watcher.push(3, token_id) for token_id in token_ids]
    assert any(is_stopped)
    assert watcher.final_text(token_ids[: is_stopped.index(True) + 1], ["a bet"]) == ("alph", True)


def test_the_earliest_of_overlapping_stop_strings_wins(tokenizers):
    tokenizer = tokenizers["byte-level"]
    token_ids = tokenizer.encode_texts(["A\nB\n\nC"], is_rendered=True)[0]
    assert StopWatcher(tokenizer).final_text(token_ids, ["\n\n", "\nB"]) == ("A", True)


def test_a_character_cut_short_leaves_no_replacement_character(tokenizers):
    tokenizer = tokenizers["byte-level"]
    token_ids = tokenizer.encode_texts(["ok 漢"], is_rendered=True)[0]
    assert tokenizer.decode(token_ids[:-1]).endswith("\ufffd")
    assert StopWatcher(tokenizer).final_text(token_ids[:-1], []) == ("ok ", False)
    assert StopWatcher(tokenizer).final_text(token_ids, []) == ("ok 漢", False)


def test_the_window_stays_short_however_long_the_text(tokenizers):
    tokenizer = tokenizers["byte-level"]
    decoded = []
    watcher = StopWatcher(_Recording(tokenizer, decoded))  # pyright: ignore[reportArgumentType]
    watcher.add(0, ["never there"])
    for token_id in tokenizer.encode_texts(["Is it even? Answer yes or no. " * 50], is_rendered=True)[0]:
        assert not watcher.push(0, token_id)
    assert max(decoded) < 100


class _Recording:
    def __init__(self, tokenizer, decoded):
        self.tokenizer, self.decoded = tokenizer, decoded

    def decode(self, token_ids):
        self.decoded.append(len(token_ids))
        return self.tokenizer.decode(token_ids)


def test_requests_without_stop_strings_and_dropped_ones_are_not_watched(tokenizers):
    tokenizer = tokenizers["byte-level"]
    (token_id,) = tokenizer.encode_texts(["H"], is_rendered=True)[0]
    watcher = StopWatcher(tokenizer)
    watcher.add(0, [])
    watcher.add(1, ["H"])
    watcher.drop(1)
    assert not watcher.push(0, token_id)
    assert not watcher.push(1, token_id)
