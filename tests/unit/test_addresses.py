"""Where a token may be sent: the whole host decides, in every client."""

from __future__ import annotations

import pytest

from holdfast.addresses import Origin, api_at, is_loopback
from holdfast.api.oidc import Oidc, OidcOptions
from holdfast.errors import UsageError
from holdfast.toolkit.cli.http_transport import HttpTransport
from holdfast.toolkit.client.api import Api
from holdfast.worker.transports.remote import Remote

IN_THE_CLEAR = [
    "http://holdfast.example",
    "http://127.0.0.1.example.invalid",
    "http://localhost.example.invalid:8080",
    "http://10.0.0.1:8080",
    "http://[::2]:8080",
    "http://127.1",
]


@pytest.mark.parametrize("url", ["https://holdfast.example", "http://127.0.0.1:8080", "http://[::1]:8080", "http://localhost"])
def test_https_and_loopback_urls_may_get_a_token(url: str):
    assert api_at(url, with_token=True).keeps_secrets


@pytest.mark.parametrize("url", IN_THE_CLEAR)
def test_plain_http_gets_a_token_only_if_allowed(url: str):
    with pytest.raises(UsageError, match="HOLDFAST_PLAIN_HTTP"):
        api_at(url, with_token=True)
    assert api_at(url, with_token=True, plain_http=True) == api_at(url, with_token=False) == Origin.of(url)


@pytest.mark.parametrize(
    "url", ["", "localhost:8080", "ftp://x", "http://127.0.0.1@evil.example", "http://127.0.0.1\\@evil", "http:///x"]
)
def test_ambiguous_url_is_refused(url: str):
    with pytest.raises(UsageError, match="address of the API must start with http"):
        api_at(url, with_token=False)


@pytest.mark.parametrize("url", IN_THE_CLEAR)
@pytest.mark.parametrize("sender", [HttpTransport, Api, Remote])
def test_every_client_checks_the_url_before_sending_a_token(sender: type[HttpTransport] | type[Api] | type[Remote], url: str):
    with pytest.raises(UsageError, match="HOLDFAST_PLAIN_HTTP"):
        sender(url, "secret")
    sender(url, None)
    sender(url, "secret", plain_http=True)


def test_token_function_counts_as_a_token():
    with pytest.raises(UsageError, match="HOLDFAST_PLAIN_HTTP"):
        Remote("http://holdfast.example", lambda: "secret")


@pytest.mark.parametrize("url", IN_THE_CLEAR)
def test_identity_provider_url_must_be_safe(url: str):
    with pytest.raises(UsageError, match="https"):
        Oidc(OidcOptions(url, "holdfast"))
    with pytest.raises(UsageError, match="https"):
        Oidc(OidcOptions("https://id.example", "holdfast", jwks_url=url))


def test_proxy_environment_variables_are_ignored(monkeypatch: pytest.MonkeyPatch):
    """What goes to this machine in the clear goes to this machine."""
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.example:3128")

    for client in (HttpTransport("http://127.0.0.1:1", "secret")._client, Api("http://127.0.0.1:1", "secret")._http):
        assert not client._mounts


def test_loopback_check_compares_the_whole_host():
    assert is_loopback("127.0.0.2")
    assert not is_loopback("127.0.0.1.example.invalid")
