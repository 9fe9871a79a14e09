"""Check that every link in every Markdown file leads to an existing file and heading of the repository.

Links to other sites are not followed: a test must not depend on them.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)|!\[[^\]]*\]\(\s*([^)\s]+)")
FENCE = re.compile(r"^( *)(```|~~~).*?^\1\2\s*$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")


def broken_links() -> list[str]:
    """`file: target` of each link that leads nowhere."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    pages = [path for name in listed.stdout.splitlines() if (path := ROOT / name).exists()]
    return [
        f"{page.relative_to(ROOT)}: {target}" for page in pages for target in links(page) if not leads(page, target)
    ]


def links(page: Path) -> Iterator[str]:
    """The targets of a page's links that stay in the repository."""
    text = CODE.sub("", FENCE.sub("", page.read_text(encoding="utf-8")))
    for match in LINK.finditer(text):
        target = match[1] or match[2]
        if not re.match(r"[a-z][a-z0-9+.-]*:", target):
            yield target


def leads(page: Path, target: str) -> bool:
    """Whether a link leads to a file or folder that exists, and to a heading that is there."""
    name, _, heading = unquote(target).partition("#")
    path = (page.parent / name).resolve() if name else page
    if not path.exists() or not path.is_relative_to(ROOT):
        return False
    return not heading or (path.suffix == ".md" and heading in headings(path))


def headings(page: Path) -> set[str]:
    """The anchors that a Markdown renderer makes from a page's headings."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    seen: dict[str, int] = {}
    anchors = set()
    for title in re.findall(r"^#{1,6} +(.+?) *#*$", text, re.MULTILINE):
        anchor = re.sub(r"[^\w\- ]", "", title.lower().strip()).replace(" ", "-")
        count = seen.get(anchor, 0)
        seen[anchor] = count + 1
        anchors.add(f"{anchor}-{count}" if count else anchor)
    return anchors


if __name__ == "__main__":
    broken = broken_links()
    if broken:
        sys.exit("These links lead nowhere:\n" + "\n".join(f"  {line}" for line in broken))
