"""Makes the Grafana dashboards of deploy/grafana: ``python -m scripts.dashboards``."""
