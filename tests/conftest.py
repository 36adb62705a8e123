"""Set-up for all tests."""

from __future__ import annotations

from hypothesis import settings

# Tests run side by side on few cores: how long one example takes says nothing.
settings.register_profile("penstock", deadline=None)
settings.load_profile("penstock")
