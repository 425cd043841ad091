#!/usr/bin/env python3
"""Makes Doxygen's comments of plain ones: `doxygen_filter.py FILE` prints the header.

A line `// text` becomes `/// text`, and `// text` behind a declaration `///< text`. The comment
that opens a header becomes the file's. Samples (three spaces of indent) become code. Comments in
function bodies stay as they are, and so do those with a blank line below. Deleted and defaulted
functions without a comment are left out. Each line keeps its number. Only the standard library.
"""

import re
import sys

COMMENT = re.compile(r"\s*//( |$)")
TRAILING = re.compile(r"(?P<code>\s*[^/\s#}].*?)\s+// (?!NOLINT)(?P<text>.*)")
GIVEN = re.compile(
    r"\s*(?:\w[\w:<>&, ]*|~)?[\w=~]+\(.*\)(?: const)?(?: noexcept)? = (?:delete|default);"
)
FIELDS = re.compile(r"(?P<type>\s*[\w:]+) (?P<fields>\w+ = \w+(?:, \w+ = \w+)+);")
TYPE = re.compile(r"\b(?:namespace|class|struct|union|enum)\b")
QUOTED = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])\'|//.*')


def documentation(block):
    """The lines of a comment, with its samples fenced."""
    lines, in_sample = [], False
    for number, line in enumerate(block):
        indent, _, body = line.partition("//")
        after = block[number + 1].partition("//")[2] if number + 1 < len(block) else ""
        if not in_sample and not body.strip() and after.startswith("   "):
            in_sample, body = True, " @code{.cpp}"
        elif in_sample and not body.strip() and not after.startswith("   "):
            in_sample, body = False, " @endcode"
        lines.append(f"{indent}///{body}")
    if in_sample:
        lines[-1] += " @endcode"
    return lines


class Scopes:
    """Whether a line stands in a function's body, by the braces above it."""

    def __init__(self):
        self.is_type, self.statement = [], ""

    def in_body(self):
        return not all(self.is_type)

    def read(self, line):
        for part in re.split(r"([{};])", QUOTED.sub("", line)):
            if part == "{":
                is_type = TYPE.search(
                    re.sub(r"template <.*?> ?(?=struct|class)", "", self.statement)
                )
                self.is_type.append(bool(is_type) and "(" not in self.statement)
            elif part == "}" and self.is_type:
                self.is_type.pop()
            self.statement = "" if part in ("{", "}", ";") else self.statement + part + " "


def code(line, is_documented, in_body):
    """A line of code with its comment, if that documents something."""
    trailing = TRAILING.fullmatch(line)
    if in_body or not trailing:
        return "" if GIVEN.fullmatch(line) and not in_body and not is_documented else line
    fields = FIELDS.fullmatch(trailing["code"])
    if fields:  # Doxygen would give the comment to the first one alone.
        return " ".join(f"{fields['type']} {field}; /**< {trailing['text']} */"
                        for field in fields["fields"].split(", "))
    return f"{trailing['code']}  ///< {trailing['text']}"


def filtered(text):
    """A header as Doxygen is to read it."""
    lines, block, scopes = [], [], Scopes()
    for number, line in enumerate(text.splitlines()):
        if COMMENT.match(line):
            block.append(line)
            continue
        opens_file = len(block) == number > 0
        documents = block and not scopes.in_body() and line.strip()
        lines += documentation(block) if documents or opens_file else block
        in_body = scopes.in_body()
        scopes.read(line)
        in_body = in_body or scopes.in_body()
        lines.append("/// @file" if opens_file else code(line, bool(block), in_body))
        block = []
    return "\n".join(lines + block) + "\n"


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as header:
        sys.stdout.write(filtered(header.read()))
