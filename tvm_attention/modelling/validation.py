"""How well the models do where it can be measured."""

VALIDATION = (
    "rank correlation 0.42 to 0.78; time lost 3 % on average, 26 % at worst (sapphirerapids)"
)
"""Of bench/results/modelled.json, which bench/bench_modelled.py measures; every modelled record has it."""
