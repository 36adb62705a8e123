from __future__ import annotations

from penstock import limits


def test_every_limit_is_a_plain_number_with_its_unit_last() -> None:
    values = {name: value for name, value in vars(limits).items() if name.isupper()}
    assert all(isinstance(value, int | float) and value >= 0 for value in values.values())


def test_an_offset_can_name_every_position_a_client_can_count() -> None:
    assert limits.OFFSET_PART_MAX >= limits.INTEGER_MAX
