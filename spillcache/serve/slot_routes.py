"""POST /slots/{id}: llama-server's way to save, restore and erase a slot."""

import re
from typing import Any, cast, get_args

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict

from spillcache.errors import SlotFileInvalid, SlotNotJson
from spillcache.serve.door import Door, SlotAction
from spillcache.serve.request_body import read_body
from spillcache.serve.slot_actions import SlotDone
from spillcache.serve.text_thread import in_text_thread

_MOST_DIGITS = 9


class SlotBody(BaseModel):
    """What a slot action is told."""

    model_config = ConfigDict(strict=True, extra="ignore")

    filename: str | None = None


def slot_router(service: Door) -> APIRouter:
    """The routes over ``service``."""
    router = APIRouter()

    @router.post("/slots/{id_slot}")
    async def act(request: Request, id_slot: str) -> Response:
        _check_kind(request)
        action = _action(request)
        slot = _slot(id_slot)
        body = await _body(request, action)
        name = body.filename or ""
        done = await in_text_thread(lambda: service.slot_action(action, slot, name))
        return JSONResponse(_answer(action, slot, name, done))

    return router


def _check_kind(request: Request) -> None:
    """Raise SlotNotJson for what any web page could send; whose pages may, the guards have seen."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise SlotNotJson("slot actions want the header Content-Type: application/json")


def _action(request: Request) -> SlotAction:
    action = request.query_params.get("action", "")
    known = get_args(SlotAction)
    if action not in known:
        raise SlotFileInvalid(f"action: write ?action={'|'.join(known)}", param="action")
    return cast("SlotAction", action)


def _slot(text: str) -> int:
    if not re.fullmatch(rf"[0-9]{{1,{_MOST_DIGITS}}}", text):
        raise SlotFileInvalid("id_slot: it is not a slot's number", param="id_slot")
    return int(text)


async def _body(request: Request, action: SlotAction) -> SlotBody:
    if action == "erase" and not await request.body():
        return SlotBody()
    body = await read_body(request, SlotBody)
    if action != "erase" and body.filename is None:
        raise SlotFileInvalid("filename: it is missing", param="filename")
    return body


def _answer(action: SlotAction, slot: int, name: str, done: SlotDone) -> dict[str, Any]:
    """In llama-server's words."""
    if action == "erase":
        return {"id_slot": slot, "n_erased": done.tokens}
    counts = ("n_saved", "n_written") if action == "save" else ("n_restored", "n_read")
    return {
        "id_slot": slot,
        "filename": name,
        counts[0]: done.tokens,
        counts[1]: done.size_bytes,
        "timings": {f"{action}_ms": round(1000 * done.seconds, 3)},
    }
