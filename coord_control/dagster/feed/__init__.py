"""What the sensor tells Dagster: changes of the control database as events, each once."""
