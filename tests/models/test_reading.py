from tests.models.dialects import DIALECTS


def test_x():
    assert DIALECTS
