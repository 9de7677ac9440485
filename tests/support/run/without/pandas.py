"""Stands before the real one on a broker's path, whose users seldom have it: to import it takes longer than a query."""

raise ImportError("tests run the broker without pandas, as the extra `query` installs it")
