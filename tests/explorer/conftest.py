"""The explorer needs rows with real commits."""

import pytest


@pytest.fixture
def rows(transactional_db: None) -> None:
    """Real commits, on tables that hold what the migrations wrote."""
