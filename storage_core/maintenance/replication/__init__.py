"""Replicas of one partition side by side: what differs, who may lead, what would be lost."""
