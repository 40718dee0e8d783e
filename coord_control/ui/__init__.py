"""``coordctl ui``: live pages about jobs and their checkpoints, served from the control database.

Everything is rendered on the server: HTML, and charts as SVG. Numbers and geometry come from pure functions
(:mod:`.timeline`, :mod:`.charts`, :mod:`.scales`), pages from Jinja templates. A short script fetches the page every
second and updates what has changed; without it the pages show the same, as of the time when they were loaded.

Threads: a page reads on one of the server's threads; they share one ``ControlClient``.
"""
