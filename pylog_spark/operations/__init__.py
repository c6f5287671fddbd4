"""Operations on log directories, spread over executors. Each one observes, plans, commits and
records."""
