"""Benchmarks of the structures, the wire, the engine, the store, the server and the client."""
