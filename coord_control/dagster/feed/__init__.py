"""What the sensor reports to Dagster: changes in the control database as events, exactly once."""
