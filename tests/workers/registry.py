"""The stream `__registry__` as its readers see it."""

from __future__ import annotations

from typing import Any

import httpx2

PATH = "__registry__"


def listed(http: httpx2.Client) -> set[str]:
    """The paths that the registry says there are: the fold of its events."""
    entities: dict[str, Any] = {}
    offset = "-1"
    while True:
        answer = http.get(f"/v1/stream/{PATH}", params={"offset": offset})
        if answer.status_code == 404:
            return set()
        assert answer.status_code == 200, answer.text
        for event in answer.json():
            if event["headers"]["operation"] == "delete":
                assert event["key"] in entities, f"{event['key']} is deleted twice"
                del entities[event["key"]]
            else:
                entities[event["key"]] = event["value"]
        offset = answer.headers["stream-next-offset"]
        if "stream-up-to-date" in answer.headers:
            return set(entities)


def is_true(http: httpx2.Client, prefix: str) -> bool:
    """Whether the registry has exactly the streams that there are below a prefix."""
    page = http.get("/v1/streams", params={"prefix": prefix, "limit": 1000})
    if page.status_code == 503:
        return False
    there = {each["path"] for each in page.json()["streams"]}
    return there == {path for path in listed(http) if path.startswith(prefix)}
