"""How Sphinx builds this documentation: `./dev docs`, warnings as errors, nothing fetched from the network."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import django
from asgiref.sync import SyncToAsync

DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS), str(DOCS.parent)]
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "taskqueue_project.settings.test")  # which need no server
django.setup()

import queue_app  # noqa: E402 - needs Django

project = "Task queue for Django"
author = "the contributors"
project_copyright = "the contributors"

extensions = ["myst_parser", "sphinx.ext.autodoc", "assistants"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
root_doc = "index"
nitpicky = True
nitpick_ignore = [("py:class", "queue_app.tasks.QueueTask")]  # documented as queue_app.QueueTask

# The Python reference is made of the docstrings. Types stand in the code, where tools read them.
autodoc_typehints = "none"
add_module_names = False
default_role = "code"
vars(queue_app).update((name, getattr(queue_app, name)) for name in queue_app.__all__)  # which it imports on first use

# Headings get anchors, so that pages can link to each other's sections and Sphinx checks that they exist.
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "deflist", "tasklist"]

html_theme = "furo"
html_title = "Task queue for Django"
html_static_path = ["_static"]
html_js_files = [("search-symptoms.js", {"defer": "defer"})]
html_copy_source = False
html_show_sphinx = False
pygments_style = "default"
pygments_dark_style = "monokai"


def without_twins(_app: Any, _what: str, _name: str, value: object, _skip: bool, _options: Any) -> bool | None:  # noqa: FBT001 - as Sphinx calls it
    """Leave out the forms for coroutines."""
    return True if isinstance(value, SyncToAsync) else None


def setup(app: Any) -> None:
    """Connect with Sphinx."""
    app.connect("autodoc-skip-member", without_twins)
