"""How well the models do where it can be measured."""

VALIDATION = (
    "rank correlation 0.29 to 0.62; time lost 3 % on average, 11 % at worst (sapphirerapids)"
)
"""Of bench/results/modelled.json, which bench/bench_modelled.py measures; every modelled record has it."""
