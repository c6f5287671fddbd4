"""Why a partition is not cleaned, not deleted, or so big, and from when on it will be."""
