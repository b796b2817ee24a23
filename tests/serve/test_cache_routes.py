import pytest

from spillcache.cache.spill import Flushed


def test_a_flush_tells_what_became_durable(http, service):
    response = http.post("/cache/flush")
    assert response.status_code == 200
    assert response.json() == {
        "durable": True,
        "blocks": 12,
        "bytes": 3456,
        "seconds": 0.25,
        "left": 0,
    }
    assert service.flushes == [60.0]


def test_a_flush_that_is_not_over_in_time_goes_on(http, service):
    service.flushed = Flushed(1, 2, 5.0, 7, complete=False)
    response = http.post("/cache/flush?timeout_s=5")
    assert response.status_code == 202
    assert (response.json()["durable"], response.json()["left"]) == (False, 7)
    assert service.flushes == [5.0]


def test_a_disk_that_fails_is_unavailable(http, service):
    service.flushed = Flushed(0, 0, 0.1, 3, complete=True, problem="paused after KV_STORE_IO")
    response = http.post("/cache/flush")
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"
    assert response.json()["left"] == 3
    error = response.json()["error"]
    assert error["message"] == "3 blocks are not on disk: paused after KV_STORE_IO"
    assert error["code"] == "KV_STORE"


@pytest.mark.parametrize("seconds", ["soon", "-1", "601", "nan", "inf", ""])
def test_a_time_that_can_not_be_meant(http, service, seconds):
    response = http.post("/cache/flush", params={"timeout_s": seconds})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "timeout_s"
    assert not service.flushes


@pytest.mark.parametrize("service_options", [{"api_keys": ("k",)}])
def test_a_flush_needs_the_key(http, service):
    assert http.post("/cache/flush").status_code == 401
    assert http.post("/cache/flush", headers={"X-Api-Key": "k"}).status_code == 200
    assert len(service.flushes) == 1
