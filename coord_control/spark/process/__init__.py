"""Programs that run as separate processes (``python -m``), and how a driver's process ends."""
