"""Shell completion: the function for bash, called as readline calls it and in a terminal; what it offers is what the tool takes."""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.dont_write_bytecode = True

from help_text import options, run, said, verbs  # noqa: E402 (needs the path above)
from terminal import typed  # noqa: E402

USAGE = 2
SCRIPT = said("completion", "bash")
# Prints what it is asked for instead of asking readline; then the function, as readline calls it.
ASK = SCRIPT + """
compopt() { asked+=" ${*: -1}"; }
asked=
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_moe64
printf '%s\\n' "${COMPREPLY[@]}"
printf 'asked%s\\n' "$asked"
"""


def offered(line, breaks="=:"):
    """(words, what readline was asked to do) where the line ends; readline cuts words at `breaks`."""
    words = re.findall(rf"[{breaks}]|[^\s{breaks}]+" if breaks else r"\S+", line)
    if line.endswith(" "):
        words.append("")
    done = subprocess.run(["bash", "--norc", "--noprofile", "-c", ASK, "bash", *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stderr, done.stderr
    *replies, asked = done.stdout.splitlines()
    return [reply for reply in replies if reply], asked.split()[1:]


class Bash(unittest.TestCase):
    def expect(self, line, *words, asked=()):
        self.assertEqual(offered(line), (list(words), list(asked)), line)

    def test_every_verb_and_every_option(self):
        self.assertEqual(offered("moe64 ")[0], verbs())
        self.assertLessEqual({"check", "convert", "completion", "man"}, set(verbs()))
        for verb in verbs():
            self.assertEqual(set(offered(f"moe64 {verb} --")[0]), set(options(verb)), verb)
        self.assertEqual(set(offered("moe64 --")[0]), set(options()))

    def test_a_flag_is_followed_by_a_place_and_an_option_by_its_value(self):
        for verb in verbs():
            for option, value in options(verb).items():
                words, asked = offered(f"moe64 {verb} {option} ")
                if value == "FILE":
                    self.assertEqual((words, asked), ([], ["default"]), option)
                elif "|" in value:
                    self.assertEqual(words, value.split("|"), option)
                elif value in ("N", "S", "SIZE", "LIST", "SHARE"):
                    self.assertEqual((words, asked), ([], []), option)

    def test_values(self):
        self.expect("moe64 con", "convert")
        self.expect("moe64 convert --to ", "bf16", "f16", "fp8-block", "fp8-row", "same")
        self.expect("moe64 convert --to fp8-b", "fp8-block")
        self.expect("moe64 convert --json --to fp8-b", "fp8-block")
        self.expect("moe64 verify --data e", "exact")
        self.expect("moe64 completion ", "bash", "zsh", "fish")
        self.expect("moe64 completion bash --h", "--help")
        self.expect("moe64 nonsense ")

    def test_a_value_behind_an_equals_sign(self):
        self.expect("moe64 convert --to=fp8-b", "fp8-block")
        self.expect("moe64 convert --to=", "bf16", "f16", "fp8-block", "fp8-row", "same")
        self.expect("moe64 check --report=", asked=["default"])
        self.assertEqual(offered("moe64 convert --to=fp8-b", breaks="")[0], ["--to=fp8-block"])

    def test_files_and_folders(self):
        for line in ("moe64 check ", "moe64 convert ", "moe64 diff a ", "moe64 verify -f ", "moe64 check --json -- "):
            self.expect(line, asked=["default"])
        for line in ("moe64 convert a ", "moe64 convert --to bf16 a ", "moe64 synth "):
            self.expect(line, asked=["dirnames"])

    def test_words_that_go_on_get_no_blank(self):
        self.expect("moe64 check --assume bl", "block=", asked=["nospace"])
        self.expect("moe64 check --assume orientation=", "rows", "transposed")
        self.expect("moe64 run a --device ", "cpu", "cuda:", asked=["nospace"])
        self.expect("moe64 run a --device=cu", "cuda:", asked=["nospace"])
        self.expect("moe64 verify tok", "tokens=", asked=["nospace"])
        self.expect("moe64 verify tokens=8 routing=se", "sentinel:", asked=["nospace"])

    def test_models_dialects_and_faults_are_those_of_the_tool(self):
        for option, title in (("--like", "--like"), ("--break", "--break")):
            listed = re.search(rf"^{title} .*\n[- ]+\n((?:.+\n)+)", said("synth", "--list"), re.M)[1]
            self.assertEqual(offered(f"moe64 synth {option} ")[0], [row.split()[0] for row in listed.splitlines()])
        for dialect in offered("moe64 synth --dialect ")[0]:
            self.assertRegex(dialect, r"^(D\d+b?|D25a|plain)$")


class Agrees(unittest.TestCase):
    """What is offered by name is what the library takes: its messages list it."""

    def compare(self, begin, answer, pattern, key):
        expected = set(re.findall(r"[\w:]+", re.search(pattern, answer)[1]))
        found = {word for word in offered(f"{begin}{key}=")[0]}
        self.assertEqual(found, {re.sub(r":.*", ":", word) for word in expected} - {"or", "of"}, key)

    def test_keys_of_problem_lines(self):
        refused = run("verify", "nonsense=1").stderr
        keys = re.search(r"one of the keys (.*)", refused)[1].split()
        self.assertEqual([word.rstrip("=") for word in offered("moe64 verify ")[0]], keys)
        for key in keys:
            answer = run("verify", f"{key}=nonsense").stderr
            if " one of " in answer:
                self.compare("moe64 verify ", answer, r"one of (.*)", key)

    def test_keys_of_assumptions(self):
        with tempfile.TemporaryDirectory() as folder:
            said("synth", f"{folder}/made", "--scale-down", "64")
            refused = run("inspect", f"{folder}/made", "--assume", "nonsense=1").stderr
            keys = re.findall(r"\w+", re.search(r"expected (.*)", refused)[1].replace(" or ", " "))
            self.assertEqual([word.rstrip("=") for word in offered("moe64 inspect --assume ")[0]], keys)
            for key in ("scale", "orientation", "gate_up", "grid", "activation"):
                answer = run("inspect", f"{folder}/made", "--assume", f"{key}=nonsense").stderr
                self.compare("moe64 inspect --assume ", answer, rf"expected {key}=(.*)", key)


class Messages(unittest.TestCase):
    def test_a_shell_that_is_not_known_lists_those_that_are(self):
        done = run("completion", "tcsh")
        self.assertEqual(done.returncode, USAGE)
        self.assertIn("SHELL tcsh: expected one of bash, zsh, fish", done.stderr)
        self.assertIn("did you mean fish?", run("completion", "fihs").stderr)

    def test_a_shell_is_required(self):
        done = run("completion")
        self.assertEqual((done.returncode, done.stdout), (USAGE, ""))
        self.assertIn("SHELL is required", done.stderr)


class Terminal(unittest.TestCase):
    """An interactive bash, with TAB."""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="moe64_completion_"))
        self.addCleanup(shutil.rmtree, self.folder)
        (self.folder / "moe64.bash").write_text(SCRIPT)

    def typed(self, keys):
        return typed(["bash", "--norc", "--noprofile", "-i"], "source ./moe64.bash", keys, self.folder)

    def test_tab(self):
        (self.folder / "a model").mkdir()
        (self.folder / "problems.txt").touch()
        self.assertEqual(self.typed("moe64 conv\ta\t --to=fp8-b\t--dr\t"),
                         ["moe64", "convert", "a model/", "--to=fp8-block", "--dry-run"])
        self.assertEqual(self.typed("moe64 verify -f pr\t --th\t4 "), ["moe64", "verify", "-f", "problems.txt", "--threads", "4"])
        self.assertEqual(self.typed("moe64 run \"a mo\t --dev\tcu\t0 "), ["moe64", "run", "a model/", "--device", "cuda:0"])


if __name__ == "__main__":
    unittest.main()
