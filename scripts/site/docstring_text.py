"""Docstrings of this package as Markdown: tables of arguments become lists, doctests become code."""

import re

ARGUMENT = re.compile(r"(\S(?:[^\s]|, | / | (?! ))*?) {2,}(\S.*)")


def markdown(text):
    """The text of a docstring without its indentation."""
    lines, found, i = text.split("\n"), [], 0
    while i < len(lines):
        line = lines[i]
        if re.match(r" {4}\S", line):
            i = code(lines, i, found)
        elif line.startswith(">>> "):  # a doctest at the margin, up to the next empty line
            end = lines.index("", i) if "" in lines[i:] else len(lines)
            found += ["```pycon", *lines[i:end], "```"]
            i = end
        elif ARGUMENT.fullmatch(line) and not re.search(r"[.:;] {2}", line):
            i = arguments(lines, i, found)
        else:
            found.append(line)
            i += 1
    return "\n".join(found)


def code(lines, i, found):
    """An indented block, doctests as such; returns the first line behind it."""
    block = []
    while i < len(lines) and (lines[i].startswith("    ") or (not lines[i] and i + 1 < len(lines)
                                                              and lines[i + 1].startswith("    "))):
        block.append(lines[i][4:])
        i += 1
    language = "pycon" if block[0].startswith(">>>") else "python"
    found += [f"```{language}", *block, "```"]
    return i


def arguments(lines, i, found):
    """Lines of a name, two spaces or more, and a text that may go on in lines that are indented."""
    if found and found[-1]:
        found.append("")
    while i < len(lines) and (match := ARGUMENT.fullmatch(lines[i])):
        text = match.group(2)
        i += 1
        while i < len(lines) and re.match(r" {6,}\S", lines[i]):
            text += " " + lines[i].strip()
            i += 1
        found.append(f"* `{match.group(1)}`: {text}")
    if i < len(lines) and lines[i]:
        found.append("")
    return i
