"""Reasons why a partition is not cleaned, not deleted, or so big. With each reason it says from
when on that changes."""
