"""The explorer needs rows with real commits."""

# ruff: noqa: F401, F811 - fixtures are used by name

import logging
from collections.abc import Iterator

import pytest

from tests.explorer.instrument import instrument
from tests.explorer.search import Explorer
from tests.queue_app.conftest import rows


@pytest.fixture
def explorer(rows: None) -> Iterator[Explorer]:
    logging.disable(logging.CRITICAL)  # deaths and lost connections are what it makes
    try:
        with instrument() as (world, control):
            yield Explorer(world, control)
    finally:
        logging.disable(logging.NOTSET)
