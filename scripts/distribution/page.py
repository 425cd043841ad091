"""Makes a page of the project fit to stand alone. Pure."""

import re

# A fence, an image or a link; a fence goes as it came.
PART = re.compile(r"^ *```.*?^ *```$|(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)",
                  re.MULTILINE | re.DOTALL)
ABSOLUTE = re.compile(r"[a-z][a-z0-9+.-]*:")


def plain(found):
    """Returns what stands for a part. A link into the tree becomes its words, and an image of the
    tree nothing."""
    target, text = found["target"], found["text"]
    if target is None or ABSOLUTE.match(target):
        return found[0]
    path = target.partition("#")[0]
    if found["image"]:
        return ""
    if not path or path.rstrip("/") in text:
        return text
    return f"{text} ({path})"


def without_relative_links(text):
    """Returns the Markdown page with the paths of files in place of links to them."""
    return PART.sub(plain, text)


def relative_links(text):
    """Returns the targets of the page's links and images that are no addresses."""
    return [found["target"] for found in PART.finditer(text)
            if found["target"] and not ABSOLUTE.match(found["target"])]
