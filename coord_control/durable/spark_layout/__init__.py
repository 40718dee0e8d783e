"""Which files of a Spark checkpoint directory an epoch needs, and what they say."""
