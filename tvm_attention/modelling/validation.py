"""How well the models do where it can be measured."""

VALIDATION = "rank correlation ?, time lost ? % (sapphirerapids)"
"""Of bench/results/modelled.json, which bench/modelled_tuning.py measures: kept in every modelled record."""
