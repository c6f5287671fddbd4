"""Settings of the site: ``make docs``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "site"))

project = "pylog-spark"
author = "the authors of pylog-spark"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "reference_pages",
]
source_suffix = {".md": "markdown"}
exclude_patterns = ["site"]
# Links to headings, as they work where the files are read as they are.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
html_theme = "pydata_sphinx_theme"
html_title = "pylog-spark"
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "show_prev_next": False,
    "navigation_with_keys": False,
    # All pages stand in the sidebar, under their captions.
    "navbar_center": [],
}
templates_path = ["site/templates"]
html_sidebars: dict[str, list[str]] = {"**": ["pages.html"]}
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_mock_imports: list[str] = []
# Types of Arrow and Spark have pages elsewhere; nothing is fetched to build this one.
nitpicky = False
