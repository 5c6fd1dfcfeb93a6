import pytest
from hypothesis import given
from hypothesis import strategies as st

from blendserve_core.data.row_error import RowError
from blendserve_core.text.printable import printable, quoted


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Grüße, 日本 😀", "Grüße, 日本 😀"),
        ("red \x1b[31m and a bell \x07", r"red \x1b[31m and a bell \x07"),
        ("two\nlines\r", r"two\nlines\r"),
        ("turned \u202e around\u2028", r"turned \u202e around\u2028"),
        ("half \ud83d a pair", r"half \ud83d a pair"),
    ],
)
def test_what_steers_a_terminal_or_a_log_is_escaped(text, shown):
    assert printable(text) == shown


def test_long_text_is_cut():
    assert printable("x" * 30, max_chars=10) == "x" * 10 + " ..."
    assert len(quoted(["y" * 10_000] * 10_000)) < 1000


@given(st.text())
def test_any_text_becomes_one_printable_line(text):
    assert printable(text).isprintable()
    assert quoted(text).isprintable()


def test_messages_of_error_rows_are_printable():
    assert (
        RowError("invalid_messages", "chat template: \x1b]0;gotcha\x07{0}%s").message
        == r"chat template: \x1b]0;gotcha\x07{0}%s"
    )
