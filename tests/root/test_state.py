import pytest

from spillcache.state import Geometry, Part


def test_part_numbers_are_on_disk() -> None:
    assert {part.name: part.value for part in Part} == {"KV": 1, "WINDOW": 2, "BOUNDARY": 3}


@pytest.mark.parametrize(
    ("geometry", "parts"),
    [
        (Geometry(), (Part.KV,)),
        (Geometry(window_blocks=8), (Part.KV, Part.WINDOW)),
        (Geometry(has_boundary=True, boundary_stride=16), (Part.KV, Part.BOUNDARY)),
        (Geometry(has_kv=False, has_boundary=True), (Part.BOUNDARY,)),
        (Geometry(window_blocks=1, has_boundary=True), (Part.KV, Part.WINDOW, Part.BOUNDARY)),
    ],
)
def test_parts_follow_the_geometry(geometry: Geometry, parts: tuple[Part, ...]) -> None:
    assert geometry.parts == parts


@pytest.mark.parametrize(
    ("prompt", "blocks", "recurrent"),
    [(0, 0, 0), (1, 0, 0), (64, 1, 0), (65, 1, 1), (128, 2, 1), (129, 2, 2), (8192, 128, 127)],
)
def test_recurrent_state_can_not_go_back_by_the_last_token(
    prompt: int, blocks: int, recurrent: int
) -> None:
    assert Geometry(block_tokens=64).blocks_reusable(prompt) == blocks
    assert Geometry(block_tokens=64, has_boundary=True).blocks_reusable(prompt) == recurrent
