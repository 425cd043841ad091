#!/usr/bin/env python3
"""Sentences in comments and docstrings begin with their subject, and never with "Where" or its
like. No peer or thing is "he". Each sentence has 20 words at most. A line with a comment has 100
columns at most. Only the standard library."""

import ast
import io
import re
import subprocess
import tokenize
import unittest

from sources import MOST_COLUMNS, MOST_WORDS_A_SENTENCE, ROOT, is_inverted, run_tests

PERSON = re.compile(r"\b(?:[Hh]e|[Hh]im|[Hh]is|[Hh]imself)\b")
# Comments that are for a tool, which wants them on the line of the code.
FOR_TOOLS = re.compile(r"\s*(?:noqa|type:)")
CPP = (".h", ".cc", ".cu", ".cuh", ".proto")
# Files in which a # begins a comment, as in a shell.
HASHES = (".sh", ".cmake", ".cmake.in", ".service.in", "CMakeLists.txt", "requirements.txt", ".yaml",
          ".toml")
# A raw string, a string, a character, a comment; a ' between digits belongs to a number.
CPP_TOKEN = re.compile(
    r'R"(?P<mark>[^()\\\s]{0,16})\((?:.|\n)*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'|//(?P<line>[^\n]*)|/\*(?P<block>(?:.|\n)*?)\*/")
# The same for shells and CMake, in which a # within a word is none.
SHELL_TOKEN = re.compile(
    r"""\\.|"(?:\\.|[^"\\])*"|'[^']*'|\[(?P<mark>=*)\[(?:.|\n)*?\](?P=mark)\]"""
    r"|(?:(?<=\s)|\A)#(?P<line>[^\n]*)")
SENTENCE_END = re.compile(r"(?<=[.!?])[\"')]*\s+(?=\S)")
# A row of a table in a docstring, and a command with its flags.
TABLE_ROW = re.compile(r"\s*\S+(?: \S+)*?\s{2,}\S")
COMMAND = re.compile(r"[\w./]+ \[-")
# Programs whose code is held to the columns, too. tests/house/format_test.py holds C++.
NARROW = ("agent/standby/python/", "launcher/python/", "quickstart", "run-tests", "scripts/")
LIST_ITEM = re.compile(r"\A(?:\s*(?:[-*]|-{3,}|\d+[.)])\s+|\s{3,})")


def marked(token, text):
    """(line, column, whether it is alone on its line, text) of each comment; strings are none."""
    for found in token.finditer(text):
        parts = found.groupdict()
        said = parts["line"] if parts["line"] is not None else parts.get("block")
        if said is not None:
            start = text.rfind("\n", 0, found.start()) + 1
            before = text[start:found.start()]
            yield text.count("\n", 0, start) + 1, len(before), not before.strip(), said


def cpp_comments(text):
    return marked(CPP_TOKEN, text)


def shell_comments(text):
    return (comment for comment in marked(SHELL_TOKEN, text) if not comment[3].startswith("!"))


def python_comments(text):
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith("#!"):
            line, column = token.start
            yield line, column, not token.line[:column].strip(), token.string[1:]


def docstring_nodes(text):
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in ast.walk(ast.parse(text))
            if isinstance(node, owners) and ast.get_docstring(node)]


def docstrings(text):
    """(line, text) of each docstring."""
    return ((node.body[0].lineno, ast.get_docstring(node)) for node in docstring_nodes(text))


def parts(doc):
    """The paragraphs of a docstring; each row of a table of words and meanings is one. Commands are
    left out."""
    for paragraph in re.split(r"\n\s*\n", doc):
        said, last = [], 0
        for line in paragraph.splitlines():
            indent = len(line) - len(line.lstrip())
            if said and (TABLE_ROW.match(line) or indent < last):
                yield " ".join(said)
                said = []
            said.append(line.strip())
            last = indent
        if not COMMAND.match(" ".join(said)):
            yield " ".join(said)


def paragraphs(comments):
    """(line, text) of what is said without a break: a comment, and those alone on the lines
    below."""
    said, first, last, column, is_item = [], 0, 0, 0, False
    for line, at, alone, text in comments:
        together = said and alone and line == last + 1 and at == column
        together = together and not (is_item and re.match(r"\s?\S", text))
        if not together or not text.strip() or LIST_ITEM.match(text):
            if said:
                yield first, " ".join(said)
            said, first, is_item = [], line, bool(LIST_ITEM.match(text))
        if text.strip():
            said.append(LIST_ITEM.sub("", text, count=1).strip())
        last, column = line + text.count("\n"), at
    if said:
        yield first, " ".join(said)


def language(name, text):
    """The functions that find what a file says; empty: none is known."""
    first = text.partition("\n")[0]
    if name.endswith(CPP):
        return [cpp_comments]
    if name.endswith(".py") or re.match(r"#!.*python", first):
        return [python_comments, docstrings]
    if name.endswith(HASHES) or re.match(r"#!.*\b(ba)?sh\b", first):
        return [shell_comments]
    return []


def sentences(name, text):
    """(line where its paragraph begins, sentence) of all that a file's comments say."""
    for find in language(name, text):
        if find is docstrings:
            told = [(line, part) for line, doc in docstrings(text) for part in parts(doc)]
        else:
            told = paragraphs(find(text))
        for line, paragraph in told:
            for sentence in SENTENCE_END.split(" ".join(paragraph.split())):
                yield line, sentence


def turned(name, text):
    """Sentences of a file that begin with one of the words, as path:line: sentence. A question may
    do so."""
    return [f"{name}:{line}: {said}" for line, said in sentences(name, text)
            if is_inverted(said)]


def persons(name, text):
    """Sentences of a file in which somebody is "he", in the same form."""
    return [f"{name}:{line}: {said}" for line, said in sentences(name, text) if PERSON.search(said)]


def long_sentences(name, text):
    """Sentences of a file with too many words, in the same form."""
    return [f"{name}:{line}: {said}" for line, said in sentences(name, text)
            if len(said.split()) > MOST_WORDS_A_SENTENCE]


def said_lines(name, text):
    """The numbers of the lines on which there is a comment or a docstring."""
    found = set()
    for find in language(name, text):
        if find is docstrings:
            for node in docstring_nodes(text):
                found.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
        else:
            for line, _, _, said in find(text):
                if not FOR_TOOLS.match(said):
                    found.update(range(line, line + said.count("\n") + 1))
    return found


def wide_lines(name, text):
    """Lines that have too many columns, as path:line: with a comment, or all lines of NARROW."""
    lines = text.split("\n")
    held = said_lines(name, text) if not name.startswith(NARROW) else range(1, len(lines) + 1)
    return [f"{name}:{number}" for number in sorted(held)
            if len(lines[number - 1]) > MOST_COLUMNS]


def texts():
    """Path -> text of every file whose comments this test can read, new ones too."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    found = {}
    for name in sorted(set(names.split())):
        try:
            text = (ROOT / name).read_text()
        except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
            continue
        if language(name, text):
            found[name] = text
    return found


class Sentences(unittest.TestCase):
    def test_each_begins_with_its_subject(self):
        files = texts()
        self.assertGreater(len(files), 1000)
        found = [place for name, text in files.items()
                 for place in turned(name, text)]
        self.assertEqual(found, [], "\n" + "\n".join(found))

    def test_no_peer_or_thing_is_he(self):
        found = [place for name, text in texts().items()
                 if name != "tests/house/sentences_test.py"
                 for place in persons(name, text)]
        self.assertEqual(found, [], "\n" + "\n".join(found))

    def test_none_is_long(self):
        found = [place for name, text in texts().items() for place in long_sentences(name, text)]
        self.assertEqual(found, [], "\n" + "\n".join(found))

    def test_no_line_with_a_comment_is_wide(self):
        found = [place for name, text in texts().items() for place in wide_lines(name, text)]
        self.assertEqual(found, [], "\n" + "\n".join(found))


class ThisTest(unittest.TestCase):
    def found(self, name, text):
        return [place.partition(": ")[2] for place in turned(name, text)]

    def test_finds_a_comment_that_begins_with_another_word(self):
        self.assertEqual(self.found("a.h", "// Where it is.\nint a;\n"), ["Where it is."])
        self.assertEqual(self.found("a.h", "int a;  // Whoever asks.\n"), ["Whoever asks."])
        self.assertEqual(self.found("a.proto", "/* It is. Of what:\n none. */"), ["Of what: none."])
        self.assertEqual(self.found("a.cc", "// Says it. Where it\n// is: here.\n"),
                         ["Where it is: here."])
        self.assertEqual(self.found("a.cc", "// Says (it.) What\n// is.\n"), ["What is."])
        self.assertEqual(self.found("a.cc", "int a = 1'000;  // Of it.\n"), ["Of it."])
        self.assertEqual(self.found("a.cc", "int a;  // one\nint b;  // What\n"), ["What"])
        self.assertEqual(self.found("a.cc", "// - one\n// - Where\n"), ["Where"])
        self.assertEqual(self.found("a.cc", "// ---- a part ----\n// Of it.\n"), ["Of it."])
        self.assertEqual(self.found("a.cc", "//   a row\n// Of it.\n"), ["Of it."])
        self.assertEqual(self.found("a.cc", "// It is\n//\n// Where it was.\n"), ["Where it was."])

    def test_finds_a_peer_that_is_he(self):
        self.assertEqual(persons("a.h", "// A peer, and his port.\n"), ["a.h:1: A peer, and his port."])
        self.assertEqual(persons("a.h", "// The peer, this history, the hello.\n"), [])

    def test_finds_a_long_sentence(self):
        self.assertEqual(len(long_sentences("a.h", "// " + "a " * 20 + "b.\n")), 1)
        self.assertEqual(long_sentences("a.h", "// " + "a " * 19 + "b. And c.\n"), [])

    def test_reads_each_row_of_a_docstring_alone(self):
        doc = '"""It has:\n  one   a word\n        and b\n  two   Of c\nIt ends.\n\n    x/a [--b]\n"""'
        self.assertEqual([said for _, said in sentences("a.py", doc)],
                         ["It has:", "one a word and b", "two Of c", "It ends."])

    def test_finds_a_wide_line_with_a_comment(self):
        wide, most = "x" * 99, "x" * 98
        for name, text, places in (
                ("a.py", f"# {wide}\n", ["a.py:1"]), ("a.py", f"# {most}\n", []),
                ("a.py", f"a = 1  # {wide}\n", ["a.py:1"]),
                ("a.py", f'def a():\n    """b\n    {wide}"""\n', ["a.py:3"]),
                ("a.sh", f"# a\n# {wide}\n", ["a.sh:2"]), ("a", f"#!/bin/sh\n# {wide}", ["a:2"]),
                ("a.cmake", f"set(a b)  # {wide}\n", ["a.cmake:1"]),
                ("a.proto", f"// {wide}\n", ["a.proto:1"]), ("a.cu", f"/*\n{wide}ab*/", ["a.cu:2"]),
                ("a.py", f"import {wide}  # noqa: E402\n", []), ("a.py", f"a = '{wide}'\n", []),
                ("scripts/a.py", f"a = '{wide}'\n", ["scripts/a.py:1"])):
            self.assertEqual(wide_lines(name, text), places, text)

    def test_reads_python_shell_and_cmake(self):
        self.assertEqual(self.found("a.py", '"""Where it is."""\n'), ["Where it is."])
        self.assertEqual(self.found("a.py", "a = 1  # Of it.\n"), ["Of it."])
        self.assertEqual(self.found("a", "#!/usr/bin/env python3\n# What it is.\n"), ["What it is."])
        self.assertEqual(self.found("a.sh", "a=$#  # Whose.\n"), ["Whose."])
        self.assertEqual(self.found("a", "#!/bin/bash\n# Where.\n"), ["Where."])
        self.assertEqual(self.found("CMakeLists.txt", "set(a b)  # Whoever.\n"), ["Whoever."])

    def test_finds_no_string_code_or_later_word(self):
        for name, text in (
                ("a.cc", 'auto a = "// Where it is";'), ("a.cc", 'auto a = R"x(\n// Of it\n)x";'),
                ("a.cc", "char a = '\"'; Of b;  // It is where\n"),
                ("a.h", "// It says\n// What it does.\n"), ("a.h", "// Offers whatever, Wherever.\n"),
                ("a.py", "# Which is it?\n"), ("a.py", 'a = "# Where it is"\n'), ("a.py", "a = '''\n# Of it\n'''\n"),
                ("a.sh", 'echo "# Where"\n'), ("a.sh", "a=${b#Of}\n"),
                ("a.cmake", "set(a [[\n# Where\n]])\n"), ("a.md", "# Where it is\n")):
            self.assertEqual(self.found(name, text), [], text)


if __name__ == "__main__":
    run_tests()
