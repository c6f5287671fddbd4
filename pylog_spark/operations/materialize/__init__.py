"""Write a managed root as a broker's log directory."""
