"""Hot loops over arrays, compiled by Numba; the only package that imports it."""
