"""The public test kit: real parts with faults on demand, for tests of jobs and of this package."""
