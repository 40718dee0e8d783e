"""The sinks of queries: what they are, and how those whose tables have versions are asked and set back."""
