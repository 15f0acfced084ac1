"""An extension of griffe, which reads the sources for mkdocstrings: docstrings become Markdown."""

import sys
from pathlib import Path

from griffe import Extension

sys.path.insert(0, str(Path(__file__).resolve().parent))
from docstring_text import markdown  # noqa: E402


class Docstrings(Extension):
    def on_object(self, *, obj, **_):
        if obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value)
