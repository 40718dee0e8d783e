"""``coordctl ui``: a live page about jobs and their checkpoints, served from the control database.

Everything is made on the server: HTML, and charts as SVG. Numbers and geometry come from pure functions
(:mod:`.timeline`, :mod:`.charts`, :mod:`.scales`), pages from Jinja's templates. A script of a few lines fetches the
page again each second and puts in what has changed; without it the pages say the same, and are as old as their loading.

Threads: a page reads on one of the server's threads; a ``ControlClient`` may be used by all of them.
"""
