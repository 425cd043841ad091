#!/usr/bin/env python3
"""Pages about the project: each link leads somewhere, decisions are numbered and listed, and pages
stay short. Only the standard library."""

import collections
import re
import subprocess
import unittest

from sources import MOST_COLUMNS, MOST_WORDS_A_SENTENCE, ROOMS, ROOT, is_inverted, run_tests

PAGE = ROOT / "docs" / "architecture.md"
DECISIONS = ROOT / "docs" / "decisions"
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
PARTS = ["Context", "Decision", "Consequences"]
DECISION_LINES = 60  # one page
MOST_WORDS = {"docs/architecture.md": 2000, "CONTRIBUTING.md": 700}
GROUPS = ("model", "who", "attacker")  # heads of first columns that name a group of rows
FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)


def pages():
    """Every page of the project, as git knows them."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return sorted({ROOT / name for name in names.split() if (ROOT / name).exists()})


def anchors(page):
    """Returns GitHub's anchor for each heading: lower case, no marks, hyphens for blanks."""
    found = set()
    for heading in HEADING.findall(FENCE.sub("", page)):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        found.add(re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-"))
    return found


def dead_links(path, page):
    """The links of a page that lead to no file, or to no heading of it."""
    dead = []
    for link in LINK.findall(FENCE.sub("", page)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        to = path.parent / name if name else path
        if not to.exists() or (anchor and anchor not in anchors(to.read_text())):
            dead.append(link)
    return dead


def lost_paths(page):
    """Paths of the project that a page names, with or without their ending, and that are gone."""
    tops = {path.name for path in ROOT.iterdir() if path.is_dir()} - {"build", "out"}
    named = re.findall(r"`([a-z_]+(?:/[a-z_0-9.]+)+)/?`", page)
    return [name for name in named if name.partition("/")[0] in tops
            and not any((ROOT / f"{name}{ending}").exists() for ending in ("", ".h", ".cc"))]


def sentences(page):
    """The sentences of a page's paragraphs and list items; code is one word each."""
    text = re.sub(r"^(\||#).*$", "", FENCE.sub("", page), flags=re.MULTILINE)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]*`", "Code", text))
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.)\s)", text):
        block = re.sub(r"^\s*(?:[-*]|\d+\.)\s+", "", block).replace("*", "")
        block = " ".join(block.split())
        yield from filter(None, re.split(r"(?<=[.!?])\s+", block))


def long_sentences(page):
    return [text for text in sentences(page) if len(text.split()) > MOST_WORDS_A_SENTENCE]


def turned_sentences(page):
    """Sentences that do not begin with their subject."""
    return [text for text in sentences(page) if is_inverted(text)]


def persons(page):
    """Sentences with a pronoun of a person; a pronoun in quotes is none."""
    return [text for text in sentences(page)
            if re.search(r'(?<!")\b(?:[Hh]e|[Hh]im|[Hh]is|[Hh]imself)\b', text)]


def wide_lines(page):
    """Lines of text: a table's row is one line, and code and outputs are as they are."""
    return [line for line in FENCE.sub("", page).splitlines()
            if len(line) > MOST_COLUMNS and not line.startswith("|")]


def repeated_rows(page):
    """First cells that a table has twice: a merge of branches keeps both rows."""
    found = []
    for table in re.findall(r"(?:^\|.*\n?)+", FENCE.sub("", page), re.MULTILINE):
        first = [re.split(r"(?<!\\)\|", line)[1].strip() for line in table.splitlines()]
        if first[0] not in GROUPS:
            counted = collections.Counter(filter(None, first[2:]))
            found += [cell for cell, times in counted.items() if times > 1]
    return found


class Pages(unittest.TestCase):
    def test_each_link_leads_somewhere(self):
        self.assertGreater(len(pages()), 30)
        dead = {path.name: dead_links(path, path.read_text()) for path in pages()}
        self.assertEqual({name: links for name, links in dead.items() if links}, {})

    def test_a_dead_link_would_be_found(self):
        here = DECISIONS / "README.md"
        page = "[a](nowhere.md) [b](README.md#nothing) [c](#here) [d](https://x.y)\n\n## Not here\n"
        self.assertEqual(dead_links(here, page), ["nowhere.md", "README.md#nothing", "#here"])
        self.assertEqual(anchors("# How `MASTER_PORT` is *chosen*"), {"how-master_port-is-chosen"})

    def test_a_table_has_each_row_once(self):
        twice = {path.name: repeated_rows(path.read_text()) for path in pages()}
        self.assertEqual({name: rows for name, rows in twice.items() if rows}, {})
        rows = "|---|---|\n| pip | a |\n| | b |\n| apt | c |\n| | d |\n| pip | e |\n"
        self.assertEqual(repeated_rows(f"| way | what |\n{rows}"), ["pip"])
        self.assertEqual(repeated_rows(f"| who | what |\n{rows}"), [])
        self.assertEqual(repeated_rows(f"```\n| way | what |\n{rows}```\n"), [])

    def test_each_path_that_is_named_is_there(self):
        lost = {path.name: lost_paths(path.read_text()) for path in pages()}
        self.assertEqual({name: paths for name, paths in lost.items() if paths}, {})
        self.assertEqual(lost_paths("`store/wire` `store/table.h` `agent/core/`, `out/x`"), [])
        self.assertEqual(lost_paths("`store/no_such_file`"), ["store/no_such_file"])

    def test_sentences_are_short_and_begin_with_their_subject(self):
        for path in pages():
            page = path.read_text()
            self.assertEqual(long_sentences(page), [], path.name)
            self.assertEqual(turned_sentences(page), [], path.name)
            self.assertEqual(persons(page), [], path.name)
            self.assertEqual(wide_lines(page), [], path.name)

    def test_a_long_and_a_turned_sentence_would_be_found(self):
        self.assertEqual(long_sentences("A " + "b " * 18 + "c.\n"), [])
        self.assertEqual(len(long_sentences("A " + "b " * 19 + "c.\n")), 1)
        self.assertEqual(turned_sentences("It is.\nWhere it is: here.\n"), ["Where it is: here."])
        self.assertEqual(turned_sentences("```\nWhere it is\n```\n- Offers.\n"), [])
        self.assertEqual(persons("A peer, and his port.\n"), ["A peer, and his port."])
        self.assertEqual(persons('No peer is "he".\n'), [])


class Version(unittest.TestCase):
    """The version is that of project(), and no page is behind."""

    def setUp(self):
        text = (ROOT / "CMakeLists.txt").read_text()
        self.version = re.search(r"project\(ddprun VERSION ([\d.]+)", text)[1]

    def test_the_list_of_changes_has_a_section_for_it(self):
        titles = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
        self.assertEqual(titles[:2], ["Unreleased", self.version])

    def test_each_page_names_the_files_of_this_version(self):
        named = {(path.name, found) for path in pages()
                 for found in re.findall(r"ddprun[-_](\d+\.\d+\.\d+)[-_]", path.read_text())}
        self.assertGreaterEqual(len(named), 1)
        self.assertEqual({found for _, found in named}, {self.version}, named)
        asked = re.findall(r"find_package\(ddprun ([\d.]+) ", (ROOT / "docs/install.md").read_text())
        self.assertEqual(asked, [self.version.rpartition(".")[0]])


class Architecture(unittest.TestCase):
    def test_each_room_has_a_row(self):
        shown = re.findall(r"`([a-z/_0-9]+)/`",
                           "\n".join(re.findall(r"^\|[^|]*\|", PAGE.read_text(), re.MULTILINE)))
        self.assertEqual(sorted(set(ROOMS) - set(shown)), [], "rooms without a row")
        self.assertEqual([room for room in shown if not (ROOT / room).is_dir()], [], "no such room")

    def test_readme_names_each_top_folder(self):
        folders = {room.partition("/")[0] for room in ROOMS} | {"examples", "bench"}
        page = (ROOT / "README.md").read_text()
        self.assertEqual([name for name in sorted(folders) if f"[{name}/]({name})" not in page], [])

    def test_it_shows_the_ways_through_the_code(self):
        for way in ("A launch", "A restart", "A standstill", "A store wait", "A gradient"):
            section = PAGE.read_text().partition(f"\n## {way}\n")[2].partition("\n## ")[0]
            self.assertRegex(section, FENCE, way)

    def test_pages_are_no_longer_than_a_reader_has_time_for(self):
        for name, most in MOST_WORDS.items():
            self.assertLessEqual(len((ROOT / name).read_text().split()), most, name)


class Decisions(unittest.TestCase):
    def setUp(self):
        self.records = sorted(DECISIONS.glob("[0-9]*.md"))

    def test_each_has_a_number_and_the_three_parts_on_one_page(self):
        numbers = [path.name[:4] for path in self.records]
        self.assertEqual(len(numbers), len(set(numbers)), "one record a number")
        for path in self.records:
            page = path.read_text()
            self.assertRegex(page, rf"\A# {path.name[:4]}\. \S", path.name)
            self.assertEqual(re.findall(r"^## (.+)$", page, re.MULTILINE), PARTS, path.name)
            self.assertLessEqual(len(page.splitlines()), DECISION_LINES, path.name)

    def test_the_index_lists_each_by_its_title(self):
        shown = re.findall(r"^\| \[(.+?)\]\((.+?)\) \| \S", (DECISIONS / "README.md").read_text(),
                           re.MULTILINE)
        titles = [(path.read_text().partition("\n")[0].removeprefix("# "), path.name)
                  for path in self.records]
        self.assertEqual(shown, titles)


if __name__ == "__main__":
    run_tests()
