"""The explorer needs rows with real commits."""

import logging
from collections.abc import Iterator

import pytest

from tests.explorer.instrument import instrument
from tests.explorer.search import Explorer


@pytest.fixture
def rows(transactional_db: None) -> None:
    """Real commits, on tables that hold what the migrations wrote."""


@pytest.fixture
def explorer(rows: None) -> Iterator[Explorer]:
    logging.disable(logging.CRITICAL)  # deaths and lost connections are what it makes
    try:
        with instrument() as (world, control):
            yield Explorer(world, control)
    finally:
        logging.disable(logging.NOTSET)
