"""The command line: words to calls, errors to sentences, progress on the terminal."""
