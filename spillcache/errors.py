"""Every error that spillcache raises on purpose.

    SpillcacheError            the root                                     INTERNAL
    ├── ConfigError            a flag or setting that can't be meant        CONFIG_INVALID
    ├── StoreError             the store could not do it                    KV_STORE
    │   ├── StoreLocationError the directory can't hold a store             KV_STORE_LOCATION
    │   ├── StoreFormatError   another format, or not ours                  KV_STORE_FORMAT
    │   ├── StoreIOError       the filesystem failed (never corruption)     KV_STORE_IO
    │   ├── StoreIndexError    the LMDB index failed                        KV_METADATA_IO
    │   ├── StoreFullError     no room, even after eviction                 KV_STORE_FULL
    │   ├── ObjectMissing      gone between lookup and read: a miss         KV_OBJECT_MISSING
    │   └── CorruptBlock       bytes that are not what was written          KV_SNAPSHOT_CORRUPT
    ├── EngineError            the engine could not do it                   ENGINE
    │   ├── ModelLoadError     no such model, not GGUF, not enough memory   ENGINE_MODEL
    │   ├── EngineLibraryError the llama.cpp library is missing or too old  ENGINE_LIBRARY
    │   ├── ContextFullError   no cell left for another token               ENGINE_CONTEXT_FULL
    │   ├── DecodeError        a decode call failed                         ENGINE_DECODE
    │   └── StateRejected      the engine refused a block's state           ENGINE_STATE_REJECTED
    ├── BenchError             a measurement could not be taken             BENCH_FAILED
    ├── ServerSilent           no server answers where one was asked        SERVER_SILENT
    └── RequestError           a client's request can't be served           REQUEST_INVALID
        ├── PromptTooLong      more tokens than the context holds           REQUEST_PROMPT_TOO_LONG
        ├── Unsupported        understood, but not offered                  REQUEST_UNSUPPORTED
        │   └── NotOffered     llama-server has it, this server has not     REQUEST_NOT_OFFERED
        ├── BodyTooLarge       more bytes than the server reads             REQUEST_TOO_LARGE
        ├── HeadersTooLarge    a larger head than the server reads          REQUEST_HEAD_TOO_LARGE
        ├── BodyTooLate        the body took too long to come               REQUEST_TIMEOUT
        ├── Unauthorized       no key, or a wrong one                       REQUEST_UNAUTHORIZED
        ├── Forbidden          a foreign Host, or a foreign page            REQUEST_FORBIDDEN
        ├── Overloaded         the queue is full                            SERVER_OVERLOADED
        ├── NotReady           the model loads, or the server stops         SERVER_NOT_READY
        └── SlotFileError      a slot could not be saved or restored        SLOT_FILE
            ├── SlotFilesOff       no --slot-save-path                      SLOT_FILES_OFF
            ├── SlotNotJson        the body is not said to be JSON          SLOT_NOT_JSON
            ├── SlotFileInvalid    a name or a file that can't be taken     SLOT_FILE_INVALID
            ├── SlotFileMissing    no file of that name                     SLOT_FILE_MISSING
            ├── SlotFileNoRoom     no space on the filesystem               SLOT_FILE_NO_ROOM
            ├── SlotFileNoMemory   not enough memory, or context            SLOT_FILE_NO_MEMORY
            └── SlotFileIOError    a read, write, flush or rename failed    SLOT_FILE_IO

Each has a stable ``code`` that HTTP answers and metrics carry. A message says what happened, what
was done about it and what to do, in a sentence that a person can act on; it never holds prompt
text.
"""

from typing import ClassVar, Literal


class SpillcacheError(Exception):
    """The root of the tree."""

    code: ClassVar[str] = "INTERNAL"


class ConfigError(SpillcacheError):
    """A flag or setting that can't be meant."""

    code = "CONFIG_INVALID"


class StoreError(SpillcacheError):
    """Anything that the store on disk could not do."""

    code = "KV_STORE"


class StoreLocationError(StoreError):
    """The directory can't hold a store: a file, read-only, a network filesystem, another user's."""

    code = "KV_STORE_LOCATION"


class StoreFormatError(StoreError):
    """The directory holds a store of another format, or files that are not ours."""

    code = "KV_STORE_FORMAT"


class StoreIOError(StoreError):
    """A read or write failed (EIO, EMFILE, permission); nothing is deleted because of it."""

    code = "KV_STORE_IO"


class StoreIndexError(StoreError):
    """The LMDB index failed."""

    code = "KV_METADATA_IO"


class StoreFullError(StoreError):
    """No room for an object, even after eviction."""

    code = "KV_STORE_FULL"


class ObjectMissing(StoreError):
    """An object went away between lookup and read: evicted, or another process took it. A miss."""

    code = "KV_OBJECT_MISSING"


class CorruptBlock(StoreError):
    """Bytes on disk are not those that were written.

    The object is quarantined; the chain is shorter.
    """

    code = "KV_SNAPSHOT_CORRUPT"


class EngineError(SpillcacheError):
    """Anything that the engine could not do."""

    code = "ENGINE"


class ModelLoadError(EngineError):
    """The model file is missing, not GGUF, damaged, or does not fit into memory."""

    code = "ENGINE_MODEL"


class EngineLibraryError(EngineError):
    """The llama.cpp library is missing or lacks a function that is needed."""

    code = "ENGINE_LIBRARY"


class ContextFullError(EngineError):
    """The context has no free cell for the tokens of this call; nothing was changed."""

    code = "ENGINE_CONTEXT_FULL"


class DecodeError(EngineError):
    """A decode call failed; the sequences in it are undefined and must be cleared."""

    code = "ENGINE_DECODE"


class StateRejected(EngineError):
    """The engine refused a block's state; the sequence must be cleared."""

    code = "ENGINE_STATE_REJECTED"
    blocks = 1
    """One of so many was refused, and it is not known which."""


class BenchError(SpillcacheError):
    """A measurement could not be taken: the server under it failed, or did what it should not."""

    code = "BENCH_FAILED"


class ServerSilent(SpillcacheError):
    """No server of ours answers at the URL that a command was to ask."""

    code = "SERVER_SILENT"


class RequestError(SpillcacheError):
    """A client's request can't be served.

    ``status`` is the HTTP status, ``param`` the field at fault.
    """

    code = "REQUEST_INVALID"
    status: ClassVar[int] = 400

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class PromptTooLong(RequestError):
    """The prompt, with room for one token of answer, does not fit into a slot's context."""

    code = "REQUEST_PROMPT_TOO_LONG"


class Unsupported(RequestError):
    """The field is understood but this server does not offer it; ignoring it would be a lie."""

    code = "REQUEST_UNSUPPORTED"


class NotOffered(Unsupported):
    """Something of llama-server's own that this server, or its model, does not have."""

    code = "REQUEST_NOT_OFFERED"
    status = 501


class BodyTooLarge(RequestError):
    """The request's body is larger than the server reads, or holds too many values."""

    code = "REQUEST_TOO_LARGE"
    status = 413


class HeadersTooLarge(RequestError):
    """The request's head is larger than the server reads, or has too many fields."""

    code = "REQUEST_HEAD_TOO_LARGE"
    status = 431


class BodyTooLate(RequestError):
    """The request's body did not come within ``--timeout``."""

    code = "REQUEST_TIMEOUT"
    status = 408


class Unauthorized(RequestError):
    """The API key is missing or wrong."""

    code = "REQUEST_UNAUTHORIZED"
    status = 401


class Forbidden(RequestError):
    """The request names another server, another site's page sent it, or it is about others."""

    code = "REQUEST_FORBIDDEN"
    status = 403


class Overloaded(RequestError):
    """The request queue is full, or there is no room for the body beside others'; try again."""

    code = "SERVER_OVERLOADED"
    status = 429


class NotReady(RequestError):
    """The model is loading, or the server is stopping."""

    code = "SERVER_NOT_READY"
    status = 503


SlotFileKind = Literal["invalid", "storage", "memory", "io"]


class SlotFileError(RequestError):
    """A slot could not be saved to its file, or restored from it.

    ``kind`` is what ``error.kind`` says; ``published``: the new file has its name all the same.
    """

    code = "SLOT_FILE"
    status = 500
    kind: ClassVar[SlotFileKind] = "io"
    published = False


class SlotFilesOff(SlotFileError):
    """Slot files are not offered: no ``--slot-save-path``, or a library that can't move state."""

    code = "SLOT_FILES_OFF"
    status = 501
    kind = "invalid"


class SlotNotJson(SlotFileError):
    """A slot action whose body is not declared as JSON: any page's form could send it."""

    code = "SLOT_NOT_JSON"
    status = 415
    kind = "invalid"


class SlotFileInvalid(SlotFileError):
    """A name that is none, or a file that is damaged, of another namespace, or over the limits."""

    code = "SLOT_FILE_INVALID"
    status = 400
    kind = "invalid"


class SlotFileMissing(SlotFileError):
    """There is no file of that name."""

    code = "SLOT_FILE_MISSING"
    status = 404
    kind = "invalid"


class SlotFileNoRoom(SlotFileError):
    """The filesystem has no room for the file, and for what is to stay free."""

    code = "SLOT_FILE_NO_ROOM"
    status = 507
    kind = "storage"


class SlotFileNoMemory(SlotFileError):
    """The file does not fit into memory, or its tokens not into the context beside what runs."""

    code = "SLOT_FILE_NO_MEMORY"
    status = 503
    kind = "memory"


class SlotFileIOError(SlotFileError):
    """A system call failed or hangs, or the engine did not take the state."""

    code = "SLOT_FILE_IO"
