"""The engine's process: configuration, how it is built, how large its pool is, its sockets, the loop of steps."""
