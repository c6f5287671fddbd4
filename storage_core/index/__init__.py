"""The three indexes of a segment."""
