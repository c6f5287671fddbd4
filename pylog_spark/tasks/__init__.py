"""The executor side: plain functions, Arrow in, Arrow out; no pyspark."""
