"""The picture of an attention map: what is drawn, and what is refused."""

from __future__ import annotations

import io
import sys
from typing import Any

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from tvm_attention import attention, plot_attention, plotting
from tvm_attention.errors import InvalidTypeError, InvalidValueError, UnsupportedError

WORDS = ["the", "cat", "$5", "costs$"]


def _weights(*shape: int) -> Any:
    rows = np.random.default_rng(1).random(shape)
    return rows / rows.sum(axis=-1, keepdims=True)


def _panels(figure: Any) -> list[Any]:
    return [axes for axes in figure.axes if axes.images]


def test_a_map_has_its_words_and_its_numbers() -> None:
    weights = _weights(4, 4)
    (panel,) = _panels(figure := plot_attention(weights, WORDS))
    np.testing.assert_array_equal(panel.images[0].get_array(), weights)
    for axis in (panel.xaxis, panel.yaxis):
        assert [t.get_text() for t in axis.get_ticklabels()] == WORDS
    assert panel.images[0].get_clim() == (0, weights.max())
    png = io.BytesIO()
    figure.savefig(png, format="png")
    assert len(png.getvalue()) > 5000
    assert (
        "matplotlib.pyplot" not in sys.modules
        or not __import__("matplotlib.pyplot").pyplot.get_fignums()
    )


def test_heads_are_panels_of_one_scale() -> None:
    weights = _weights(6, 4, 3)
    figure = plot_attention(weights, WORDS, key_tokens=["a", "b", "c"], columns=4)
    panels = _panels(figure)
    assert [p.get_title() for p in panels] == [f"head {n}" for n in range(6)]
    assert {p.images[0].get_clim() for p in panels} == {(0, weights.max())}
    assert [t.get_text() for t in panels[0].xaxis.get_ticklabels()] == ["a", "b", "c"]
    named = plot_attention(weights[:2], WORDS, key_tokens="abc", titles=["x", "y"])
    assert [p.get_title() for p in _panels(named)] == ["x", "y"]


def test_labels_of_a_long_text_are_thinned_out() -> None:
    words = [str(n) for n in range(150)]
    (panel,) = _panels(plot_attention(_weights(150, 150), words))
    assert [t.get_text() for t in panel.xaxis.get_ticklabels()] == words[::3]


def test_our_own_weights_are_drawn() -> None:
    q = np.random.default_rng(2).standard_normal((1, 2, 4, 8)).astype(np.float32)
    _, weights = attention(q, q, q, return_weights=True)
    assert len(_panels(plot_attention(weights[0], WORDS))) == 2


@pytest.mark.parametrize(
    ("weights", "more", "error", "said"),
    [
        (_weights(4), {}, InvalidValueError, "shape"),
        (_weights(2, 2, 4, 4), {}, InvalidValueError, "shape"),
        (np.zeros((0, 4)), {}, InvalidValueError, "none of them 0"),
        (-_weights(4, 4), {}, InvalidValueError, "negative"),
        (_weights(4, 4) * np.nan, {}, InvalidValueError, "NaN"),
        ([["a"] * 4] * 4, {}, InvalidTypeError, "numbers"),
        (_weights(3, 4), {}, InvalidValueError, "tokens: expected 3"),
        (_weights(4, 3), {}, InvalidValueError, "key_tokens: expected 3"),
        (_weights(2, 4, 4), {"titles": ["one"]}, InvalidValueError, "titles: expected 2"),
        (_weights(4, 4), {"columns": 0}, InvalidValueError, "columns"),
    ],
)
def test_what_cannot_be_drawn(
    weights: Any, more: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        plot_attention(weights, WORDS, **more)


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plotting, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match=r"tvm-attention\[viz\]"):
        plot_attention(_weights(4, 4), WORDS)
