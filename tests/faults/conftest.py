"""Builds that are disturbed in every way; see README.md here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("outputs", "scenarios", "servers")

from scenarios import Scenarios  # noqa: E402  (imported behind that line, so that its asserts explain themselves)
from servers import BuildServer  # noqa: E402


@pytest.fixture(scope="session")
def server_of_the_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BuildServer]:
    with BuildServer(tmp_path_factory.mktemp("builds")) as server:
        yield server


@pytest.fixture
def server(server_of_the_session: BuildServer) -> Iterator[BuildServer]:
    """Starts builds. A test must leave none of their processes."""
    yield server_of_the_session
    left = server_of_the_session.others()
    server_of_the_session.end_all()
    assert not left


@pytest.fixture(scope="session")
def scenarios(server_of_the_session: BuildServer, tmp_path_factory: pytest.TempPathFactory) -> Scenarios:
    return Scenarios(server_of_the_session, tmp_path_factory.mktemp("scenarios"))
