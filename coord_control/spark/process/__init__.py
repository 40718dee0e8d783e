"""Programs that run as a process of their own (``python -m``), and how a driver's process ends."""
