"""POST /slots/{id}, as llama-server has it, and what it asks of who sends it."""

import json

import pytest

from spillcache.errors import (
    NotReady,
    Overloaded,
    SlotFileInvalid,
    SlotFileIOError,
    SlotFileMissing,
    SlotFileNoMemory,
    SlotFileNoRoom,
    SlotFilesOff,
)

JSON = {"Content-Type": "application/json"}


def act(http, action, slot=0, body='{"filename": "a.bin"}', **headers):
    return http.post(
        f"/slots/{slot}", params={"action": action}, content=body, headers=JSON | headers
    )


def test_save_and_restore_have_llama_servers_fields(http, service):
    assert act(http, "save").json() == {
        "id_slot": 0,
        "filename": "a.bin",
        "n_saved": 84,
        "n_written": 14309796,
        "timings": {"save_ms": 49.5},
    }
    assert act(http, "restore", 1).json() == {
        "id_slot": 1,
        "filename": "a.bin",
        "n_restored": 84,
        "n_read": 14309796,
        "timings": {"restore_ms": 49.5},
    }
    assert service.asked == [("save", 0, "a.bin"), ("restore", 1, "a.bin")]


@pytest.mark.parametrize("body", ["", "{}", '{"filename": "a"}'])
def test_erase_needs_no_name(http, body):
    assert act(http, "erase", 1, body).json() == {"id_slot": 1, "n_erased": 84}


@pytest.mark.parametrize(
    ("action", "slot", "body", "param"),
    [
        ("", 0, "{}", "action"),
        ("delete", 0, "{}", "action"),
        ("save", "x", "{}", "id_slot"),
        ("save", "-1", "{}", "id_slot"),
        ("save", "1" * 30, "{}", "id_slot"),
        ("save", 0, "{}", "filename"),
        ("restore", 0, '{"filename": null}', "filename"),
        ("restore", 0, '{"filename": 5}', "filename"),
        ("restore", 0, "[", None),
        ("save", 0, "", None),
    ],
)
def test_what_is_not_understood_is_400(http, service, action, slot, body, param):
    answer = act(http, action, slot, body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    if param is not None:
        assert error["param"] == param
    assert not service.asked


@pytest.mark.parametrize(
    ("error", "status", "type_", "kind"),
    [
        (SlotFilesOff("x"), 501, "not_supported_error", "invalid"),
        (SlotFileInvalid("x"), 400, "invalid_request_error", "invalid"),
        (SlotFileMissing("x"), 404, "not_found_error", "invalid"),
        (SlotFileNoRoom("x"), 507, "server_error", "storage"),
        (SlotFileNoMemory("x"), 503, "unavailable_error", "memory"),
        (SlotFileIOError("x"), 500, "server_error", "io"),
    ],
)
def test_each_failure_has_its_status_and_kind(http, service, error, status, type_, kind):
    service.script.refuse = error
    answer = act(http, "save")
    assert answer.status_code == status
    assert answer.json() == {
        "error": {"message": "x", "type": type_, "param": None, "code": error.code, "kind": kind}
    }
    assert ("Retry-After" in answer.headers) == (status == 503)


def test_a_file_that_has_its_name_all_the_same_is_said_to(http, service):
    service.script.refuse = SlotFileIOError("x")
    service.script.refuse.published = True
    assert act(http, "save").json()["error"]["published"] is True


def test_other_errors_are_as_everywhere(http, service):
    service.script.refuse = Overloaded("x")
    assert act(http, "save").status_code == 429
    service.script.refuse = NotReady("x")
    assert act(http, "save").status_code == 503


# Who may ask.


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; b=c"]
)
def test_what_a_form_could_send_is_refused(http, service, kind):
    answer = act(http, "erase", **{"Content-Type": kind})
    assert (answer.status_code, answer.json()["error"]["code"]) == (415, "SLOT_NOT_JSON")
    assert not service.asked


def test_json_may_have_a_charset(http):
    assert act(http, "erase", **{"Content-Type": "Application/JSON; charset=utf-8"}).is_success


def test_pages_of_other_sites_are_refused(http, service):
    answer = act(http, "erase", Origin="https://evil.example")
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "REQUEST_FORBIDDEN")
    assert not service.asked


def test_the_servers_own_pages_are_not(http):
    assert act(http, "erase", Origin=str(http.base_url).rstrip("/")).is_success


@pytest.mark.parametrize("service_options", [{"api_keys": ("key",)}])
def test_an_api_key_does_not_make_up_for_it(http, service):
    key = {"Authorization": "Bearer key"}
    assert act(http, "erase").status_code == 401
    assert act(http, "erase", Origin="null", **key).status_code == 403
    assert act(http, "erase", **key).is_success


@pytest.mark.parametrize("service_options", [{"allowed_origins": ("https://ours.example",)}])
def test_a_trusted_origin_is_not_foreign(http):
    assert act(http, "erase", Origin="https://ours.example").is_success
    assert act(http, "erase", Origin="https://other.example").status_code == 403


# /slots.


def test_slots_show_what_an_action_does_with_one(http, service):
    service.actions = {1: "restore"}
    listed = http.get("/slots").json()
    assert [each.get("action") for each in listed] == [None, "restore"]
    assert "filename" not in json.dumps(listed)
