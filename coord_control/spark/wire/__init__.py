"""The bytes between driver and executors, and the sockets that carry them."""
