"""The commands of the protocol as data, a file for each family."""
