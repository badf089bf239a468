"""A chat template is somebody else's program: it renders as in transformers, and it cannot do harm."""

from __future__ import annotations

import sys
import time

import pytest

from pagechat.daemon.errors import RequestError
from pagechat.daemon.template import PLAIN_TEMPLATE, ChatTemplate

MESSAGES = [{"role": "system", "content": "be <brief> & \"kind\" 'now'"}, {"role": "user", "content": "hé\n\n  x"}]


def render(source: str, messages: list[dict[str, str]] = MESSAGES, **variables: str) -> str:
    return ChatTemplate(source, variables).render(messages)


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}<{{ m['role'] }}>{{ m.content | trim }}\n{% endfor %}{{ add_generation_prompt }}",
        "{{ bos_token }}{{ messages | tojson }}{{ messages | tojson(indent=2) }}",
        "{%- for m in messages %}\n    {%- if loop.last %}{% break %}{% endif %}\n    {{ m.role }}\n{%- endfor %}",
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
        "{% if tools is none and documents is none %}no tools{% endif %}{{ undefined_thing }}",
        "{% macro turn(m) %}[{{ m.role }}]{% endmacro %}{% for m in messages %}{{ turn(m) }}{% endfor %}",
        "{{ messages[0].content.split('brief')[-1] ~ 'x' * 3 ~ dict(a=1) }}",
    ],
)
def test_renders_as_transformers_does(source: str) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    expected, _ = render_jinja_template([MESSAGES], chat_template=source, add_generation_prompt=True, bos_token="<s>")
    assert render(source, bos_token="<s>") == expected[0]


def test_strftime_now_gives_todays_date() -> None:
    assert render("{{ strftime_now('%Y') }}") == time.strftime("%Y")


def test_the_plain_form_for_base_models() -> None:
    messages = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]
    assert render(PLAIN_TEMPLATE, messages) == "user: 2+2?\nassistant: 4\nassistant:"


def test_a_refusal_of_the_template_is_a_bad_request_with_its_words() -> None:
    with pytest.raises(RequestError, match="System role not supported") as caught:
        render("{{ raise_exception('System role not supported') }}")
    assert caught.value.code == "bad_request"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{% set ns = namespace() %}{% set ns._x = 1 %}",
        "{{ 'a' * 10**9 }}",
        "{{ 10**(10**10) }}",
        "{{ 1 // 0 }}",
        "{{ nothing.attribute }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% include '/etc/passwd' %}",
    ],
)
def test_what_a_template_may_not_do_is_a_bad_request(source: str) -> None:
    with pytest.raises(RequestError) as caught:
        render(source)
    assert caught.value.code == "bad_request"


@pytest.mark.parametrize(
    "body",
    ["{% set x = 1 %}", "{{ '' }}"],
    ids=["writes nothing", "writes empty pieces"],
)
def test_a_template_that_does_not_end_is_stopped(body: str) -> None:
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}" + body + "{% endfor %}{% endfor %}"
    template = ChatTemplate(endless, {}, time_limit_s=0.1)
    started = time.monotonic()
    with pytest.raises(RequestError, match="does not end"):
        template.render(MESSAGES)
    assert time.monotonic() - started < 3
    assert sys.gettrace() is None or "coverage" in sys.modules


def test_a_template_that_writes_too_much_is_stopped() -> None:
    with pytest.raises(RequestError, match="more than"):
        render("{% for a in range(99999) %}{{ 'x' * 1000 }}{% endfor %}")


def test_a_source_that_is_no_template_is_told_at_once() -> None:
    with pytest.raises(RequestError, match="does not compile"):
        ChatTemplate("{% for %}", {})


def test_documents_are_the_clients_to_give_and_no_text_of_theirs_is_too_much_for_the_limit() -> None:
    template = ChatTemplate("{% for one in documents or [] %}{{ one.text }}{% endfor %}", {})
    assert template.render(MESSAGES) == ""
    long = "x" * 1_000_000
    assert template.render(MESSAGES, variables={"documents": [{"text": long}]}) == long


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt", "bos_token"])
def test_a_variable_that_is_set_here_is_refused(name: str) -> None:
    with pytest.raises(RequestError, match=f"may not have {name}:"):
        ChatTemplate("x", {"bos_token": "<s>"}).render(MESSAGES, variables={name: "y"})
