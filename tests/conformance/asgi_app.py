"""Penstock as an ASGI application, set up by environment variable, for any ASGI server to run."""

from __future__ import annotations

import json
import os

import penstock

app = penstock.asgi(**json.loads(os.environ["CONFORMANCE_SETTINGS"]))
