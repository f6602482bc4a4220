"""The benches: each is one file with its options, what it runs and what it shows, and a command by the file's name."""
