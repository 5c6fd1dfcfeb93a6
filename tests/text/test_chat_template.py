import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from blendserve_core.text import chat_template as module
from blendserve_core.text.chat_template import ChatTemplate

HI = [{"role": "user", "content": "Hi."}]
BYE = [{"role": "user", "content": "Bye."}]
PLAIN = "{{ bos_token }}{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"


def only_for_bye(what):
    return "{% if messages[0]['content'] == 'Bye.' %}" + what + "{% endif %}ok"


def test_conversations_read_as_transformers_renders_them():
    answer = {"role": "assistant", "content": "Grüße 👩🏽", "thinking": "\u2028"}
    conversations = [[*HI, answer, {"role": "tool", "content": "{{ 7 * 7 }}"}], HI]
    expected, _ = render_jinja_template(conversations, chat_template=PLAIN, add_generation_prompt=True, bos_token="<s>")
    rendered = ChatTemplate(PLAIN, {"bos_token": "<s>"}).render(conversations)
    assert [one.text for one in rendered] == expected


def test_order_is_kept_over_many_conversations():
    conversations = [[{"role": "user", "content": str(number)}] for number in range(600)]
    rendered = ChatTemplate("{{ messages[0]['content'] }}", {}).render(conversations)
    assert [one.text for one in rendered] == [str(number) for number in range(600)]


@pytest.mark.parametrize(
    ("attack", "problem"),
    [
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ cycler.__init__.__globals__.os.system('id') }}", "unsafe"),
        ("{% include '/etc/passwd' %}", "loader"),
        ("{{ 'x' * 10**10 }}", "MemoryError"),
        ("{{ 'x' * (34 * 2**20) }}", "more than 33,554,432"),
        (
            "{% set ns = namespace(s='xx') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
            "MemoryError",
        ),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{% for i in range(10**9) %}{% endfor %}", "Range too big"),
    ],
)
def test_what_a_hostile_template_tries_is_an_error_of_that_row_alone(attack, problem):
    first, bad, last = ChatTemplate(only_for_bye(attack), {}).render([HI, BYE, HI])
    assert (first.text, bad.text, last.text) == ("ok", None, "ok")
    assert problem in bad.problem


ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
BIG_NUMBER = "{{ 9 ** (9 ** (9 ** (8 + messages | length))) }}"


@pytest.mark.parametrize("attack", [ENDLESS, BIG_NUMBER])
def test_a_template_that_never_ends_on_a_row_is_that_rows_error(attack):
    first, bad, last = ChatTemplate(only_for_bye(attack), {}, cpu_limit_s=1).render([HI, BYE, HI])
    assert (first.text, bad.text, last.text) == ("ok", None, "ok")
    assert "computes for more than 1 s" in bad.problem or "MemoryError" in bad.problem


def test_a_template_that_never_ends_at_all_stops_the_job(monkeypatch):
    monkeypatch.setattr(module, "_MAX_DEATHS", 2)
    template = ChatTemplate(ENDLESS, {}, cpu_limit_s=1)
    assert template.render([HI])[0].text is None
    with pytest.raises(ValueError, match="chat template cannot be used: it computes for more than 1 s"):
        template.render([HI])


def test_values_that_are_no_json_are_named_by_their_type():
    (rendered,) = ChatTemplate("{{ messages[0]['image'] }}", {}).render([[{"role": "user", "image": b"\x00"}]])
    assert rendered.text == "<bytes>"
