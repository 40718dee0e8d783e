"""The control database: what was asked of jobs, what they did, and what they are doing, for any process to see.

This is the only package that imports SQLAlchemy and Alembic, and none of their errors leave it.
"""
