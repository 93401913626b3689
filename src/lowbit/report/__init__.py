"""A model's report as one self-contained HTML page: no network, no other files, no packages."""

from __future__ import annotations

from lowbit.report.page import html, write_html

__all__ = ["html", "write_html"]
