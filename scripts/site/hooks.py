"""What mkdocs does not do by itself for this repository: pages that are not in docs/, and links that leave it.

README.md is the home page; ARCHITECTURE.md and the other documents of the root are pages. Whatever else a document links to
in the repository gets a page: Markdown as it is, a header as its reference, a source as text, a folder as a list; pictures
are copied. A link to a file that is not there stays as it is, and `mkdocs build --strict` fails on it.
"""

import posixpath
import re
from pathlib import Path

import headers
from mkdocs.structure.files import File, InclusionLevel

ROOT = Path(__file__).resolve().parents[2]
HOME = {"README.md": "index.md"}
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?|^ {0,3}\[[^\]]+\]:\s+<?([^\s>]+)", re.M)
CODE = re.compile(r"^ *(```|~~~).*?^ *\1[^\n]*$|`[^`\n]*`", re.S | re.M)
PICTURES = (".svg", ".png")
LANGUAGES = {".cpp": "cpp", ".hpp": "cpp", ".h": "cpp", ".cu": "cpp", ".cuh": "cpp", ".py": "python", ".txt": "text",
             ".cmake": "cmake", ".json": "json", ".yml": "yaml"}


def on_config(config):
    """A folder in the nav stands for its pages, in order of their names."""
    config.nav = [expanded(entry) for entry in config.nav]
    return config


def expanded(entry):
    (title, value), = entry.items()
    if isinstance(value, list):
        return {title: [expanded(one) for one in value]}
    if not value.endswith("/"):
        return entry
    if value.startswith("include/"):
        found = sorted(path for path in (ROOT / value).iterdir() if path.suffix in (".hpp", ".h"))
        return {title: [{path.name: page_of(path.relative_to(ROOT).as_posix())} for path in found]}
    return {title: [page_of(value)] + sorted(f"{value}{path.name}" for path in (ROOT / "docs" / value).glob("*.md")
                                             if path.name != "README.md")}


def page_of(name):
    """Where the page of a file or folder of the repository is, relative to docs/."""
    if name.startswith("docs/"):
        name = name[5:]
    if name.endswith("/"):
        return name + ("README.md" if (ROOT / "docs" / name / "README.md").exists() else "index.md")
    if name.endswith(PICTURES):
        return name
    return HOME.get(name, name) if name.endswith(".md") else name + ".md"


def on_files(files, config):
    """Adds the pages of everything that the documents link to, and of what these link to."""
    waiting = ["README.md"] + [f"docs/{file.src_uri}" for file in files.documentation_pages()]
    waiting += [path.relative_to(ROOT).as_posix() for path in (ROOT / "include").rglob("*.h*")]
    seen = set(waiting)
    while waiting:
        name = waiting.pop()
        page = page_of(name)
        if files.get_file_from_path(page) is None:
            if name.endswith(PICTURES):
                files.append(File.generated(config, page, abs_src_path=str(ROOT / name)))
            else:
                files.append(File.generated(config, page, content=content(name), inclusion=InclusionLevel.NOT_IN_NAV))
        if name.endswith(".md"):
            for target in targets(name):
                if target not in seen:
                    seen.add(target)
                    waiting.append(target)
    files.append(File.generated(config, "site/style.css", abs_src_path=str(ROOT / "scripts/site/style.css")))
    return files


def content(name):
    path = ROOT / name
    if path.is_dir():
        found = sorted(one for one in path.iterdir() if not one.name.startswith((".", "__")))
        lines = [f"* [{one.name}]({page_of(one.relative_to(ROOT).as_posix()).removeprefix(page_folder(name))})"
                 if linkable(one) else f"* {one.name}{'/' * one.is_dir()}" for one in found]
        return f"# {name}\n\n" + "\n".join(lines) + "\n"
    text = path.read_text(encoding="utf-8")
    if name.endswith(".md"):
        return text
    if name.startswith("include/"):
        return headers.page(name.removeprefix("include/"), text)
    language = LANGUAGES.get(path.suffix, "text")
    return f"---\nsearch:\n  exclude: true\n---\n\n# {name}\n\n````{language}\n{text}\n````\n"


def page_folder(name):
    return name.removeprefix("docs/")


def linkable(path):
    """Whether a list of a folder links to it: what has a page whoever links to it."""
    name = path.relative_to(ROOT).as_posix()
    return path.is_file() and (name.startswith(("include/", "docs/")) and path.suffix in (".md", ".hpp", ".h"))


def links(text):
    """(begin, end, target) of each relative link outside of code."""
    clean = CODE.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)
    for match in LINK.finditer(clean):
        group = 1 if match.group(1) else 2
        if not re.match(r"[a-z][a-z0-9+.\-]*:|#", match.group(group), re.I):
            yield match.start(group), match.end(group), match.group(group)


def resolved(name, target):
    """What a link of this document leads to: the file or folder of the repository and the anchor, or None."""
    path, _, anchor = target.partition("#")
    found = posixpath.normpath(posixpath.join(posixpath.dirname(name), path))
    if not (ROOT / found).exists():
        return None
    return found + ("/" if (ROOT / found).is_dir() else ""), anchor


def targets(name):
    for _, _, target in links((ROOT / name).read_text(encoding="utf-8")):
        found = resolved(name, target)
        if found:
            yield found[0]


def on_page_markdown(markdown, page, config, files):
    """Links of the repository become links of the site."""
    name = {uri: name for name, uri in HOME.items()}.get(page.file.src_uri, page.file.src_uri)
    if (ROOT / "docs" / name).exists():
        name = f"docs/{name}"
    if not name.endswith(".md") or not (ROOT / name).exists():
        return markdown
    for begin, end, target in sorted(links(markdown), reverse=True):
        found = resolved(name, target)
        if found:
            uri = posixpath.relpath(page_of(found[0]), posixpath.dirname(page.file.src_uri) or ".")
            markdown = markdown[:begin] + uri + (f"#{found[1]}" if found[1] else "") + markdown[end:]
    return markdown
