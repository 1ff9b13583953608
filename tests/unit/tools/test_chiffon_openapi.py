"""The document for machines is what the code says."""

from __future__ import annotations

from tools import chiffon_openapi


def test_the_file_is_current() -> None:
    assert chiffon_openapi.main(["--check"]) == 0


def test_every_route_and_every_status_is_there() -> None:
    found = chiffon_openapi.document()
    assert set(found["paths"]) == {"/api/agent/register", "/api/agent/message", "/api/agent/messages"}
    statuses = set(found["paths"]["/api/agent/message"]["post"]["responses"])
    assert statuses == {"200", "202", "400", "401", "405", "408", "413", "415", "422", "429", "503", "504"}
