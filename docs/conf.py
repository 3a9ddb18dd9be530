# SPDX-License-Identifier: Apache-2.0
"""Sphinx's configuration of the documentation site, which docs/site.py builds."""

from __future__ import annotations

from sentineld import __version__

project = "sentineld"
author = "the sentineld developers"
release = __version__
html_title = f"sentineld {release}"

extensions = ["myst_parser"]
# The pages link to headings by the anchors that code hosting sites generate for them.
myst_heading_anchors = 6
# Code blocks without a language are commands with their output.
highlight_language = "none"
nitpicky = True

html_theme = "furo"
html_copy_source = False
html_use_index = False
html_static_path = ["site_style"]
html_css_files = ["wide.css"]
