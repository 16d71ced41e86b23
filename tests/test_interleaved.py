import math
import time

import pytest

from tvm_attention.errors import InvalidValueError
from tvm_attention.interleaved import Contender, Quartiles, Rounds, interleave, settle


def test_quartiles_of_a_known_sample():
    assert Quartiles.of([5.0, 1.0, 2.0, 4.0, 3.0]) == Quartiles(3.0, 2.0, 4.0)
    assert Quartiles.of([7.0]).to_dict() == {"median": 7.0, "q1": 7.0, "q3": 7.0}


@pytest.mark.parametrize("sample", [[], [1.0, math.nan]])
def test_quartiles_refuse_what_has_no_median(sample):
    with pytest.raises(InvalidValueError, match="quartiles"):
        Quartiles.of(sample)


def test_a_ratio_is_taken_within_rounds_that_had_both():
    # the machine slows down tenfold in round 1: both are hit, the ratio is not
    rounds = Rounds({"ours": {0: 1.0, 1: 10.0, 2: 1.0}, "peer": {0: 2.0, 1: 20.0}})
    assert rounds.ratio("peer", "ours") == Quartiles(2.0, 2.0, 2.0)
    assert rounds.time("ours").median == 1.0


def test_a_ratio_without_a_common_round_is_refused():
    with pytest.raises(InvalidValueError, match="quartiles"):
        Rounds({"a": {0: 1.0}, "b": {1: 1.0}}).ratio("a", "b")


def _sleeping(name, seconds, log, pool="one"):
    def call():
        log.append(name)
        time.sleep(seconds)

    return Contender(name, call, pool)


def test_contenders_alternate_and_the_order_turns_round():
    log: list[str] = []
    pair = [_sleeping("a", 0.06, log), _sleeping("b", 0.06, log)]
    rounds = interleave(pair, seconds=0.0, least=4)
    assert log == ["a", "b", *"abbaabba"]  # one probe each, then four rounds
    assert [len(rounds.seconds[n]) for n in "ab"] == [4, 4]
    assert all(t >= 0.06 for n in "ab" for t in rounds.seconds[n].values())


def test_a_slow_contender_sits_out_rounds_once_everyone_had_the_least():
    log: list[str] = []
    rounds = interleave(
        [_sleeping("fast", 0.001, log), _sleeping("slow", 0.1, log)], seconds=0.6, least=2, most=20
    )
    fast, slow = rounds.seconds["fast"], rounds.seconds["slow"]
    assert {0, 1} <= set(slow) < set(fast)
    assert len(fast) == 20
    assert rounds.ratio("slow", "fast").median > 5


def test_equally_fast_contenders_sit_out_about_no_round():
    log: list[str] = []
    rounds = interleave(
        [_sleeping("a", 0.01, log), _sleeping("b", 0.01, log)], seconds=9, least=2, most=10
    )
    assert all(len(rounds.seconds[n]) >= 8 for n in "ab")


def test_least_outranks_the_time_and_most_bounds_it():
    log: list[str] = []
    assert len(interleave([_sleeping("a", 0, log)], 0.0, least=5).seconds["a"]) == 5
    assert len(interleave([_sleeping("a", 0, log)], 0.5, most=7).seconds["a"]) == 7


@pytest.mark.parametrize("names", [[], ["a", "a"]])
def test_contenders_need_different_names(names):
    with pytest.raises(InvalidValueError, match="different names"):
        interleave([Contender(n, lambda: None) for n in names], 0.1)


def test_settle_outlasts_a_spinning_thread(monkeypatch):
    # A clock of the processor's time stands for the thread, which others on the machine could stop.
    end = time.perf_counter() + 0.05
    monkeypatch.setattr(time, "process_time", lambda: min(time.perf_counter(), end))
    settle()
    assert time.perf_counter() >= end
