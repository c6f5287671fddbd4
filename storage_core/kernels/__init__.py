"""Hot loops over arrays, compiled by Numba. No other package imports Numba."""
