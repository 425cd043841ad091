#!/usr/bin/env python3
"""The tree of `cmake --install --component ddprun`. The program runs from there, man shows its
page, each shell loads its completion."""

import os
import re

from support import FolderTest, install_tree, run, run_tests, tool, variables

# Prints a shell's offers for a line, one candidate a line.
ASK_BASH = """
source "$1"
COMP_WORDS=(ddprun --numa-binding = s) COMP_CWORD=3
_ddprun
printf '%s\\n' "${COMPREPLY[@]}"
"""
# zsh completes only at a terminal of its own: zpty(1) of zshmodules.
ASK_ZSH = r"""
zmodload zsh/zpty
zpty -b shell zsh -f -i
zpty -w shell "fpath=($1 \$fpath); PS1=; autoload -U compinit; compinit -u -D; zstyle ':completion:*' list-prompt ''; LISTMAX=0"
zpty -w shell "print REA''DY"
zpty -r -m shell read '*READY*' || exit 9
zpty -w -n shell $'ddprun --exit-codes=det\t'
zpty -r -m shell read '*detailed*' || exit 8
print found
"""


PAGES = ("ddprun", 1), ("ddprund", 8), ("ddpctl", 1)


def plain(page):
    """A page of man as text. roff's bold and underlined letters are overstruck, and its line ends
    may break a word only at a space."""
    return re.sub(r"\s+", " ", re.sub(r".\x08", "", page)).replace("−", "-").replace("‐", "-")


class Tree(FolderTest):
    def setUp(self):
        super().setUp()
        self.prefix = self.folder / "prefix"
        install_tree(self.prefix, "ddprun")
        self.program = self.prefix / "bin" / "ddprun"

    def test_has_what_it_should_and_nothing_else(self):
        files = {str(path.relative_to(self.prefix)) for path in self.prefix.rglob("*") if not path.is_dir()}
        self.assertEqual(files, {
            "bin/ddprun", "bin/ddprun-launch", "share/man/man1/ddprun.1", "share/man/man1/ddprun-launch.1",
            "bin/ddprund", "bin/ddpctl", "share/man/man8/ddprund.8", "share/man/man1/ddpctl.1",
            "lib/systemd/system/ddprund.service", "share/doc/ddprun/examples/ddprund.json",
            "share/doc/ddprun/ddprun.spdx.json", "share/doc/ddprun/linked-libraries",
            "share/bash-completion/completions/ddprun", "share/bash-completion/completions/ddprun-launch",
            "share/fish/vendor_completions.d/ddprun.fish", "share/fish/vendor_completions.d/ddprun-launch.fish",
            "share/zsh/site-functions/_ddprun"})
        self.assertEqual(os.readlink(self.prefix / "bin" / "ddprun-launch"), "ddprun")

    def test_its_program_runs_a_job(self):
        script = self.file("say.sh", "#!/bin/sh\necho rank $RANK of $WORLD_SIZE $*\n", 0o755)
        self.assertIn("rank 1 of 2 x\n", run(self.program, "--nproc-per-node=2", script, "x"))
        self.assertIn("rank 0 of 1 --local-rank=0 x\n", run(self.prefix / "bin" / "ddprun-launch", script, "x"))

    def manual(self, name="ddprun", section=1):
        return run(tool("man"), "-l", "-E", "UTF-8", self.page(name, section),
                   env=variables(LC_ALL="C.UTF-8", MANWIDTH="400", MANPAGER="cat"), cwd=self.prefix / "share/man")

    def test_every_flag_is_in_the_manual_as_help_has_it(self):
        page = plain(self.manual())
        entries = re.findall(r"^  (?:-(\w), |    )(--[\w-]+)(=\S+)?", run(self.program, "--help"), re.MULTILINE)
        self.assertGreater(len(entries), 40)
        for letter, flag, metavar in entries:
            self.assertIn(f"-{letter}, {flag}{metavar} " if letter else f" {flag}{metavar} ", page)

    def page(self, name, section=1):
        return self.prefix / "share/man" / f"man{section}" / f"{name}.{section}"

    def test_each_word_of_help_is_in_the_manual_of_daemon_and_operator(self):
        for name, section in (("ddprund", 8), ("ddpctl", 1)):
            page = plain(self.manual(name, section))
            # But titles, which the manual has by its own names.
            lines = [line for line in run(self.prefix / "bin" / name, "--help").splitlines()[1:] if not line.endswith("s:")]
            words = [word for line in lines for word in line.removeprefix("exit codes:").split()]
            self.assertGreater(len(words), 100)
            for word in words:
                self.assertIn(word, page, name)

    def test_the_other_name_shows_the_same_page(self):
        self.assertEqual(self.manual("ddprun-launch"), self.manual())

    def test_groff_has_no_warning(self):
        for name, section in PAGES:
            self.assertEqual(run(tool("groff"), "-man", "-Tutf8", "-ww", "-z", self.page(name, section)), "", name)

    def test_mandoc_finds_no_error(self):
        for name, section in PAGES:
            run(tool("mandoc"), "-Tlint", "-Werror", self.page(name, section))

    def test_the_unit_starts_the_installed_daemon(self):
        unit = self.prefix / "lib/systemd/system/ddprund.service"
        (command,) = re.findall(r"^ExecStart=(\S+) ", unit.read_text(), re.MULTILINE)
        self.assertEqual(command, str(self.prefix / "bin/ddprund"))
        self.assertRegex(run(command, "--version"), r"^ddprund \d")
        run(tool("systemd-analyze"), "verify", "--man=no", unit)

    def test_the_daemon_takes_the_example_of_its_file(self):
        config = self.prefix / "share/doc/ddprun/examples/ddprund.json"
        said = run(self.prefix / "bin/ddprund", f"--config={config}", "--max-jobs=none", expect=2)
        self.assertIn("--max-jobs=none: ", said)  # the first thing that is wrong

    def test_bash_loads_its_completion(self):
        path = self.prefix / "share/bash-completion/completions/ddprun"
        self.assertEqual(run(tool("bash"), "-c", ASK_BASH, "bash", path), "socket\n")

    def test_bash_finds_it_by_the_commands_name(self):
        loader = "/usr/share/bash-completion/bash_completion"
        if not os.path.exists(loader):
            self.skipTest(f"no {loader} here")
        code = f"source {loader}; for name in ddprun ddprun-launch; do _completion_loader $name; complete -p $name; done"
        said = run("bash", "-c", code, env=variables(XDG_DATA_DIRS=str(self.prefix / "share"), HOME=str(self.folder)), expect=None)
        self.assertEqual(said, "complete -o default -F _ddprun ddprun\ncomplete -o default -F _ddprun ddprun-launch\n")

    def test_zsh_loads_its_completion(self):
        self.assertEqual(run(tool("zsh"), "-f", "-c", ASK_ZSH, "zsh", self.prefix / "share/zsh/site-functions"), "found\n")

    def fish(self, line):
        # It loads completions of commands that it finds.
        env = variables(XDG_DATA_DIRS=str(self.prefix / "share"), HOME=str(self.folder), PATH=f"{self.prefix / 'bin'}:{os.environ['PATH']}")
        code = f"set fish_complete_path {self.prefix}/share/fish/vendor_completions.d; complete -C '{line}'"
        return [offered.split("\t")[0] for offered in run(tool("fish"), "-c", code, env=env, cwd=self.folder).splitlines()]

    def test_fish_loads_its_completion(self):
        self.assertEqual(self.fish("ddprun --restart-"), ["--restart-backoff", "--restart-window"])
        self.assertEqual(self.fish("ddprun --exit-codes=d"), ["--exit-codes=detailed"])
        self.assertEqual(self.fish("ddprun-launch --fold --numa-binding s"), ["socket"])

    def test_fish_offers_no_option_after_the_script(self):
        self.assertEqual(self.fish("ddprun --nproc-per-node 2 train.py --restart-"), [])


if __name__ == "__main__":
    run_tests()
