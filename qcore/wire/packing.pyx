"""Placeholder body; the constants of the .pxd are compile-time."""
