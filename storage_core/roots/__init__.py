"""Roots of logs: broker directories, mirrors and managed roots behind one interface. They are
read, held and changed alike."""
