import pytest

from tvm_attention.errors import InvalidValueError
from tvm_attention.suites import SUITES, shape_text, suite
from tvm_attention.workload import AttentionWorkload


@pytest.mark.parametrize("name", SUITES)
def test_a_suite_names_different_workloads(name):
    workloads = suite(name)
    assert workloads
    assert all(isinstance(w, AttentionWorkload) for w in workloads.values())
    assert len(set(workloads.values())) == len(workloads)


def test_core_covers_what_the_library_promises():
    core = suite("core").values()
    assert {w.head_dim for w in core} >= {40, 64, 80, 96, 128, 256}
    assert {w.length_class for w in core} >= {"short", "medium", "long", "decode-r1", "decode-r4"}
    assert {w.causal for w in core} == {None, "top_left"}
    assert {w.group for w in core} == {1, 4}
    assert any(w.batch > 1 for w in core)
    assert any(w.query_length % 2 and w.key_length % 2 for w in core)


def test_demo_shapes_are_the_models_own():
    assert [shape_text(w) for w in suite("demo").values()] == [
        "1x12x128x128x64",
        "1x12x197x197x64",
        "2x8x4096x4096x40",
        "2x8x4096x77x40",
        "1x12x1024x1024x64 causal",
        "1x32/8x1x2048x128",
    ]


def test_shape_text_shows_a_value_dim_and_a_causal_kind_that_differ():
    workload = AttentionWorkload(
        head_dim=64,
        value_dim=32,
        causal="bottom_right",
        query_heads=4,
        query_length=2,
        key_length=9,
    )
    assert shape_text(workload) == "1x4x2x9x64/32 causal (bottom right)"


def test_an_unknown_suite_is_refused_with_the_known_ones():
    with pytest.raises(
        InvalidValueError, match=r"expected one of demo, core, shipping, gpu, got 'cores'"
    ):
        suite("cores")


def test_a_suite_cannot_be_changed():
    with pytest.raises(TypeError):
        suite("core")["mine"] = AttentionWorkload(head_dim=64)  # type: ignore[index]
