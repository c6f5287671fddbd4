"""One round of compaction: of every key, the newest record stays."""
