"""One streaming query, kept running."""
