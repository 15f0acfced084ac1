"""Public C and C++ headers as pages of the site: each comment is prose, each declaration the code below it.

It relies on how these headers are written: `/// ` before a declaration, `///<` behind a member, `// ---- title ---` between
sections, and blank lines between declarations. What it does not understand is shown as code, never left out.
"""

import re

SKIPPED = re.compile(r"#pragma once|#include|namespace moe64|}  // namespace|#ifdef __cplusplus|extern \"C\" {")
SECTION = re.compile(r"// -{4,} (.+?) -{4,}")
NAMES = [re.compile(pattern, re.M) for pattern in (
    r"^(?:struct|class|enum class|union) (?:MOE64_API )?(\w+)(?= *(?:final|:|\{))", r"^} (\w+);", r"^typedef [^;{(]*?(\w+);",
    r"^typedef .*\(\*(\w+)\)", r"^using (\w+) =", r"^inline constexpr [\w:]+ (\w+) =",
    r"^(?!typedef|struct|class|enum|using)[\w\[][^={;#]*?\b(\w+)\(")]


def page(name, text):
    """Markdown of the header that is included as <moe64/...>."""
    parts = [f"# {name}\n", f"```cpp\n#include <{name}>\n```\n"]
    for doc, code in groups(text):
        section = SECTION.fullmatch(doc[0]) if doc else None
        if section:
            parts.append(f"## {section.group(1)}\n")
            continue
        found = names(code)
        if found:
            parts.append("### " + ", ".join(f"`{one}`" for one in found) + "\n")
        if doc:
            parts.append(prose(doc) + "\n")
        if code:
            parts.append("```cpp\n" + "\n".join(shown(code)) + "\n```\n")
    return "\n".join(parts)


def names(code):
    """What a group of declarations declares, in order, each once."""
    text = "\n".join(code)
    found = sorted((match.start(), match.group(1)) for pattern in NAMES for match in pattern.finditer(text))
    return list(dict.fromkeys(name for _, name in found if name not in ("MOE64_API", "static_assert", "defined")))


def shown(code):
    """Lines without what only compilers read; arguments that go on in further lines stay below the first."""
    found, open_brackets, removed = [], 0, 0
    for line in code:
        text = line.replace("[[nodiscard]] ", "").replace("MOE64_API ", "")
        if open_brackets > 0:
            text = text[min(removed, len(text) - len(text.lstrip())):]
        else:
            removed = len(line) - len(text)
        open_brackets += line.count("(") - line.count(")")
        found.append(text)
    return found


def groups(text):
    """(comment lines, code lines), from top to bottom."""
    doc, code, depth, external = [], [], 0, False
    for line in text.split("\n"):
        if depth == 0 and (SKIPPED.match(line) or external):
            external = line.startswith(("#ifdef __cplusplus", "extern")) or (external and line != "#endif")
            continue
        section = depth == 0 and SECTION.match(line)
        starts = depth == 0 and line.startswith("//")
        if depth == 0 and (not line.strip() or section or (starts and code)):
            if doc or code:
                yield doc, code
            doc, code = [], []
        if section:
            yield [line], []
        elif starts:
            doc.append(line)
        elif line.strip():
            code.append(line)
            depth += line.split("//")[0].count("{") - line.split("//")[0].count("}")
        elif depth:
            code.append("")
    if doc or code:
        yield doc, code


def prose(lines):
    """The text of `///` lines as Markdown: paragraphs, lists, and formulas that are indented."""
    found = []
    for line in (re.sub(r"^///? ?", "", line) for line in lines):
        if re.match(r" +- ", line):
            found.append(("" if found and found[-1].lstrip().startswith("- ") else "\n") + "- " + escaped(line.strip()[2:]))
        elif re.match(r" {2,}\S", line) and found and found[-1].lstrip().startswith("- "):
            found[-1] += " " + escaped(line.strip())
        else:
            found.append(("\n" if re.match(r" {2,}\S", line) else "") + escaped(line.strip()))
    return "\n".join(found)


def escaped(text):
    """Markdown that shows this text; what is in backquotes stays code."""
    pieces = text.split("`")
    pieces[::2] = [re.sub(r"([*<\[\]|#]|(?<!\w)_|_(?!\w))", r"\\\1", piece) for piece in pieces[::2]]
    return "`".join(pieces)
