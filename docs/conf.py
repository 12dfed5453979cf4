"""How Sphinx builds this documentation: `./dev docs`, warnings as errors, nothing fetched from the network."""

from __future__ import annotations

import sys
from pathlib import Path

project = "Task queue for Django"
author = "the contributors"
project_copyright = "the contributors"

sys.path.insert(0, str(Path(__file__).resolve().parent))
extensions = ["myst_parser", "assistants"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
root_doc = "index"
nitpicky = True

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
