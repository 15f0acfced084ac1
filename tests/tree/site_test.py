#!/usr/bin/env python3
"""The pages that the site makes of public headers leave nothing out; docstrings become lists and code; no page is left
out of its nav."""

import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "site"))
import headers  # noqa: E402
from docstring_text import markdown  # noqa: E402


class Headers(unittest.TestCase):
    def test_every_word_of_every_header_is_on_its_page(self):
        files = sorted((ROOT / "include").rglob("*.h*"))
        self.assertGreater(len(files), 20)
        for path in files:
            name = path.relative_to(ROOT / "include").as_posix()
            text = path.read_text()
            page = set(re.findall(r"\w+", headers.page(name, text)))
            for line in text.split("\n"):
                if not line.startswith("#") and not headers.SKIPPED.match(line):
                    missing = set(re.findall(r"\w+", line)) - page - {"nodiscard", "MOE64_API"}
                    self.assertFalse(missing, f"{name}: {line}")

    def test_declarations_have_headings(self):
        page = headers.page("moe64/x.hpp", "#pragma once\n\n/// What *it* is.\nstruct view {\n  int a;  ///< b\n\n"
                            "  int c;\n};\nMOE64_API void move(view const& it);\n\n// ---- more ----\n\nusing index = long;\n")
        self.assertIn("### `view`, `move`\n\nWhat \\*it\\* is.\n\n```cpp\nstruct view {", page)
        self.assertIn("## more\n\n### `index`", page)

    def test_arguments_stay_below_the_first(self):
        self.assertEqual(headers.shown(["[[nodiscard]] MOE64_API int sum(int a,", " " * 32 + "int b);", "MOE64_API void f();"]),
                         ["int sum(int a,", "        int b);", "void f();"])

    def test_lists_and_formulas_stay_apart(self):
        self.assertEqual(headers.prose(["/// Rules:", "///  - one", "///    of two", "///  - three"]),
                         "Rules:\n\n- one of two\n- three")


class Docstrings(unittest.TestCase):
    def test_arguments_and_examples(self):
        self.assertEqual(markdown("What it does.\n\nx         [tokens, hidden]\n"
                                  "a, b      two, which\n          go on\nThe rest.\n\n    >>> f(1)\n    2"),
                         "What it does.\n\n* `x`: [tokens, hidden]\n* `a, b`: two, which go on\n\nThe rest.\n\n"
                         "```pycon\n>>> f(1)\n2\n```")

    def test_examples_at_the_margin(self):
        self.assertEqual(markdown("What.\n\n>>> f(1)\n2\n\nMore."), "What.\n\n```pycon\n>>> f(1)\n2\n```\n\nMore.")

    def test_prose_stays(self):
        self.assertEqual(markdown("One line.\n\nAnother: with a colon,\nand a list\n"), "One line.\n\nAnother: with a colon,\n"
                         "and a list\n")


class Nav(unittest.TestCase):
    def test_every_page_is_in_the_nav_and_linked_from_the_readme(self):
        nav, readme = ((ROOT / name).read_text() for name in ("mkdocs.yml", "README.md"))
        pages = {path.name for path in (ROOT / "docs").glob("*.md")}
        self.assertGreater(len(pages), 15)
        self.assertEqual({page for page in pages if f": {page}\n" not in nav}, set())
        of_the_site_alone = {"reference-python.md"}
        self.assertEqual({page for page in pages if f"](docs/{page}" not in readme}, of_the_site_alone)


if __name__ == "__main__":
    unittest.main()
