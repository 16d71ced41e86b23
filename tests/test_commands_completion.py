"""Shell completion: what bash offers once it has read the script, and that every shell can read its own."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tvm_attention.__main__ import main
from tvm_attention.suites import SUITES

pytest.importorskip("shtab")

# Calls the function that "complete" registered, as bash does when TAB is pressed.
ASK = """
source "$1"; shift
function=$(complete -p tvm-attention | sed 's/.*-F \\([^ ]*\\).*/\\1/')
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
"$function" tvm-attention "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["completion", "bash"]) == 0
    path = tmp_path / "script"
    path.write_text(capsys.readouterr().out)
    return path


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["ex"], {"explain", "export"}),
        (["logs", ""], {"list", "verify", "merge", "prune"}),
        (["tune", "--th"], {"--threads"}),
        (["explain", "--suite", ""], set(SUITES)),
        (["logs", "prune", "--j"], {"--json"}),
        (["completion", "z"], {"zsh"}),
        (["report", "--results", "a_fi"], {"a_file.json"}),
        (["report", "--journals", "a_"], {"a_folder"}),
        (["export", "-o", "a_"], {"a_folder"}),
    ],
)
def test_bash_completes(typed: list[str], offered: set[str], script: Path, tmp_path: Path) -> None:
    (tmp_path / "a_file.json").touch()
    (tmp_path / "a_folder").mkdir()
    done = subprocess.run(
        ["bash", "--norc", "-c", ASK, "bash", str(script), "tvm-attention", *typed],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert {word.rstrip("/") for word in done.stdout.split()} == offered
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("shell", "said"), [("zsh", "#compdef tvm-attention"), ("tcsh", "complete tvm-attention")]
)
def test_other_shells_have_scripts(
    shell: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    assert said in text
    assert "explain" in text
    if shutil.which(shell):
        (tmp_path / "script").write_text(text)
        subprocess.run([shell, "-n", str(tmp_path / "script")], check=True)


def test_an_unknown_shell(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["completion", "cmd"])
    assert stop.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
