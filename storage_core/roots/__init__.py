"""Roots of logs: a broker's directory, a mirror, a managed root; read, held and changed alike."""
