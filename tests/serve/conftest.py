"""Fixtures of the HTTP side: a scripted service behind a real loopback socket."""

import anthropic
import httpx
import openai
import pytest
from fake_service import FakeService
from loopback import served

from spillcache.serve.app import create_app


@pytest.fixture
def service_options():
    """Fields of ServeConfig; tests override it by parametrising."""
    return {}


@pytest.fixture
def service(service_options):
    fake = FakeService(**service_options)
    yield fake
    fake.stop(print)


class Switch:
    """One server for all tests; each puts its application in."""

    def __init__(self):
        self.app = None

    async def __call__(self, scope, receive, send):
        await self.app(scope, receive, send)


@pytest.fixture(scope="session")
def loopback():
    switch = Switch()
    with served(switch) as address:
        yield switch, address


@pytest.fixture
def url(loopback, service):
    switch, address = loopback
    switch.app = create_app(service)
    return address


@pytest.fixture
def http(url):
    with httpx.Client(base_url=url, timeout=10) as client:
        yield client


@pytest.fixture
def ai(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=10) as client:
        yield client


@pytest.fixture
def claude(url):
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=10) as client:
        yield client
