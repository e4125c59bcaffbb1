"""Settings of a service: who can be reached by others needs a token."""

from __future__ import annotations

import dataclasses

import pytest

from torchsdm.cli.serve import serve
from torchsdm.errors import InvalidInputError
from torchsdm.service import ServiceSettings

TOKEN = "0123456789abcdef"


def test_the_command_has_the_same_defaults():
    given = serve.make_context("serve", ["model"]).params
    fields = {one.name: one.default for one in dataclasses.fields(ServiceSettings)}
    fields["max_megabytes"] = fields.pop("max_body") / 1_000_000
    assert fields.pop("token") is None
    assert {name: given[name] for name in fields} == fields


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost"])
def test_loopback_needs_no_token(host):
    assert ServiceSettings(host=host).is_local


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.7", "example.org", ""])
def test_any_other_address_needs_a_token(host):
    with pytest.raises(InvalidInputError, match="a token is needed"):
        ServiceSettings(host=host)
    assert not ServiceSettings(host=host, token=TOKEN).is_local


def test_the_name_of_a_proxy_needs_a_token():
    with pytest.raises(InvalidInputError, match=r"sdm\.example\.org can be reached by others, so a token is needed"):
        ServiceSettings(allowed_hosts=("sdm.example.org",))
    assert not ServiceSettings(token=TOKEN, allowed_hosts=("sdm.example.org",)).is_local


@pytest.mark.parametrize("token", ["", "short", "with a\nline break in it", "ünïcödé-ünïcödé-ünïcödé"])
def test_a_token_that_could_be_guessed_or_not_be_sent_is_refused(token):
    with pytest.raises(InvalidInputError, match="at least 16"):
        ServiceSettings(token=token)


@pytest.mark.parametrize("name", ["max_inputs", "max_body", "max_waiting", "batch_rows", "body_seconds"])
def test_limits_are_positive(name):
    with pytest.raises(InvalidInputError, match=name):
        ServiceSettings(**{name: 0})
